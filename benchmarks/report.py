"""What was found, as tables and as a picture: ``python -m benchmarks.report`` makes them anew."""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from transformer_lit.figures import use_style

Record = dict[str, Any]

# What each work is compared with: the peer whose bar is 1.
REFERENCES = {
    "training": "nn.Transformer",
    "real_lengths": "nn.Transformer",
    "memory": "nn.Transformer",
    "greedy": "CTranslate2",
    "single": "CTranslate2",
    "beam": "CTranslate2",
    "leaving": "all stay to the end",
}
TITLES = {
    "training": "A training step on full batches",
    "real_lengths": "A training step on real lengths",
    "memory": "Memory of a training step",
    "greedy": "Greedy decoding of a batch",
    "single": "Greedy decoding of one sentence",
    "beam": "Decoding with a beam of 4",
    "shares": "Where the time of greedy decoding goes",
    "rows": "The products of a step",
    "leaving": "Sentences of mixed lengths",
    "quality": "What int8 costs in quality",
    "growth": "How the time grows",
    "imports": "Importing the package",
    "book": "Building the book",
    "notebooks": "Running the notebooks",
}
DRAWN = ("training", "greedy", "beam", "single")


def load(folder: Path) -> dict[str, Record]:
    """Read the results that are there, by work, in the order in which they are reported."""
    paths = {name: folder / f"{name}.json" for name in TITLES}
    return {
        name: json.loads(path.read_text(encoding="utf-8"))
        for name, path in paths.items()
        if path.is_file()
    }


