"""Record a training run: score its model and keep log, choices, versions and machine.

    tools/record.py RUN NAME --command "transformer-lit train ..." --data test.tsv --moses de

writes ``recordings/NAME/``: ``log.csv``, ``config.json``, ``run.json`` if there is one, and
``record.json`` with all the rest. The weights stay where they are, but with ``--ship FOLDER`` a
copy in half precision is written there, and it is this copy that is scored.
"""

import argparse
import csv
import importlib.metadata
import json
import os
import platform
import re
import shutil
import subprocess
import time
from pathlib import Path

import torch
from safetensors.torch import load_file
from safetensors.torch import save as serialize

from transformer_lit.data import date_pairs, read_pairs
from transformer_lit.translation import Translator, bleu, by_length, exact_match, sentence_bleu

ROOT = Path(__file__).parent.parent
PACKAGES = ("torch", "tokenizers", "sacrebleu", "sacremoses", "numpy")


def processor() -> str:
    """Return the name of the processor."""
    info = Path("/proc/cpuinfo")
    names = re.findall(r"model name\s*:\s*(.+)", info.read_text()) if info.exists() else []
    return names[0] if names else platform.processor()


def commit() -> str:
    """Return the commit of this copy, marked if it has changes."""
    command = ["git", "-C", str(ROOT), "describe", "--always", "--abbrev=12", "--dirty"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def machine() -> dict:
    """Describe the machine."""
    return {"processor": processor(), "cores": os.cpu_count(), "system": platform.system()}


def versions() -> dict:
    """Return the versions of all that decides what is computed."""
    own = {name: importlib.metadata.version(name) for name in PACKAGES}
    return {"python": platform.python_version()} | own


def ship(run: Path, folder: Path) -> None:
    """Copy a model, with weights in half precision, into a folder that need not be there."""
    folder.mkdir(parents=True, exist_ok=True)
    weights = load_file(run / "model.safetensors")
    half = serialize({name: weight.half() for name, weight in weights.items()})
    (folder / "model.safetensors").write_bytes(half)
    for path in (run / "config.json", *run.glob("tokenizer*.json")):
        shutil.copy(path, folder / path.name)


def score(
    translator: Translator,
    name: str,
    pairs: list[tuple[str, str]],
    beam: int,
    alpha: float,
    moses: str | None,
    tokenize: str | None,
    lines: int,
) -> dict:
    """Translate the sources, and compare with the targets."""
    sources, references = map(list, zip(*pairs, strict=True))
    start = time.perf_counter()
    hypotheses = translator.translate(sources, beam=beam, alpha=alpha)
    seconds = time.perf_counter() - start
    scores = {}
    for key, language in (("bleu", None), ("bleu_moses_lower_case", moses)):
        if key == "bleu" or language:
            cut = None if language else tokenize
            value, signature = bleu(hypotheses, references, moses=language, tokenize=cut)
            scores[key] = {"score": round(value, 2), "signature": signature}
    lengths = {}
    for bucket, numbers in by_length(sources).items():
        own, right = [hypotheses[i] for i in numbers], [references[i] for i in numbers]
        lengths[bucket] = {
            "pairs": len(numbers),
            "bleu": round(bleu(own, right, tokenize=tokenize)[0], 2),
            "exact_match": round(exact_match(own, right), 2),
            # characters of all translations, for each character of the references
            "length_ratio": round(sum(map(len, own)) / sum(map(len, right)), 3),
        }
    return {
        "data": name,
        "pairs": len(sources),
        "beam": beam,
        "alpha": alpha if beam > 1 else None,
        "exact_match": round(exact_match(hypotheses, references), 2),
        **scores,
        "seconds": round(seconds, 1),
        "by_source_words": lengths,
        "lines": ranked(sources, hypotheses, references, lines),
    }


def ranked(sources: list, hypotheses: list, references: list, lines: int) -> list[dict]:
    """Return so many lines at even ranks of sentence BLEU: none is chosen by hand.

    Of n lines, line i stands at the rank (i + 1/2) / n from below; of equals, the first in the
    file comes first.
    """
    values = sentence_bleu(hypotheses, references)
    order = sorted(range(len(values)), key=lambda i: values[i])
    return [
        {
            "rank": round((i + 0.5) / lines, 4),
            "line": j + 1,
            "sentence_bleu": round(values[j], 1),
            "source": sources[j],
            "translation": hypotheses[j],
            "reference": references[j],
        }
        for i in range(lines)
        for j in [order[int((i + 0.5) / lines * len(order))]]
    ]


def main() -> None:
    """Read the command line, score, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("name")
    parser.add_argument("--command", required=True, help="how the run was started")
    parser.add_argument("--commit", help="of the code that trained; by default of this copy")
    parser.add_argument("--note", default="", help="what else must be known")
    parser.add_argument("--data", type=Path, action="append", default=[])
    parser.add_argument("--beam", type=int, action="append")
    parser.add_argument("--alpha", type=float, action="append", help="of the beams; 0.6 by default")
    parser.add_argument("--moses")
    parser.add_argument("--tokenize", help="as in `transformer_lit.translation.bleu`")
    parser.add_argument("--dates", type=int, default=0, help="score on so many test dates")
    parser.add_argument("--lines", type=int, default=10, help="translations to quote")
    parser.add_argument("--ship", type=Path, help="folder for a copy in half precision")
    asked = parser.parse_args()

    folder = ROOT / "recordings" / asked.name
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("log.csv", "config.json", "run.json"):
        if name != "run.json" or (asked.run / name).exists():
            shutil.copy(asked.run / name, folder / name)
    with (asked.run / "log.csv").open() as file:
        last = list(csv.DictReader(file))[-1]
    if asked.ship:
        ship(asked.run, asked.ship)
    translator = Translator.load(asked.ship or asked.run)
    tests = {data.name: read_pairs(data) for data in asked.data}
    if asked.dates:
        tests["test dates"] = date_pairs(asked.dates, split="test")
    record = {
        "command": asked.command,
        "commit": asked.commit or commit(),
        "date": time.strftime("%Y-%m-%d"),
        "note": asked.note,
        "parameters": sum(p.numel() for p in translator.model.parameters()),
        "steps": int(last["step"]),
        "seconds": round(float(last["seconds"])),
        "machine": machine(),
        "versions": versions(),
        "threads": torch.get_num_threads(),
        "scores": [
            score(translator, name, pairs, beam, alpha, asked.moses, asked.tokenize, asked.lines)
            for name, pairs in tests.items()
            for beam in asked.beam or (1, 5)
            for alpha in (asked.alpha or (0.6,) if beam > 1 else (0.0,))
        ],
    }
    text = json.dumps(record, indent=2, ensure_ascii=False)
    (folder / "record.json").write_text(text + "\n", encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
