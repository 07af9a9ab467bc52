"""Write a file of pairs once more, both sides in lower case and cut by Moses.

    tools/moses.py train.en-de.tsv train.lower.en-de.tsv en de

Papers on Multi30k train on such text, and score in it. In it a comma stands alone between two
spaces, and BLEU by words needs no tokeniser of its own.
"""

import argparse
from pathlib import Path

from transformer_lit.data import read_pairs
from transformer_lit.translation import moses_tokens


def main() -> None:
    """Read the command line, and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("pairs", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("languages", nargs=2, help="of the two sides: en de")
    asked = parser.parse_args()

    sides = zip(*read_pairs(asked.pairs), strict=True)
    cut = [moses_tokens(side, code) for side, code in zip(sides, asked.languages, strict=True)]
    lines = [f"{source}\t{target}\n" for source, target in zip(*cut, strict=True)]
    asked.out.write_text("".join(lines), encoding="utf-8", newline="\n")
    print(f"{asked.out}: {len(lines)} pairs")


if __name__ == "__main__":
    main()
