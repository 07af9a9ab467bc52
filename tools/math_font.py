"""Cut the font for formulas down to what the book uses.

Run once: ``python tools/math_font.py STIXTwoMath-Regular.ttf`` writes
``book/_static/fonts/STIXTwoMath.woff2``. The font is in the PyPI package ziamath; fontTools and
brotli must be installed. Kept are letters, Greek, the alphabets of formulas, operators and all
sizes of the brackets.

Browsers reserve for a root the width of its widest sign. In this font a large root sign is half as
wide again as a small one, which would leave a gap after each small root; so all get the same width,
as in Knuth's fonts.
"""

import sys
from pathlib import Path

from fontTools.subset import Options, Subsetter
from fontTools.ttLib import TTFont

TARGET = Path(__file__).resolve().parent.parent / "book/_static/fonts/STIXTwoMath.woff2"
KEPT = """20-7E A0 AC AF B1 B7 D7 F7 131 237 2C6 2C7 2D8-2DC 300-304 308 391-3A9 3B1-3C9 3D1 3D5 3F1
3F5 2010-2016 2026 2032-2034 2061-2064 2102 210E 211D 2115 2124 2190-2194 21A6 21D0-21D4 2200-220F
2210-221E 2220-2223 2225-222B 2236 223C 2243 2245 2248 2260 2261 2264 2265 226A 226B 2282-2287
2295-2299 22A2 22A4 22A5 22C5 22C6 22EE-22F1 2308-230B 239B-23B3 23DC-23DF 27E8 27E9 1D400-1D467
1D49C-1D4CF 1D6A4 1D6A5 1D6E2-1D71B"""


def equal_roots(font: TTFont) -> None:
    """Give all sizes of the root sign the width of the smallest."""
    variants = font["MATH"].table.MathVariants
    root = font.getBestCmap()[0x221A]
    sizes = variants.VertGlyphConstruction[variants.VertGlyphCoverage.glyphs.index(root)]
    width = font["hmtx"][root][0]
    names = {record.VariantGlyph for record in sizes.MathGlyphVariantRecord}
    names |= {part.glyph for part in sizes.GlyphAssembly.PartRecords}
    for name in names:
        advance, bearing = font["hmtx"][name]
        glyph = font["glyf"][name]
        glyph.coordinates.scale((width / advance, 1))
        glyph.coordinates.toInt()
        glyph.recalcBounds(font["glyf"])
        font["hmtx"][name] = (width, glyph.xMin)


def main(source: str) -> None:
    font = TTFont(source)
    options = Options(layout_features=["ssty", "dtls", "ss04"], hinting=False, flavor="woff2")
    subsetter = Subsetter(options)
    ends = (span.split("-") for span in KEPT.split())
    codes = [code for e in ends for code in range(int(e[0], 16), int(e[-1], 16) + 1)]
    subsetter.populate(unicodes=codes)
    subsetter.subset(font)
    equal_roots(font)
    font.flavor = "woff2"
    font.save(TARGET)


if __name__ == "__main__":
    main(sys.argv[1])
