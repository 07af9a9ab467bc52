"""Mark the terms of the glossary: where one first stands on a page, it shows its meaning.

The terms and their meanings are those of the ``{glossary}`` directive in book/glossary.md. The
first time that one stands in a paragraph of a page, outside of links, code and formulas, it becomes
a link to its entry that carries the meaning; ``js/glossary.js`` shows it on hover, focus and tap.
"""

import re
from html import escape

from docutils import nodes
from sphinx import addnodes
from sphinx.util.index_entries import split_index_msg

PAGE = "book/glossary"
UNMARKED = (PAGE, "book/bibliography", "book/api")  # a title of a work is not prose of ours
# everyday words too: marked only where a chapter sets them in bold or italics
EVERYDAY = {"head", "key", "memory", "probe", "value"}
CLOSED = (nodes.reference, nodes.literal, nodes.math, nodes.raw, nodes.title, nodes.footnote)
SKIPPED = (nodes.caption, nodes.title, nodes.block_quote, nodes.table, addnodes.desc)


class glossary_link(nodes.Inline, nodes.TextElement):
    """A word with its ``address`` in the glossary and its ``meaning``."""


def collect(app, doctree):
    """Remember each term with its meaning, the first sentence below it."""
    if app.env.docname == PAGE:
        app.env.book_terms = {
            word.astext(): (word["ids"][0], item.next_node(nodes.paragraph).astext())
            for item in doctree.findall(nodes.definition_list_item)
            for word in item.findall(nodes.term)
        }


def pattern(words):
    """Match any of the words, the longest that fits, also in the plural."""
    plurals = [re.escape(w[:-1]) + "(?:y|ies)" if w.endswith("y") else re.escape(w) for w in words]
    return re.compile(rf"(?<![\w-])({'|'.join(f'{p}s?' for p in plurals)})(?![\w-])", re.I)


def singular(word, terms):
    """Return the term that a word of the text is a form of."""
    low = {t.lower(): t for t in terms}
    for form in (word, word[:-1], word[:-3] + "y"):
        if form.lower() in low:
            return low[form.lower()]
    raise LookupError(word)


def mark(app, doctree, docname):
    """Link the first occurrence of each term in the paragraphs of a page."""
    terms = dict(getattr(app.env, "book_terms", {}))
    if app.builder.format != "html" or docname.startswith(UNMARKED) or not terms:
        return
    home = app.builder.get_relative_uri(docname, PAGE)
    finder = pattern(sorted(terms, key=len, reverse=True))
    seen = set()
    for paragraph in doctree.findall(nodes.paragraph):
        if inside(paragraph, SKIPPED) or "chapter-head" in paragraph.parent.get("classes", ()):
            continue
        for text in list(paragraph.findall(nodes.Text)):
            if not inside(text, CLOSED, paragraph):
                mark_text(text, finder, terms, seen, home)


def inside(node, kinds, end=None):
    while (node := node.parent) is not None and node is not end:
        if isinstance(node, kinds):
            return True
    return False


def mark_text(text, finder, terms, seen, home):
    """Replace a text by itself with its unseen terms marked."""
    source, parts, last = text.astext(), [], 0
    loud = isinstance(text.parent, nodes.strong | nodes.emphasis)
    for match in finder.finditer(source):
        name = singular(match[0], terms)
        if name in seen or (name in EVERYDAY and not loud):
            continue
        seen.add(name)
        anchor, meaning = terms[name]
        parts += [nodes.Text(source[last : match.start()])]
        parts += [glossary_link("", match[0], address=f"{home}#{anchor}", meaning=meaning)]
        last = match.end()
    if parts:
        text.parent.replace(text, [*parts, nodes.Text(source[last:])])


def visit(self, node):
    meaning = escape(node["meaning"])
    self.body.append(f'<a class="term" href="{escape(node["address"])}" data-meaning="{meaning}">')


def depart(self, node):
    self.body.append("</a>")


def search_entries(app):
    """Tell the search where each term of the index stands.

    Sphinx knows that only of the pages which this build wrote, so that after a small change the
    search would not find the glossary's terms any more.
    """
    for docname, entries in app.env.domains["index"].entries.items():
        app.builder.indexer._index_entries[docname] = sorted(
            (word, target, main or "")
            for kind, text, target, main, _key in entries
            if kind == "single"
            for word in split_index_msg(kind, text)
        )
    return []  # no further pages


def setup(app):
    app.add_node(glossary_link, html=(visit, depart))
    app.connect("doctree-read", collect)
    app.connect("doctree-resolved", mark)
    app.connect("html-collect-pages", search_entries)
    app.add_js_file("js/glossary.js", loading_method="defer")
    return {"version": "0.1", "parallel_read_safe": True, "parallel_write_safe": True}
