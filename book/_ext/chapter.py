"""The head and the foot of a chapter, made from what its notebook says.

The head takes the chapter's own first paragraphs, what one can do after it and what it needs, up to
the one with the reading time, and sets beside them where the chapter stands in the model, the
notebook to download, and Colab. The foot leads to the summary, the quiz and the exercises on the
page, and on to the next chapter.
"""

from html import escape

import model_map
from docutils import nodes
from sphinx.locale import get_translation
from sphinx_exercise.nodes import exercise_enumerable_node, exercise_node, solution_node

_ = get_translation("literate")
EXERCISE = (exercise_node, exercise_enumerable_node)
PAPER = ("the-paper-and-where-we-depart-from-it", "the-papers-and-where-we-depart-from-them")


class chapter_links(nodes.General, nodes.Element):
    """Links to the notebook of the page."""


class chapter_foot(nodes.General, nodes.Element):
    """Links to the parts of the page, in ``parts`` as (id, words), and to the next page."""


def is_chapter(docname: str) -> bool:
    """Return whether a page is a chapter that builds or uses the model."""
    folder, _slash, name = docname.partition("/")
    return folder == "nbs" and name[:2].isdigit() and name[:2] not in ("00", "18")


def frame(app, doctree):
    """Give the page its head and its foot."""
    if not is_chapter(app.env.docname):
        return
    chapter = app.env.docname.removeprefix("nbs/")
    page = next(doctree.findall(nodes.section))
    ends = [n for n, child in enumerate(page) if isinstance(child, nodes.paragraph)][:2]
    head = nodes.container(classes=["chapter-head"])
    start, stop = ends[0], ends[-1] + 1
    head += [model_map.model_map(chapter=chapter), *page[start:stop], chapter_links()]
    page[start:stop] = [head]
    page += chapter_foot(parts=parts(page))


def link_exercises(app, doctree, docname):
    """Give each exercise a link to itself, and to the boxes inside ids of their own."""
    for node in doctree.findall(lambda node: isinstance(node, (*EXERCISE, solution_node))):
        for inner in node.findall(nodes.section):
            if inner["ids"] in (["exercise-content"], ["solution-content"]):
                inner["ids"] = [f"{node['ids'][0]}-content"]
    if app.builder.format == "html":
        for node in doctree.findall(lambda node: isinstance(node, EXERCISE)):
            node[0] += nodes.reference(
                "",
                "#",
                refid=node["ids"][0],
                classes=["headerlink"],
                title=_("Link to this exercise"),
            )


def parts(page):
    """Return the id and the words of the parts that a foot leads to."""
    found = {section["ids"][0]: section for section in page.findall(nodes.section)}
    questions = sum("quiz" in node["classes"] for node in page.findall(nodes.container))
    exercises = sum(1 for _node in page.findall(lambda node: isinstance(node, EXERCISE)))
    wanted = {
        "summary": _("Summary"),
        "quiz": _("Quiz: {0} questions").format(questions),
        "exercises": _("Exercises: {0}").format(exercises),
        PAPER[0]: _("The paper, and where we depart from it"),
        PAPER[1]: _("The papers, and where we depart from them"),
    }
    return [(name, words) for name, words in wanted.items() if name in found]


def link(address, text, classes=""):
    kind = f' class="{classes}"' if classes else ""
    return f'<a{kind} href="{escape(address)}">{escape(text)}</a>'


def visit_links(self, node):
    docname = self.builder.current_docname
    root = self.builder.get_relative_uri(docname, "index").removesuffix("index.html")
    repository = self.config.html_theme_options["repository_url"]
    branch = self.config.html_theme_options["repository_branch"]
    colab = repository.replace("https://github.com", "https://colab.research.google.com/github")
    download = link(f"{root}_sources/{docname}.ipynb", _("Download the notebook"))
    self.body.append(
        f'<p class="chapter-links">{download.replace("<a", "<a download")} '
        f"{link(f'{colab}/blob/{branch}/{docname}.ipynb', _('Open it in Colab'))}</p>\n"
    )
    raise nodes.SkipNode


def visit_foot(self, node):
    docname = self.builder.current_docname
    here = "".join(f"<li>{link(f'#{name}', words)}</li>" for name, words in node["parts"])
    following = self.builder.env.collect_relations()[docname][2]
    if following:
        title = self.builder.env.titles[following].astext()
        address = self.builder.get_relative_uri(docname, following)
        here += f"<li>{_('Next')}: {link(address, title)}</li>"
    self.body.append(
        f'<nav class="chapter-foot" aria-label="{_("This chapter")}"><ul>{here}</ul></nav>\n'
    )
    raise nodes.SkipNode


def skip(self, node):
    raise nodes.SkipNode


def setup(app):
    app.add_node(chapter_links, html=(visit_links, None), latex=(skip, None), text=(skip, None))
    app.add_node(chapter_foot, html=(visit_foot, None), latex=(skip, None), text=(skip, None))
    app.connect("doctree-read", frame)
    app.connect("doctree-resolved", link_exercises, priority=900)
    app.add_js_file("js/page.js", loading_method="defer")
    return {"version": "0.1", "parallel_read_safe": True, "parallel_write_safe": True}
