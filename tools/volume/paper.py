"""The PDF: all pages in one HTML file, which Chromium prints.

It is printed twice. The first time tells on which sheet the target of each link comes to stand; the
second time these numbers stand in the contents and beside the links to the answers.
"""

import html
import os
import shutil
import sys
from pathlib import Path

import cover
import matplotlib
import pages
import pikepdf
from bs4 import Tag
from playwright.sync_api import Browser, Error, Page, Playwright, sync_playwright

HERE = Path(__file__).resolve().parent
FOLDER = pages.ROOT / "_build/pdf"
NAMES = ("chromium", "google-chrome", "chromium-browser", "google-chrome-stable")
FLAGS = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
NO_BROWSER = f"""make: no Chromium to print the PDF with ({", ".join(NAMES)}: none is on the PATH).
Install one (on Debian and Ubuntu: apt install chromium), or let playwright bring its own:
.venv/bin/playwright install chromium. The EPUB needs none: make epub."""
# Matplotlib's fonts, and for Chinese the one beside this file: the same on every machine.
FONTS = {
    "Book": ("STIXGeneral", "STIXGeneralBol", "STIXGeneralItalic", "STIXGeneralBolIta"),
    "Book Sans": ("DejaVuSans", "DejaVuSans-Bold", "DejaVuSans-Oblique"),
    "Book Mono": ("DejaVuSansMono", "DejaVuSansMono-Bold", "DejaVuSansMono-Oblique"),
}
STYLES = ("400 normal", "700 normal", "400 italic", "700 italic")


def bind(volume: list[pages.Page], about: dict[str, str], file: Path) -> str:
    """Write the PDF; return how much is in it."""
    draft = FOLDER / "book.html"
    with sync_playwright() as p:
        browser = start(p)
        draft.parent.mkdir(parents=True, exist_ok=True)
        draft.write_text(compose(volume, about), encoding="utf-8")
        tab = browser.new_page()
        tab.set_default_timeout(300_000)
        tab.goto(draft.as_uri())
        numbers = print_once(tab, {}, file)
        if print_once(tab, numbers, file) != numbers:
            raise RuntimeError("the page numbers in the contents moved what they point at")
        browser.close()
    return finish(file, about)


def start(p: Playwright) -> Browser:
    program = next(filter(None, map(shutil.which, NAMES)), None)
    try:
        return p.chromium.launch(executable_path=program, args=FLAGS)
    except Error as error:
        sys.exit(NO_BROWSER if "Executable doesn't exist" in str(error) else str(error))


def print_once(tab: Page, numbers: dict[str, int], file: Path) -> dict[str, int]:
    """Print with these page numbers; return those that came out, of all targets of links."""
    tab.evaluate(
        """numbers => {
          for (const e of document.querySelectorAll("[data-page]"))
            e.textContent = numbers[e.dataset.page] ?? "000";
        }""",
        numbers,
    )
    final = bool(numbers)
    tab.pdf(
        path=file, prefer_css_page_size=True, print_background=True, outline=final, tagged=final
    )
    with pikepdf.open(file) as pdf:
        sheets = {page.objgen: n for n, page in enumerate(pdf.pages, 1)}
        return {name[1:]: sheets[place[0].objgen] for name, place in pdf.Root.Dests.items()}


def finish(file: Path, about: dict[str, str]) -> str:
    """Say in the file who wrote it and what it is about, and pack it well."""
    with pikepdf.open(file, allow_overwriting_input=True) as pdf:
        with pdf.open_metadata() as said:
            said["dc:title"], said["dc:creator"] = about["title"], [about["author"]]
            said["dc:description"], said["dc:language"] = about["subtitle"], {about["language"]}
            said["xmp:CreatorTool"] = about["web"]
        pdf.Root.PageMode = pikepdf.Name.UseOutlines
        pdf.save(file, object_stream_mode=pikepdf.ObjectStreamMode.generate)
        return f"{len(pdf.pages)} pages"


