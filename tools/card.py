"""Draw the picture that is shown where somebody shares a link to the book.

``python tools/card.py`` writes ``book/_static/card.png``, with the map of the model and the colours
of the book, by means of Chromium. Run it again when either has changed.
"""

import shutil
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "book/_ext"))
import model_map  # noqa: E402

PAGE = """<!doctype html><html data-theme="light"><meta charset="utf-8"><style>{css}
html {{ --pst-color-background: #fff; }}
body {{ margin: 0; width: 1200px; height: 630px; display: grid;
  grid-template-columns: 1fr 430px; align-items: center; background: #fff; color: #1f2a37;
  font-family: "DejaVu Sans", sans-serif; overflow: hidden; }}
div {{ padding-left: 72px; }}
h1 {{ font-size: 66px; line-height: 1.12; margin: 0 0 26px; letter-spacing: -1.5px; }}
p {{ font-size: 29px; line-height: 1.4; margin: 0; color: #4b5563; max-width: 560px; }}
img {{ width: 84px; margin-bottom: 30px; }}
svg.model-map {{ height: 600px; width: auto; }} .hint {{ display: none; }}
</style><div><img src="{icon}" alt=""><h1>The Literate Transformer</h1>
<p>Attention from its formulas: a book whose chapters are programs.</p></div>{map}</html>"""


def main() -> None:
    static = ROOT / "book/_static"
    page = PAGE.format(
        css=(static / "css/book.css").read_text(encoding="utf-8"),
        icon=(static / "favicon.svg").as_uri(),
        map=model_map.large(lambda chapter: "#"),
    )
    draft = ROOT / "_build/card.html"
    draft.parent.mkdir(exist_ok=True)
    draft.write_text(page, encoding="utf-8")
    with sync_playwright() as p:
        chromium = shutil.which("chromium") or shutil.which("google-chrome")
        browser = p.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        tab = browser.new_page(viewport={"width": 1200, "height": 630})
        tab.goto(draft.as_uri())
        tab.screenshot(path=static / "card.png")
        browser.close()
    draft.unlink()


if __name__ == "__main__":
    main()