def marks(records: dict[str, Record]) -> str:
    """Return a table of all marks; a work that was not measured says so."""
    lines = ["| work | compared | mark | measured | |", "| --- | --- | --- | --- | --- |"]
    for name, title in TITLES.items():
        if name not in records:
            lines.append(f"| {title} | | | not recorded yet | |")
        for i, mark in enumerate(records.get(name, {}).get("marks", [])):
            cells = ("" if i else title, *(mark[k] for k in ("what", "wanted", "value", "verdict")))
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def table(record: Record) -> str:
    """Return the rows of a work: a line for each peer, a column for each setting.

    A cell has the multiple of the peer that it is compared with, and in brackets what was measured,
    the median and from the least to the most.
    """
    rows = {(row["peer"], row["setting"]): row for row in record["rows"]}
    peers, settings = (list(dict.fromkeys(key[i] for key in rows)) for i in (0, 1))
    lines = [f"| | {' | '.join(settings)} |", "| --- |" + " --- |" * len(settings)]
    reference = REFERENCES.get(record["work"], "")
    for peer in peers:
        cells = [cell(rows.get((peer, s)), rows.get((reference, s))) for s in settings]
        lines.append(f"| {peer} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def cell(row: Record | None, reference: Record | None) -> str:
    """Return what a cell of `table` says."""
    if row is None:
        return ""
    measured = f"{number(row['median'])} {row['unit']}"
    if row["samples"] > 1:
        measured += f", {number(row['min'])} to {number(row['max'])}"
    if reference is None or reference["unit"] != row["unit"]:
        return measured
    return f"{row['median'] / reference['median']:.2f} ({measured})"


def number(x: float) -> str:
    """Write a number with three digits at least."""
    return f"{x:,.0f}" if x >= 100 else f"{x:.3g}"


def growth(record: Record) -> str:
    """Return a table of the fitted exponents."""
    lines = [
        "| axis | | values | exponent | between the last two |",
        "| --- | --- | --- | --- | --- |",
    ]
    for fit in record["fits"]:
        span = f"{fit['x'][0]} to {fit['x'][-1]}"
        powers = f"{fit['exponent']:.2f} | {fit['last_exponent']:.2f}"
        lines.append(f"| {fit['axis']} | {fit['peer']} | {span} | {powers} |")
    return "\n".join(lines) + "\n"


def circumstances(record: Record) -> str:
    """Say on what machine and with which versions a work was measured."""
    m = record["machine"]
    parts = [
        f"{m['processor']} ({m['instructions']}), {m['cpus']} CPUs, {record['threads']} threads",
        ", ".join(f"{name} {version}" for name, version in record["versions"].items()),
    ]
    parts += [f"{name}={value}" for name, value in record["environment"].items()]
    if record["left_out"]:
        parts.append(f"without {', '.join(record['left_out'])}, which were not installed")
    return "; ".join(parts)


def occasion(record: Record) -> str:
    """Say when a work was measured, how often, and what else was running."""
    loads = [row["other_load"] for row in record["rows"] if "other_load" in row]
    parts = [record["date"], f"commit {record['commit'] or 'unknown'}"]
    if loads:
        parts += [f"{record['rounds']} rounds", f"other load at most {max(loads):.0%}"]
    if record["quick"]:
        parts.append("**a trial with tiny models, whose figures say nothing**")
    return "; ".join(parts)


def differences(records: dict[str, Record]) -> dict[str, float]:
    """Return by how much the logits of each peer differ from those of the model, at most."""
    most: dict[str, float] = {}
    for record in records.values():
        for found in record["differences"].values():
            for peer, difference in found.items():
                most[peer] = max(difference, most.get(peer, 0.0))
    return most


def remarks(records: dict[str, Record]) -> list[str]:
    """Return what is not the same in the peers, a line each."""
    every: dict[str, str] = {}
    for record in records.values():
        every |= record["remarks"]
    return [f"- {name}: {remark}" for name, remark in every.items()]


def works(records: dict[str, Record], title: str = "**{}**") -> str:
    """Return a table for each work, below a title and where and how it was measured."""
    parts, where = [], ""
    for name, record in records.items():
        parts.append(title.format(TITLES[name]) + "\n")
        if circumstances(record) != where:  # said again only where it is another
            where = circumstances(record)
            parts.append(f"{where}.\n")
        parts.append(f"{record['what']} {occasion(record)}.\n")
        parts.append(growth(record) if record["fits"] else table(record))
    return "\n".join(parts)


def page(records: dict[str, Record]) -> str:
    """Return all of it as Markdown."""
    far = ", ".join(f"{peer} {x:.1e}" for peer, x in differences(records).items())
    parts = ["# What was measured\n", "## Marks\n", marks(records)]
    parts.append(f"Logits differ from those of the model, at most: {far or 'not recorded yet'}.\n")
    parts += ["\n".join(remarks(records)) + "\n", works(records, "## {}")]
    return "\n".join(parts)


def picture(records: dict[str, Record]) -> Figure | None:
    """Draw the multiples of each peer as bars; None if nothing to draw was measured."""
    panels = [
        (name, setting, bars)
        for name in DRAWN
        if name in records
        for setting, bars in multiples(records[name])
    ]
    if not panels:
        return None
    lines = [panels[i : i + 2] for i in range(0, len(panels), 2)]
    heights = [0.8 + 0.22 * max(len(bars) for *_, bars in line) for line in lines]
    figure, axes = plt.subplots(
        len(lines), 2, figsize=(9, sum(heights)), height_ratios=heights, squeeze=False
    )
    for ax in axes.flat[len(panels) :]:
        ax.set_visible(False)
    for ax, (name, setting, bars) in zip(axes.flat, panels, strict=False):
        draw(ax, bars)
        ax.set_title(f"{TITLES[name]}: {setting}", fontsize=9)
        ax.set_xlabel(f"times {REFERENCES[name]}", fontsize=8)
    return figure


def multiples(record: Record) -> list[tuple[str, dict[str, tuple[float, float, float]]]]:
    """Return the multiples of each peer in each setting: the median, the least and the most."""
    found = []
    for setting in dict.fromkeys(row["setting"] for row in record["rows"]):
        rows = {row["peer"]: row for row in record["rows"] if row["setting"] == setting}
        one = rows.get(REFERENCES[record["work"]])
        if one:
            bars = {
                peer: tuple(row[k] / one["median"] for k in ("median", "min", "max"))
                for peer, row in rows.items()
                if row["unit"] == one["unit"]
            }
            found.append((setting, bars))
    return found


def draw(ax: Any, bars: dict[str, tuple[float, float, float]]) -> None:
    """Draw a bar for each peer, with a line from the least to the most; ours in another colour."""
    bars = dict(sorted(bars.items(), key=lambda item: item[1][0]))
    middle, least, most = zip(*bars.values(), strict=True)
    colours = ["C0" if name.startswith("transformer_lit") else "#BBBBBB" for name in bars]
    errors = [[m - a for m, a in zip(middle, least, strict=True)]]
    errors += [[b - m for m, b in zip(middle, most, strict=True)]]
    places = range(len(bars))
    ax.barh(places, middle, color=colours, xerr=errors, ecolor="#222222", error_kw={"lw": 1})
    ax.set_yticks(places, list(bars), fontsize=8)
    ax.axvline(1, color="#222222", lw=1, ls=":")
    for y, (m, b) in enumerate(zip(middle, most, strict=True)):
        text = ax.text(max(m, b) + 0.02 * max(most), y, f"{m:.2f}", va="center", fontsize=8)
        text.set_bbox({"facecolor": "white", "edgecolor": "none", "pad": 0.5})
    ax.set_xlim(0, 1.15 * max(most))
    ax.grid(axis="y", visible=False)


def write(folder: Path) -> None:
    """Write the tables and the picture of the results in a folder beside them."""
    records = load(folder)
    (folder / "table.md").write_text(page(records), encoding="utf-8")
    # what is drawn later keeps its own style; the salt makes equal pictures equal files
    with plt.rc_context({"svg.hashsalt": "benchmarks"}):
        use_style()
        figure = picture(records)
        if figure:
            figure.savefig(folder / "picture.svg", metadata={"Date": None})
            plt.close(figure)


def main(arguments: Sequence[str] | None = None) -> None:
    """Make tables and picture anew, and print the tables."""
    parser = argparse.ArgumentParser("python -m benchmarks.report", description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, default=Path(__file__).parent / "results")
    folder = parser.parse_args(arguments).folder
    write(folder)
    print((folder / "table.md").read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
