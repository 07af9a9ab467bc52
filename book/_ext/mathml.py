"""Formulas as MathML, set while the book is built: they need no script and no waiting.

Temml (temml.min.js beside this file) turns TeX into MathML; it runs in V8, from the package
mini-racer. The font comes with the book. What Temml cannot read is a warning, so that a build with
``-W`` fails.
"""

import os
import re
from functools import cache
from html import escape
from pathlib import Path

from docutils import nodes
from py_mini_racer import JSEvalException, MiniRacer
from sphinx.locale import _
from sphinx.util import logging
from sphinx.util.math import get_node_equation_number

TAG = re.compile(r"<annotation.*?</annotation>|<[^>]*>", re.S)
LONG = 24  # characters of a formula within a line that may be wider than a phone
SET = """(tex, display) =>
  temml.renderToString(tex, { displayMode: display, throwOnError: true })"""


@cache
def engine() -> tuple[MiniRacer, int]:
    """Return V8, and the process that has started it."""
    js = MiniRacer()
    js.eval((Path(__file__).parent / "temml.min.js").read_text(encoding="utf-8"))
    js.eval(f"var set = {SET}")
    return js, os.getpid()


@cache
def typeset(tex: str, display: bool) -> str:
    """Return a formula as MathML."""
    js, process = engine()
    if process != os.getpid():  # it would wait for ever
        raise RuntimeError("V8 was started before the process was forked: write with one process")
    return js.call("set", tex.strip(), display)


def mathml(node, display: bool) -> str:
    try:
        return typeset(node.astext(), display)
    except JSEvalException as error:
        reason = str(error).splitlines()[0]
        logging.getLogger(__name__).warning("%s", reason, location=node, type="mathml")
        return f"<code>{escape(node.astext())}</code>"


def number_equations(app, doctree):
    """Let each displayed formula have a number and an address, also those that have no label.

    Sphinx has numbered those that have one, from 1; the others go on from there.
    """
    formulas = list(doctree.findall(nodes.math_block))
    number = sum(1 for node in formulas if node["ids"])
    for place, node in enumerate(formulas, 1):
        if not node["ids"]:
            number += 1
            node["ids"], node["number"] = [f"equation-{place}"], number


def visit_math(self, node):
    formula = mathml(node, False)
    long = " long" if len(TAG.sub("", formula)) > LONG else ""
    self.body.append(f'<span class="math{long} notranslate nohighlight">{formula}</span>')
    raise nodes.SkipNode


def visit_displaymath(self, node):
    self.body.append(self.starttag(node, "div", CLASS="math notranslate nohighlight"))
    if node["number"]:
        self.body.append(f'<span class="eqno">({get_node_equation_number(self, node)})')
        self.add_permalink_ref(node, _("Link to this equation"))
        self.body.append("</span>")
    self.body.append(f'<div class="formula">{mathml(node, True)}</div></div>\n')
    raise nodes.SkipNode


def setup(app):
    app.add_html_math_renderer("mathml", (visit_math, None), (visit_displaymath, None))
    app.connect("doctree-read", number_equations)
    return {"version": "0.1", "parallel_read_safe": True, "parallel_write_safe": True}
