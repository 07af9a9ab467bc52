"""The cover: what the model of the book looks at while it writes a date, drawn by Matplotlib."""

import io

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402
from matplotlib.colors import LinearSegmentedColormap  # noqa: E402

from transformer_lit.figures import use_style  # noqa: E402
from transformer_lit.inside import attention_maps  # noqa: E402
from transformer_lit.translation import Translator  # noqa: E402

DATE = "Saturday, November 28, 2026"
GROUND, CELL, INK, PALE, AMBER = "#16324d", "#1e4263", "#ffffff", "#cfdbe6", "#ffb000"
A4 = 210 / 25.4, 297 / 25.4  # in inches


def draw(title: str, subtitle: str, author: str, kind: str) -> bytes:
    """Return the cover as ``svg`` or ``png``."""
    use_style()
    with plt.rc_context({"figure.constrained_layout.use": False}):
        figure = plt.figure(figsize=A4, facecolor=GROUND)
        left = {"x": 0.11, "va": "top", "color": INK, "family": "DejaVu Sans"}
        name = title.replace(" ", "\n")
        figure.text(y=0.93, s=name, size=48, weight="bold", linespacing=1.12, **left)
        figure.text(y=0.712, s=subtitle, size=14.5, **(left | {"color": PALE}))
        figure.text(y=0.075, s=author, size=14, **left)
        draw_weights(figure.add_axes((0.215, 0.12, 0.675, 0.465)))
        file = io.BytesIO()
        figure.savefig(file, format=kind, dpi=150, facecolor=GROUND, bbox_inches=None)
        plt.close(figure)
    return file.getvalue()


def draw_weights(axes) -> None:
    """Draw the cross-attention of the last layer: the mean of its heads, the end left out."""
    maps = attention_maps(Translator.dates(), [DATE])["cross"]
    weights = maps.weights[0, -1].mean(0)[:-1, :-1]
    read, written = maps.keys[0][:-1], maps.queries[0][:-1]
    shades = LinearSegmentedColormap.from_list("cover", [CELL, AMBER])
    axes.imshow(weights, cmap=shades, vmin=0, vmax=weights.max(), aspect="auto")
    axes.set_xticks(range(len(read)), [token.strip("␣") for token in read], ha="left")
    axes.set_yticks(range(len(written)), written)
    axes.tick_params(length=0, labelsize=14, labelcolor=INK, pad=7)
    axes.tick_params(axis="x", labeltop=True, labelbottom=False, rotation=45)
    # the cells stand apart
    axes.set_xticks([n + 0.5 for n in range(len(read) - 1)], minor=True)
    axes.set_yticks([n + 0.5 for n in range(len(written) - 1)], minor=True)
    axes.tick_params(which="minor", length=0)
    axes.grid(visible=False)
    axes.grid(which="minor", color=GROUND, linewidth=3)
    axes.spines[:].set_visible(False)
