"""Measure what each head, layer and branch of a trained model is worth, in BLEU.

    tools/ablate.py RUN DATA NAME --pairs 200 --moses de

translates the first ``--pairs`` sentences of a file greedily, with the whole model and with one
part silenced at a time, and writes ``recordings/NAME/ablation.json`` and ``.csv`` after each
measurement. Started again with the same choices, it goes on where it stopped. Last, it silences the
heads together, in the order of what each costs alone (``--together``: how many at most).
"""

import argparse
import csv
import json
import time
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from record import ROOT, commit, machine, versions

from transformer_lit.data import read_pairs
from transformer_lit.inside import all_heads, as_batch, head_means, without_heads, without_parts
from transformer_lit.training import written_beside
from transformer_lit.translation import Translator, bleu


def write(folder: Path, record: dict[str, Any]) -> None:
    """Write the record, and its measurements as a table; each file whole."""
    with written_beside(folder / "ablation.json") as path:
        path.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    rows = [("whole model", "", record["whole"])]
    rows += [(part, "skipped or cut", score) for part, score in record["parts"].items()]
    rows += [(h, put, score) for h, each in record["heads"].items() for put, score in each.items()]
    rows += [(f"{n} heads", "zero", score) for n, score in record["together"].items()]
    with (
        written_beside(folder / "ablation.csv") as path,
        path.open("w", newline="", encoding="utf-8") as file,
    ):
        writer = csv.writer(file)
        writer.writerow(["without", "in its place", "bleu", "change"])
        writer.writerows((*row, round(row[-1] - record["whole"], 2)) for row in rows)


def parts_of(translator: Translator) -> list[str]:
    """Return the names of all layers and of their branches."""
    model = translator.model
    names = []
    for stack in ("encoder", "decoder"):
        for i, layer in enumerate(model.get_submodule(f"{stack}.layers").children()):
            branches = [n for n, _ in layer.named_children() if not n.startswith("residual")]
            names += [f"{stack}.layers.{i}", *(f"{stack}.layers.{i}.{n}" for n in branches)]
    return names


def main() -> None:
    """Read the command line, measure, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path, help="folder of a trained model")
    parser.add_argument("data", type=Path, help="sentence pairs, as tools/record.py takes them")
    parser.add_argument("name", help="of the folder in recordings/")
    parser.add_argument("--pairs", type=int, default=200)
    parser.add_argument("--moses", help="the target's language: lower case, cut by Moses")
    parser.add_argument("--means", action="store_true", help="also put each head's mean")
    parser.add_argument("--together", type=int, default=12)
    parser.add_argument("--out", type=Path, default=ROOT / "recordings")
    asked = parser.parse_args()

    translator = Translator.load(asked.run)
    pairs = [pair for pair in read_pairs(asked.data) if all(pair)][: asked.pairs]
    sources, references = map(list, zip(*pairs, strict=True))
    folder = asked.out / asked.name
    folder.mkdir(parents=True, exist_ok=True)
    choices = {
        "name": asked.name,
        "run": asked.run.name,
        "data": asked.data.name,
        "pairs": len(pairs),
        "search": "greedy",
        "moses": asked.moses,
    }
    record: dict[str, Any] = {**choices, "heads": {}, "parts": {}, "together": {}}
    old = folder / "ablation.json"
    if old.exists():
        record = json.loads(old.read_text(encoding="utf-8"))
        other = {k: record.get(k) for k in choices if record.get(k) != choices[k]}
        if other:
            raise SystemExit(f"{old} was begun with other choices, {other}: give another NAME")
    record |= {"commit": commit(), "machine": machine(), "versions": versions()}

    def score(context: AbstractContextManager[None] | None, name: str) -> float:
        start = time.perf_counter()
        if context is None:
            hypotheses = translator.translate(sources)
        else:
            with context:
                hypotheses = translator.translate(sources)
        value, record["signature"] = bleu(hypotheses, references, moses=asked.moses)
        print(f"{name:44}{value:7.2f}   {time.perf_counter() - start:.1f} s", flush=True)
        return round(value, 2)

    model = translator.model
    if "whole" not in record:
        record["whole"] = score(None, "whole model")
        write(folder, record)
    for part in parts_of(translator):
        if part not in record["parts"]:
            record["parts"][part] = score(without_parts(model, {part}), f"without {part}")
            write(folder, record)
    places = {"zero": None}
    if asked.means:  # of the same sentences: no references are used, but as what is read
        places["mean"] = head_means(model, as_batch(translator, pairs))
    for head in all_heads(model):
        own = record["heads"].setdefault(f"{head[0]}.{head[1]}", {})
        for instead, means in places.items():
            if instead not in own:
                context = without_heads(model, {head}, means)
                own[instead] = score(context, f"without {head[0]}.{head[1]}, {instead}")
                write(folder, record)
    order = sorted(all_heads(model), key=lambda h: -record["heads"][f"{h[0]}.{h[1]}"]["zero"])
    for n in range(2, 1 + min(asked.together, len(order))):
        if str(n) not in record["together"]:
            record["together"][str(n)] = score(
                without_heads(model, order[:n]), f"without {n} heads"
            )
            write(folder, record)


if __name__ == "__main__":
    main()
