"""Measure what chapter 9 tells of a text that may not be passed on: its tokens and its padding.

    tools/text.py multi30k_text train.en-de.tsv test_2016_flickr.en-de.tsv

writes ``recordings/NAME.json``.
"""

import argparse
import json
import time
from pathlib import Path

from record import ROOT, commit, machine, versions

from transformer_lit.data import Pair, TokenBatches, Tokenizer, read_pairs

VOCABULARY = 10_000  # of both languages together
BATCHES = (1024, 8192)  # tokens on the longer side


class Snake(TokenBatches):
    """Batches sorted by the target, and among equal targets up and down by the source."""

    def plan(self, epoch: int) -> list[list[int]]:
        """Cut all pairs into batches."""
        lengths = [(len(s), len(t)) for s, t in zip(self.src, self.tgt, strict=True)]
        snake = [(tgt, src if tgt % 2 else -src) for src, tgt in lengths]
        batches: list[list[int]] = [[]]
        widest = 0
        for i in sorted(range(len(self)), key=snake.__getitem__):
            widest = max(widest, self.length(i))
            if (len(batches[-1]) + 1) * widest > self.max_tokens:
                batches.append([])
                widest = self.length(i)
            batches[-1].append(i)
        return batches


def tokens(train: list[Pair], test: list[Pair]) -> dict:
    """Return how many tokens a test sentence needs, with one vocabulary and with two."""
    sides = [[pair[side] for pair in train] for side in (0, 1)]
    joint = Tokenizer.train(sides[0] + sides[1], VOCABULARY)
    two = [Tokenizer.train(side, VOCABULARY // 2) for side in sides]
    seen = [{i for ids in joint.encode_batch(side) for i in ids} for side in sides]
    found: dict = {"pieces in both languages": len(seen[0] & seen[1])}
    for name, own in (("joint", [joint, joint]), ("separate", two)):
        lengths = (sum(map(len, own[i].encode_batch([p[i] for p in test]))) for i in (0, 1))
        found[name] = [round(length / len(test), 2) for length in lengths]
    return found


def paddings(train: list[Pair]) -> dict[str, dict[str, float]]:
    """Return the share of padding, for each size of batch and both orders."""
    joint = Tokenizer.train((text for pair in train for text in pair), VOCABULARY)
    kinds = {"longer side": TokenBatches, "snake": Snake}
    return {
        str(size): {
            order: round(kind(train, joint, size).padding(), 4) for order, kind in kinds.items()
        }
        for size in BATCHES
    }


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name")
    parser.add_argument("train", type=Path)
    parser.add_argument("test", type=Path)
    asked = parser.parse_args()
    train, test = read_pairs(asked.train), read_pairs(asked.test)
    record = {
        "command": f"tools/text.py {asked.name} {asked.train.name} {asked.test.name}",
        "commit": commit(),
        "date": time.strftime("%Y-%m-%d"),
        "machine": machine(),
        "versions": versions(),
        "tokens of a test sentence": tokens(train, test),
        "padding, by tokens of a batch": paddings(train),
    }
    path = ROOT / f"recordings/{asked.name}.json"
    path.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(path.read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
