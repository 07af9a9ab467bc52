"""Record a training run: score its model and keep log, choices, versions and machine.

    tools/record.py RUN NAME --command "transformer-lit train ..." --data test.tsv --moses de

writes ``recordings/NAME/``: ``log.csv``, ``config.json``, ``run.json`` if there is one, and
``record.json`` with all the rest. The weights stay where they are.
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

from transformer_lit.data import read_pairs
from transformer_lit.translation import Translator, bleu, exact_match

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


def score(translator: Translator, data: Path, beam: int, alpha: float, moses: str | None) -> dict:
    """Translate the sources of a file, and compare with its targets."""
    sources, references = map(list, zip(*read_pairs(data), strict=True))
    start = time.perf_counter()
    hypotheses = translator.translate(sources, beam=beam, alpha=alpha)
    seconds = time.perf_counter() - start
    scores = {}
    for name, language in (("bleu", None), ("bleu_moses_lower_case", moses)):
        if name == "bleu" or language:
            value, signature = bleu(hypotheses, references, moses=language)
            scores[name] = {"score": round(value, 2), "signature": signature}
    return {
        "data": data.name,
        "pairs": len(sources),
        "beam": beam,
        "alpha": alpha if beam > 1 else None,
        "exact_match": round(exact_match(hypotheses, references), 2),
        **scores,
        "seconds": round(seconds, 1),
    }


def main() -> None:
    """Read the command line, score, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("name")
    parser.add_argument("--command", required=True, help="how the run was started")
    parser.add_argument("--commit", default=commit(), help="of the code that trained")
    parser.add_argument("--note", default="", help="what else must be known")
    parser.add_argument("--data", type=Path, action="append", default=[])
    parser.add_argument("--beam", type=int, action="append")
    parser.add_argument("--alpha", type=float, default=0.6)
    parser.add_argument("--moses")
    asked = parser.parse_args()

    folder = ROOT / "recordings" / asked.name
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("log.csv", "config.json", "run.json"):
        if (asked.run / name).exists():
            shutil.copy(asked.run / name, folder / name)
    with (folder / "log.csv").open() as file:
        last = list(csv.DictReader(file))[-1]
    translator = Translator.load(asked.run)
    record = {
        "command": asked.command,
        "commit": asked.commit,
        "date": time.strftime("%Y-%m-%d"),
        "note": asked.note,
        "parameters": sum(p.numel() for p in translator.model.parameters()),
        "steps": int(last["step"]),
        "seconds": round(float(last["seconds"])),
        "machine": {"processor": processor(), "cores": os.cpu_count(), "system": platform.system()},
        "versions": {"python": platform.python_version()}
        | {name: importlib.metadata.version(name) for name in PACKAGES},
        "threads": torch.get_num_threads(),
        "scores": [
            score(translator, data, beam, asked.alpha, asked.moses)
            for data in asked.data
            for beam in asked.beam or (1, 5)
        ],
    }
    text = json.dumps(record, indent=2, ensure_ascii=False)
    (folder / "record.json").write_text(text + "\n", encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
