"""Render nbdev notebooks in a Sphinx book, offline.

* ``#| hide`` and ``#| default_exp`` cells vanish; ``#| echo: false`` hides the source,
  ``#| code-fold: true`` folds it, ``#| output: false`` drops the output; every other
  leading ``#| ...`` line is cut from the shown source; exported cells get the CSS class
  ``tag_export``.  Done on the JSON at ``source-read``, so the file, the download and
  Colab keep the directives.
* The repository's address, and with it every Colab, edit and issue link, is read from
  pyproject.toml.
* In the reference, signatures show shapes in double quotes, as the code has them, and a bare
  name such as `Encoder` links to what it names, wherever in the package that stands.
* Sphinx 7.4 emits inline scripts twice (``const`` twice is a JavaScript error), and sphinx-design a
  script for tabs on every page, also where no tabs are.
"""

import ast
import json
import re
import tomllib
from pathlib import Path

from docutils import nodes
from sphinx import addnodes

LINE = re.compile(r"^\s*#\s*\|\s*([\w-]+)\s*:?\s*(.*?)\s*$")
FALSE = {"false", "no", "0"}
TAGS = {  # directive -> (tag when true or bare, tag when false)
    "hide": ("remove-cell", None),
    "default_exp": ("remove-cell", None),
    "echo": (None, "remove-input"),
    "hide_input": ("remove-input", None),
    "code-fold": ("hide-input", None),
    "output": (None, "remove-output"),
    "hide_output": ("remove-output", None),
    "export": ("export", None),
    "exports": ("export", None),
}


def rewrite(nb):
    # nbdev-clean drops language_info; without it %magics and !commands fail to lex (-W!)
    nb["metadata"].setdefault("language_info", {"name": "python", "pygments_lexer": "ipython3"})
    for cell in nb["cells"]:
        if cell["cell_type"] != "code":
            continue
        src = cell["source"]
        lines = src if isinstance(src, list) else src.splitlines(True)
        tags, n = set(), 0
        while n < len(lines) and (m := LINE.match(lines[n])):
            yes, no = TAGS.get(m[1], (None, None))
            tags.add(no if m[2].lower() in FALSE else yes)
            n += 1
        if not n:
            continue
        cell["source"] = body = "".join(lines[n:]).lstrip("\n")
        if not body.strip():
            tags.add("remove-cell")
        meta = cell.setdefault("metadata", {})
        meta["tags"] = list(dict.fromkeys([*meta.get("tags", []), *sorted(tags - {None})]))
    return nb


def repository(app, config):
    project = tomllib.loads((Path(app.confdir) / "pyproject.toml").read_text(encoding="utf-8"))
    config.html_theme_options["repository_url"] = project["project"]["urls"]["Repository"]
    config.release = config.version = project["project"]["version"]


def source_read(app, docname, source):
    if str(app.env.doc2path(docname)).endswith(".ipynb"):
        source[0] = json.dumps(rewrite(json.loads(source[0])), ensure_ascii=False)


def drop_needless_scripts(app, pagename, templatename, context, doctree):
    seen, keep = set(), []
    tabs = "sd-tab" in context.get("body", "")
    for js in context.get("script_files", []):
        what = js.filename or js.attributes.get("body")
        if what not in seen and (tabs or "design-tabs" not in str(js.filename)):
            keep.append(js)
            seen.add(what)
    context["script_files"] = keep


def shorten_signature(app, what, name, obj, options, signature, returns):
    """Write defaults that are objects by name; otherwise the signature could not be parsed."""
    if signature:
        signature = re.sub(r"<function (\w+)>", r"\1", signature)
        signature = re.sub(r"= (\w+)\([^()]+\)", r"= \1(...)", signature)
        return signature.replace("<factory>", "..."), returns


def polish_reference(app, doctree):
    """Write ``Float[Tensor, "b t d"]`` as the code has it; drop the base class that all have."""
    for node in doctree.findall(addnodes.pending_xref):
        target = node.get("reftarget", "")
        if target.startswith("jaxtyping."):  # Sphinx has cut it at a full stop within its shape
            node[0].children = [nodes.Text(target.removeprefix("jaxtyping.").replace("'", '"'))]
    for node in doctree.findall(addnodes.desc_sig_literal_string):
        text = ast.literal_eval(node.astext())
        node.children = [nodes.Text(json.dumps(text, ensure_ascii=False))]
    for node in list(doctree.findall(nodes.paragraph)):
        if node.astext() == "Bases: object":
            node.parent.remove(node)


def link_names(app, env, node, contnode):
    """Link a bare name in a docstring to another module's object, if just one is called so."""
    if node["refdomain"] == "py" and not node.get("refspecific"):
        node["refspecific"] = True
        where, kind, name = node["refdoc"], node["reftype"], node["reftarget"]
        python = env.get_domain("py")
        return python.resolve_xref(env, where, app.builder, kind, name, node, contnode)


def setup(app):
    app.connect("config-inited", repository)
    app.connect("source-read", source_read)
    app.connect("autodoc-process-signature", shorten_signature)
    app.connect("doctree-read", polish_reference)
    app.connect("missing-reference", link_names)
    app.connect("html-page-context", drop_needless_scripts, priority=900)
    return {"version": "0.1", "parallel_read_safe": True, "parallel_write_safe": True}
