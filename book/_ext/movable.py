"""Bring to life the figures that a reader can move.

A cell that ends with ``movable(name, values, figure)`` of `transformer_lit.figures` has an output
with two sides: a still picture, which is rendered as in any other figure, and the values under a
MIME type of our own.  The values go into the page as JSON, in a ``<script class="movable">`` at
the end of the cell, and the page gets ``js/movable.js`` and ``js/figures/NAME.js``, which put the
living figure in place of the still one.  Pages without such figures load nothing.
"""

import json

from docutils import nodes

MIME = "application/vnd.transformer-lit.movable+json"


def take_values(app, docname, source):
    """Take the values out of the outputs, since myst-nb would warn of an unknown MIME type."""
    if MIME not in source[0] or not str(app.env.doc2path(docname)).endswith(".ipynb"):
        return
    notebook = json.loads(source[0])
    app.env.temp_data["movable"] = found = []
    for cell in notebook["cells"]:
        for output in cell.get("outputs", []):
            if MIME in output.get("data", {}):
                found.append(output["data"].pop(MIME))
                cell["metadata"].setdefault("tags", []).append("movable")
    source[0] = json.dumps(notebook, ensure_ascii=False)


def place_values(app, doctree):
    """Put the values into the page, each behind its picture."""
    found = app.env.temp_data.get("movable", [])
    cells = [n for n in doctree.findall(nodes.container) if "tag_movable" in n["classes"]]
    for cell, movable in zip(cells, found, strict=True):
        text = json.dumps(movable, ensure_ascii=False).replace("<", r"\u003c")
        script = f'<script type="application/json" class="movable">{text}</script>'
        cell += nodes.raw("", script, format="html")
    if found:
        names = dict.fromkeys(movable["figure"] for movable in found)
        app.env.metadata[app.env.docname]["movable"] = " ".join(names)


def add_scripts(app, pagename, templatename, context, doctree):
    """Give a page the scripts of its own figures, and no others."""
    if names := app.env.metadata.get(pagename, {}).get("movable"):
        app.add_css_file("css/movable.css")
        for name in ("movable", *(f"figures/{name}" for name in names.split())):
            app.add_js_file(f"js/{name}.js", loading_method="defer")


def setup(app):
    app.connect("source-read", take_values)
    app.connect("doctree-read", place_values)
    app.connect("html-page-context", add_scripts)
    return {"version": "0.1", "parallel_read_safe": True, "parallel_write_safe": True}
