"""Measure the package beside its peers: ``python -m benchmarks [WORK ...]``.

Each work writes a file of its own, ``WORK.json``, into the folder of the results; then the tables
and the picture are made anew from all that is there.
"""

import argparse
import dataclasses
import importlib.metadata
import json
import os
import shlex
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from . import decoding, growth, package, training
from .measure import commit, machine, root
from .peers import PEERS
from .report import write
from .work import FULL, QUICK, Choice

WORKS = {
    "training": training.full_batches,
    "real_lengths": training.real_lengths,
    "memory": training.memory,
    "greedy": decoding.greedy,
    "single": decoding.single,
    "beam": decoding.beam,
    "shares": decoding.shares,
    "rows": decoding.rows,
    "leaving": decoding.leaving,
    "quality": decoding.quality,
    "growth": growth.growth,
    "imports": package.imports,
    "book": package.book,
    "notebooks": package.notebooks,
}
ASKED_FOR = ("book", "notebooks")  # which take long: measured only if they are named


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure what was asked for."""
    asked = parse(arguments)
    choice = Choice(
        scale=QUICK if asked.quick else FULL,
        peers=tuple(p for p in PEERS if not asked.peers or p.__name__ in asked.peers),
        sizes=tuple(asked.sizes),
        rounds=asked.rounds,
        threads=asked.threads,
        quiet=asked.quiet,
        folder=asked.model,
        data=asked.data,
    )
    torch.set_num_threads(choice.threads)
    asked.out.mkdir(parents=True, exist_ok=True)
    for name in asked.works or [name for name in WORKS if name not in ASKED_FOR]:
        start = time.perf_counter()
        found = WORKS[name](choice)
        record = {
            "work": name,
            "what": (WORKS[name].__doc__ or "").strip(),
            **about(choice, sys.argv[1:] if arguments is None else arguments),
            "seconds": round(time.perf_counter() - start, 1),
            **vars(found),
        }
        text = json.dumps(record, indent=1, ensure_ascii=False)
        (asked.out / f"{name}.json").write_text(text + "\n", encoding="utf-8")
        print(f"{name}: {record['seconds']:.0f} s", flush=True)
    write(asked.out)
    print((asked.out / "table.md").read_text(encoding="utf-8"))


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    peers = [peer.__name__ for peer in PEERS]
    parser = argparse.ArgumentParser("python -m benchmarks", description=__doc__)
    add = parser.add_argument
    add("works", nargs="*", metavar="WORK", help=f"of {', '.join(WORKS)}; all but the last two")
    add("--peers", nargs="+", choices=peers, metavar="PEER", help=f"of {', '.join(peers)}")
    add("--sizes", nargs="+", choices=list(FULL.models), default=list(FULL.models))
    add("--rounds", type=int, default=5, help="samples of each peer")
    add("--threads", type=int, default=2, help="of each peer")
    add("--quiet", type=float, default=0.05, help="share of the CPUs that others may use")
    add("--quick", action="store_true", help="tiny models: to see that it runs, not how fast")
    add("--model", type=Path, help="folder of a trained model, for what int8 costs in quality")
    add("--data", type=Path, help="folder of Multi30k, to score that model on")
    add("--out", type=Path, default=root() / "benchmarks/results", help="folder of the results")
    asked = parser.parse_args(arguments)
    if unknown := set(asked.works) - WORKS.keys():
        parser.error(f"there is no work {', '.join(sorted(unknown))}; there are {', '.join(WORKS)}")
    if asked.rounds < 1 or asked.threads < 1:
        parser.error("--rounds and --threads must be at least 1")
    return asked


def about(choice: Choice, arguments: Sequence[str]) -> dict[str, object]:
    """Return what must be known of a run to read its figures."""
    versions = {"python": sys.version.split()[0], "torch": torch.__version__}
    left_out = {}
    for peer in choice.peers:
        if peer.missing():
            left_out[peer.name] = f"{peer.missing()} is not installed"
        elif peer.package:
            versions[peer.package] = importlib.metadata.version(peer.package)
    return {
        "command": shlex.join(["python", "-m", "benchmarks", *map(str, arguments)]),
        "date": time.strftime("%Y-%m-%d"),
        "commit": commit(),
        "machine": machine(),
        "versions": versions,
        "left_out": left_out,
        "remarks": {p.name: p.remark for p in choice.peers if p.remark and not p.missing()},
        "threads": choice.threads,
        "environment": {k: v for k, v in os.environ.items() if k.startswith(("OMP_", "MKL_"))},
        "rounds": choice.rounds,
        "models": {name: dataclasses.asdict(config) for name, config in choice.models()},
        "quick": choice.scale is QUICK,
    }


if __name__ == "__main__":
    main()
