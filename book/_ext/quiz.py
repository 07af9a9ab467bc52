"""A question with choices; each choice opens to say whether it is right, and why.

Written so that it also reads well where nothing renders it, as on Colab::

    :::{quiz} Which axis does the softmax run over?
    - [x] The keys
      - Each query shares out a weight of 1 among them.
    - [ ] The queries
      - Then a key would have to share itself out.
    :::

The page needs no script: a choice is a ``<details>`` element.
"""

from docutils import nodes
from sphinx.util.docutils import SphinxDirective

RIGHT, WRONG = "Right.", "Not quite."


class choice(nodes.Element):
    """One choice, with ``right`` True or False: its text, then the explanation."""


class choice_text(nodes.TextElement):
    """What is chosen."""


class Quiz(SphinxDirective):
    """One question; its choices are the items of a task list, each with one item below it."""

    required_arguments = 1
    final_argument_whitespace = True
    has_content = True

    def run(self):
        question = nodes.paragraph(self.arguments[0], classes=["quiz-question"])
        question += self.state.inline_text(self.arguments[0], self.lineno)[0]
        self.set_source_info(question)
        quiz = nodes.container("", question, classes=["quiz"])
        content = nodes.Element()
        self.state.nested_parse(self.content, self.content_offset, content)
        items = [item for bullets in content.children for item in bullets.children]
        choices = [self.choice(item) for item in items]
        if sum(c["right"] for c in choices) != 1:
            raise self.error(f"a quiz needs one right choice: {self.arguments[0]!r}")
        quiz += choices
        return [quiz]

    def choice(self, item):
        # MyST has made a box of [x], and a list of the explanation
        texts = list(item.findall(nodes.paragraph))
        box = next(texts[0].findall(nodes.raw), None) if texts else None
        if box is None or len(texts) != 2:
            raise self.error(f"not a choice with its box and its explanation: {item.astext()!r}")
        box.parent.remove(box)
        texts[0][0] = nodes.Text(texts[0][0].astext().lstrip())
        text = choice_text(texts[0].rawsource, "", *texts[0].children)
        text.source, text.line = texts[0].source, texts[0].line
        return choice("", text, texts[1], right="checked" in box.astext())


def visit_choice(self, node):
    name = "right" if node["right"] else "wrong"
    self.body.append(f'<details class="choice {name}">')


def depart_choice(self, node):
    self.body.append("</details>\n")


def visit_text(self, node):
    self.body.append("<summary>")


def depart_text(self, node):
    mark = RIGHT if node.parent["right"] else WRONG
    self.body.append(f"</summary>\n<strong>{mark}</strong> ")


def depart_text_on_paper(self, node):
    self.body.append(f": {RIGHT if node.parent['right'] else WRONG} ")


def nothing(self, node):
    pass


def bullet(self, node):
    self.body.append("\n\n• ")


def setup(app):
    app.add_directive("quiz", Quiz)
    app.add_node(choice, html=(visit_choice, depart_choice), latex=(nothing, nothing))
    app.add_node(choice_text, html=(visit_text, depart_text), latex=(bullet, depart_text_on_paper))
    app.add_js_file("js/quiz.js", loading_method="defer")
    return {"version": "0.1", "parallel_read_safe": True, "parallel_write_safe": True}
