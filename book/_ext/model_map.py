"""The map of the model: the paper's Figure 1, drawn as SVG; each block is a link to its chapter.

``{model-map}`` draws it large, as a numbered figure. A chapter has it small at its head, without
words, with the blocks that it builds lit (`small`). Hover and focus show what a block computes in
the empty corner above the encoder, by CSS alone. All words are text, so that they are found and
translated.
"""

from html import escape
from typing import ClassVar, NamedTuple

from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.locale import get_translation
from sphinx.util.docutils import SphinxDirective

_ = get_translation("literate")  # the Chinese edition brings its own words

WIDTH, HEIGHT, SIDE = 372, 524, 126  # of the drawing, and the width of a block
LEFT, RIGHT = 109, 263  # the middle of the encoder and of the decoder
ATTENTION = ("04_multi_head", "02_attention", "14_inside")
HINT = (
    "Point at a block, or go there with Tab: what it computes stands here. "
    "Enter or a tap opens its chapter."
)
SAME = "(b, {0}, d) → (b, {0}, d)"


class Block(NamedTuple):
    """A box: where its middle is, what is written in it, what it computes, where it is built."""

    x: float
    y: float
    kind: str  # its colour, a variable of book.css
    lines: tuple[str, ...]
    name: str
    formula: str
    shapes: str
    chapters: tuple[str, ...]  # those whose map has it lit; the first is where it leads
    section: str = ""
    width: float = SIDE


def add_norm(x: float, y: float, letter: str) -> Block:
    return Block(
        x, y, "norm", ("Add & norm",), "Residual connection and layer norm",
        "norm(x + sublayer(x))", SAME.format(letter), ("05_layers",), "residual-connections",
    )  # fmt: skip


def feed_forward(x: float, y: float, letter: str) -> Block:
    return Block(
        x, y, "feed-forward", ("Feed-forward",), "Feed-forward network",
        "max(0, x W₁ + b₁) W₂ + b₂", f"(b, {letter}, d) → (b, {letter}, f) → (b, {letter}, d)",
        ("05_layers",), "a-network-for-each-position",
    )  # fmt: skip


def entrance(x: float, ids: str, letter: str, name: str, text: str) -> list[Block]:
    """Return what stands below a stack, from the tokens up to the positions."""
    away = -1 if x == LEFT else 1
    return [
        Block(x, 508, "none", (ids,), name, text, f"(b, {letter})", ("09_data",)),
        Block(
            x, 476, "embedding", ("Embedding",), "Embedding", "√d · E[token]",
            f"(b, {letter}) → (b, {letter}, d)", ("03_embedding",),
        ),
        Block(
            x + away * 58, 444, "embedding", ("positions",), "Positional encoding",
            "sin and cos of p / 10000^(2i/d)", f"({letter}, d)", ("03_embedding",), "clocks", 66,
        ),
    ]  # fmt: skip


# In the order of the data, in which they are walked through with the keyboard and read aloud.
BLOCKS = [
    *entrance(LEFT, "English sentence", "s", "Source tokens", "a number for each token"),
    Block(
        LEFT, 388, "attention", ("Self-attention",), "Multi-head self-attention",
        "softmax(Q Kᵀ / √k) V, in h heads", SAME.format("s"), ATTENTION,
    ),
    add_norm(LEFT, 358, "s"),
    feed_forward(LEFT, 318, "s"),
    add_norm(LEFT, 288, "s"),
    Block(
        LEFT, 258, "none", ("Encoder layer × N",), "Encoder: N such layers",
        "layer(layer(… x))", SAME.format("s"), ("06_encoder",),
    ),
    *entrance(RIGHT, "Chinese, so far", "t", "Target tokens, shifted right",
              "begin, then what is written"),
    Block(
        RIGHT, 381, "attention", ("Masked", "self-attention"), "Masked multi-head self-attention",
        "softmax(Q Kᵀ / √k) V, no key ahead", SAME.format("t"),
        ("07_decoder", *ATTENTION), "never-ahead",
    ),
    add_norm(RIGHT, 344, "t"),
    Block(
        RIGHT, 304, "attention", ("Cross-attention",), "Multi-head cross-attention",
        "Q from the target, K and V from the memory", "(b, t, d), (b, s, d) → (b, t, d)",
        ("07_decoder", *ATTENTION), "across-queries-from-here-keys-and-values-from-there",
    ),
    add_norm(RIGHT, 274, "t"),
    feed_forward(RIGHT, 234, "t"),
    add_norm(RIGHT, 204, "t"),
    Block(
        RIGHT, 174, "none", ("Decoder layer × N",), "Decoder: N such layers",
        "layer(layer(… y, memory), memory)", SAME.format("t"), ("07_decoder",), "the-stack",
    ),
    Block(
        RIGHT, 122, "plain", ("Linear",), "Linear layer: the output matrix", "y Eᵀ",
        "(b, t, d) → (b, t, v)", ("08_transformer",), "one-matrix-three-uses",
    ),
    Block(
        RIGHT, 82, "plain", ("Softmax",), "Softmax over the vocabulary",
        "exp(zᵢ) / Σⱼ exp(zⱼ)", "(b, t, v) → (b, t, v)", ("12_decoding",),
        "from-logits-to-a-distribution",
    ),
    Block(
        RIGHT, 42, "none", ("Next token",), "Choosing the next token", "greedy, beam or sampled",
        "(b, t, v) → (b, t + 1)", ("12_decoding",),
    ),
]  # fmt: skip


