"""Cut a Chinese font down to the characters of the book that its other fonts lack.

``python tools/volume/chinese.py NotoSansCJK-Regular.ttc``, after `make book`, writes
``book/_static/fonts/chinese.otf``. The font is in the PyPI package noto-cjk-sans-otc. Run it again
when a test says that a character of the book has no glyph. Emoji are left to the machine's fonts.
"""

import sys
from html import unescape
from pathlib import Path
from re import DOTALL, sub

import matplotlib
import pages
from fontTools.subset import Options, Subsetter
from fontTools.ttLib import TTFont

FILE = pages.ROOT / "book/_static/fonts/chinese.otf"  # the pages on the web use it too
MATPLOTLIB = Path(matplotlib.get_data_path()) / "fonts/ttf"
SIMPLIFIED = 2  # its place among the fonts of the collection


def characters() -> set[str]:
    """Return the characters of the book, formulas and emoji aside."""
    found = set()
    for _part, name in pages.table_of_contents():
        text = (pages.HTML / f"{name}.html").read_text(encoding="utf-8")
        text = text[text.index("<article") : text.index("</article>")]
        text = sub("<[^>]*>", "", sub("<math.*?</math>", "", text, flags=DOTALL))
        found |= set(unescape(text))
    return {character for character in found if " " < character < "\U00010000"}


def lacking(*files: Path) -> set[str]:
    """Return the characters of the book that none of these fonts has."""
    held = set().union(*(TTFont(file).getBestCmap() for file in files))
    return {character for character in characters() if ord(character) not in held}


def main(source: str) -> None:
    others = [MATPLOTLIB / f"{name}.ttf" for name in ("STIXGeneral", "DejaVuSans")]
    font = TTFont(source, fontNumber=SIMPLIFIED)
    subsetter = Subsetter(Options(hinting=False, layout_features=[]))
    subsetter.populate(text="".join(lacking(*others)))
    subsetter.subset(font)
    font.save(FILE)


if __name__ == "__main__":
    main(sys.argv[1])