def compose(volume: list[pages.Page], about: dict[str, str]) -> str:
    """Return the whole book as one page of HTML."""
    static = os.path.relpath(pages.HTML / "_static", FOLDER)
    images = os.path.relpath(pages.HTML / "_images", FOLDER)
    sheets = [f"{static}/pygments.css", f"{static}/css/book.css", (HERE / "paper.css").as_uri()]
    links = "".join(f'<link rel="stylesheet" href="{sheet}">' for sheet in sheets)
    art = cover.draw(about["title"], about["subtitle"], about["author"], "svg").decode()
    body = "".join(with_numbers(page, images) for page in volume)
    return (
        f'<!doctype html><html lang="{about["language"]}" data-theme="light"><head>'
        f'<meta charset="utf-8"><title>{html.escape(about["title"])}</title>{links}'
        f"<style>{fonts()}{feet(volume)}</style></head><body>"
        f'<div id="cover" role="img" aria-label="{html.escape(about["title"])}">'
        f"{art[art.index('<svg') :]}</div>{imprint(about)}{contents(volume)}{body}</body></html>"
    )


def with_numbers(page: pages.Page, images: str) -> str:
    """Return the content of a page, with room for the page numbers of answers."""
    for img in page.article.select('img[src*="_images/"]'):
        img["src"] = f"{images}/{img['src'].rpartition('/')[2]}"
    for link in page.article.select("a.see"):
        link.append(", page ")
        link.append(pages.new("b", "000", **{"data-page": link["href"][1:]}))
    return page.markup()


def imprint(about: dict[str, str]) -> str:
    """Return what stands behind the cover."""
    web, repository = about["web"], about["repository"]
    return f"""<section id="imprint"><p class="name">{html.escape(about["title"])}</p>
<p>{html.escape(about["author"])}</p>
<p>Version {about["version"]}. Prose and figures are under CC BY 4.0, the code is under the Apache
License 2.0.</p>
<p>The book on the web: <a class="plain" href="{web}">{web}</a><br>
Notebooks, package and tests: <a class="plain" href="{repository}">{repository}</a></p>
<p>{pages.DIFFERENT}</p></section>"""


def fonts() -> str:
    folder = Path(matplotlib.get_data_path()) / "fonts/ttf"
    faces = [("Book Chinese", pages.ROOT / "book/_static/fonts/chinese.otf", STYLES[0])]
    for family, files in FONTS.items():
        faces += [
            (family, folder / f"{file}.ttf", style)
            for file, style in zip(files, STYLES, strict=False)
        ]
    return "".join(
        f'@font-face {{ font-family: "{family}"; src: url({file.as_uri()}); '
        f"font-weight: {style.split()[0]}; font-style: {style.split()[1]}; }}\n"
        for family, file, style in faces
    )


def feet(volume: list[pages.Page]) -> str:
    """Return the rules that set a chapter's title at the foot of its sheets."""
    rules = []
    for n, page in enumerate(volume):
        title = page.title.replace("\\", "").replace('"', "”")
        rules.append(f'@page p{n} {{ @bottom-left {{ content: "{title}"; }} }}\n')
        rules.append(f'[id="{page.id}"] {{ page: p{n}; }}\n')
    return "".join(rules)


def contents(volume: list[pages.Page]) -> str:
    lines, part = [], ""
    for page in volume:
        if page.part != part:
            part = page.part
            lines.append(f'<p class="part">{html.escape(part)}</p>')
        lines.append(entry("chapter", page.id, page.article.h1))
        if page.part != pages.ANSWERS:
            lines += [entry("section", h2.parent["id"], h2) for h2 in page.sections]
    return f'<nav id="contents"><h1>Contents</h1><div>{"".join(lines)}</div></nav>'


def entry(kind: str, place: str, title: Tag) -> str:
    return (
        f'<a class="{kind}" href="#{place}"><span>{title.decode_contents()}</span>'
        f'<i></i><b data-page="{place}">000</b></a>'
    )