class Stack(NamedTuple):
    """The frame around a layer that is repeated."""

    x: float
    top: float
    chapter: str
    name: str

    def frame(self, name: str = "") -> str:
        left = self.x - (87 if self.x == LEFT else 71)
        kind = f' class="{name}"' if name else ""
        return (
            f'<rect{kind} x="{left}" y="{self.top}" width="158" height="{412 - self.top}" rx="12"/>'
        )

    def holds(self, block: Block) -> bool:
        return block.x == self.x and self.top < block.y < 412


STACKS = [
    Stack(LEFT, 246, "06_encoder", "the encoder"),
    Stack(RIGHT, 162, "07_decoder", "the decoder"),
]
# of a residual connection: the column, where it leaves the stream, where it comes back
ROADS = [
    (LEFT, 408, 358),
    (LEFT, 340, 288),
    (RIGHT, 408, 344),
    (RIGHT, 326, 274),
    (RIGHT, 256, 204),
]
# from below up: column, start, end
STEPS = [
    (LEFT, 500, 490), (LEFT, 462, 453), (LEFT, 435, 402), (LEFT, 374, 369), (LEFT, 347, 332),
    (LEFT, 304, 299), (RIGHT, 500, 490), (RIGHT, 462, 453), (RIGHT, 435, 402), (RIGHT, 360, 355),
    (RIGHT, 333, 318), (RIGHT, 290, 285), (RIGHT, 263, 248), (RIGHT, 220, 215),
    (RIGHT, 162, 136), (RIGHT, 108, 96), (RIGHT, 68, 54),
]  # fmt: skip


def arrow(path: str, x: float, y: float, dx: int = 0) -> str:
    """Return a line that ends at (x, y), with a head that points up, or to the side dx."""
    head = f"m{-4 * dx}-3l{4 * dx} 3 {-4 * dx} 3" if dx else "m-3 4l3-4 3 4"
    return f'<path d="{path}M{x} {y}{head}"/>'


def skeleton() -> str:
    """Return all that is no link: frames, arrows, the places where vectors are added."""
    arrows, roads = [], []
    for x, start, end in STEPS:
        arrows.append(arrow(f"M{x} {start}V{end}", x, end))
    for x in (LEFT, RIGHT):
        away = -1 if x == LEFT else 1
        arrows.append(f'<circle cx="{x}" cy="444" r="8"/><path d="M{x - 4} 444h8m-4-4v8"/>')
        arrows.append(arrow(f"M{x + away * 25} 444H{x + away * 9}", x + away * 9, 444, -away))
    for x, start, end in ROADS:
        away = -1 if x == LEFT else 1
        side = x + away * 75
        tip = x + away * SIDE / 2
        roads.append(arrow(f"M{x} {start}H{side}V{end}H{tip}", tip, end, -away))
    memory = arrow(f"M{LEFT} 246V236H186V304H200", 200, 304, 1)
    frames = "".join(stack.frame() for stack in STACKS)
    return (
        f'<g class="frames">{frames}</g><g class="arrows">{"".join(arrows)}</g>'
        f'<g class="roads">{"".join(roads)}{memory}</g>'
    )


def shape(block: Block, lit: bool = False) -> str:
    """Return the box of a block."""
    height = 38 if len(block.lines) > 1 else 22 if block.kind in ("norm", "none") else 28
    if block.width < SIDE:
        height = 20
    x, y = block.x - block.width / 2, block.y - height / 2
    name = f"{block.kind} lit" if lit else block.kind
    size = f'width="{block.width:g}" height="{height}"'
    return f'<rect class="{name}" x="{x:g}" y="{y:g}" {size} rx="5"/>'


def words(block: Block) -> str:
    lines = [_(line) for line in block.lines]
    start = block.y + 4.5 - 7.5 * (len(lines) - 1)
    small = ' class="small"' if block.width < SIDE else ""
    return "".join(
        f'<text{small} x="{block.x:g}" y="{start + 15 * n:g}">{escape(line)}</text>'
        for n, line in enumerate(lines)
    )


def note(block: Block) -> str:
    """Return what the corner shows of a block: name, formula, shapes, each broken into lines."""
    rows, y = [], 24
    for kind, text in (("name", block.name), ("formula", block.formula), ("shapes", block.shapes)):
        for line in broken(_(text)):
            rows.append(f'<text class="{kind}" x="8" y="{y}">{escape(line)}</text>')
            y += 18
        y += 8
    return f'<g class="note">{"".join(rows)}</g>'


def broken(text: str, width: int = 24) -> list[str]:
    """Break a text into lines at its spaces, at most `width` characters each."""
    lines = [""]
    for word in text.split():
        if len(lines[-1]) + 1 + len(word) > width and lines[-1]:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    return lines


def large(uri) -> str:
    """Draw the map with words and links; ``uri`` gives the address of a chapter."""
    links = []
    for block in BLOCKS:
        anchor = f"#{block.section}" if block.section else ""
        said = f"{_(block.name)}: {_(block.formula)}; {block.shapes}"
        links.append(
            f'<a href="{uri(block.chapters[0])}{anchor}" aria-label="{escape(said)}">'
            f"{shape(block)}{words(block)}{note(block)}</a>"
        )
    hint = "".join(
        f'<text x="8" y="{24 + 18 * n}">{escape(line)}</text>'
        for n, line in enumerate(broken(_(HINT)))
    )
    return (
        f'<svg class="model-map" viewBox="0 0 {WIDTH} {HEIGHT}" role="group" '
        f'aria-label="{escape(_("Map of the model"))}"><g class="hint">{hint}</g>'
        f"{skeleton()}{''.join(links)}</svg>"
    )


def small(chapter: str) -> str:
    """Draw the map without words, the blocks of a chapter lit."""
    boxes = [(block, lit(block, chapter)) for block in BLOCKS]
    drawn = "".join(shape(block, on) for block, on in boxes if on or block.kind != "none")
    frames = "".join(stack.frame("stack lit") for stack in STACKS if stack.chapter == chapter)
    return (
        f'<svg class="model-map small" viewBox="0 26 {WIDTH} 498" aria-hidden="true">'
        f"{skeleton()}{frames}{drawn}</svg>"
    )


def lit(block: Block, chapter: str) -> bool:
    """Return whether a chapter is about this block; the later ones are about the whole model."""
    for stack in STACKS:
        if stack.chapter == chapter:
            return stack.holds(block)
    if chapter != "08_transformer" and any(chapter in other.chapters for other in BLOCKS):
        return chapter in block.chapters
    return chapter >= "08"


def here(chapter: str) -> str:
    """Say in words what the small map shows."""
    for stack in STACKS:
        if stack.chapter == chapter:
            return _(stack.name)
    names = dict.fromkeys(_(" ".join(b.lines)) for b in BLOCKS if lit(b, chapter))
    if not names:
        return _("before the Transformer")
    if len(names) > 8:
        return _("the whole model")
    return ", ".join(name[0].lower() + name[1:] for name in names)


class model_map(nodes.General, nodes.Element):
    """The map: large, or small for the chapter that it names."""


class ModelMap(SphinxDirective):
    """``{model-map} caption``, with a ``:name:``: the map, large, as a figure of the book."""

    required_arguments = 1
    final_argument_whitespace = True
    option_spec: ClassVar = {"name": directives.unchanged_required}

    def run(self):
        words, messages = self.state.inline_text(self.arguments[0], self.lineno)
        caption = nodes.caption(self.arguments[0], "", *words)
        figure = nodes.figure("", model_map(), caption, classes=["model-map"])
        for node in (caption, figure):
            self.set_source_info(node)
        self.add_name(figure)
        return [figure, *messages]


def visit(self, node):
    def uri(chapter):
        return self.builder.get_relative_uri(self.builder.current_docname, f"nbs/{chapter}")

    chapter = node.get("chapter")
    if chapter is None:
        self.body.append(large(uri))
    else:
        home = self.builder.get_relative_uri(self.builder.current_docname, "book/intro")
        self.body.append(
            f'<a class="here" href="{home}#a-map-of-the-model">{small(chapter)}'
            f"<span>{escape(_('You are here'))}: {escape(here(chapter))}</span></a>\n"
        )
    raise nodes.SkipNode


def skip(self, node):
    raise nodes.SkipNode


def setup(app):
    app.add_directive("model-map", ModelMap)
    app.add_node(model_map, html=(visit, None), latex=(skip, None), text=(skip, None))
    return {"version": "0.1", "parallel_read_safe": True, "parallel_write_safe": True}
