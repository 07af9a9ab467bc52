"""The EPUB: version 3, a file of XHTML for each page, formulas as MathML, no scripts.

Colours and sizes are left to the reader's device where that can be, so that it also reads well in
the dark and on paper-like screens: code is set in weights, not in colours.
"""

import html
import os
import re
import uuid
import zipfile
from datetime import UTC, datetime
from pathlib import Path

import cover
import pages
from bs4 import Tag

HERE = Path(__file__).resolve().parent
XHTML = """<?xml version="1.0" encoding="utf-8"?>
<!DOCTYPE html>
<html xmlns="http://www.w3.org/1999/xhtml" xmlns:epub="http://www.idpf.org/2007/ops" lang="{language}" xml:lang="{language}">
<head><title>{title}</title><link rel="stylesheet" type="text/css" href="book.css"/></head>
<body>{body}</body>
</html>
"""  # noqa: E501
CONTAINER = """<?xml version="1.0" encoding="utf-8"?>
<container version="1.0" xmlns="urn:oasis:names:tc:opendocument:xmlns:container"><rootfiles>
<rootfile full-path="book/package.opf" media-type="application/oebps-package+xml"/>
</rootfiles></container>
"""
PACKAGE = """<?xml version="1.0" encoding="utf-8"?>
<package xmlns="http://www.idpf.org/2007/opf" version="3.0" unique-identifier="id" xml:lang="{language}">
<metadata xmlns:dc="http://purl.org/dc/elements/1.1/">
<dc:identifier id="id">{identifier}</dc:identifier>
<dc:title>{title}</dc:title>
<dc:creator>{author}</dc:creator>
<dc:language>{language}</dc:language>
<dc:description>{description}</dc:description>
<dc:source>{web}</dc:source>
<dc:rights>Prose and figures: CC BY 4.0. Code: Apache License 2.0.</dc:rights>
<meta property="dcterms:modified">{modified}</meta>
<meta property="schema:accessMode">textual</meta>
<meta property="schema:accessMode">visual</meta>
<meta property="schema:accessModeSufficient">textual</meta>
<meta property="schema:accessibilityFeature">MathML</meta>
<meta property="schema:accessibilityFeature">alternativeText</meta>
<meta property="schema:accessibilityFeature">structuralNavigation</meta>
<meta property="schema:accessibilityFeature">tableOfContents</meta>
<meta property="schema:accessibilityHazard">none</meta>
<meta property="schema:accessibilitySummary">Every picture is described, every formula is MathML.</meta>
</metadata>
<manifest>
{manifest}
</manifest>
<spine>
{spine}
</spine>
</package>
"""  # noqa: E501
KINDS = {
    ".css": "text/css",
    ".png": "image/png",
    ".svg": "image/svg+xml",
    ".txt": "text/plain",
    ".woff2": "font/woff2",
    ".xhtml": "application/xhtml+xml",
}
# SVG has names in mixed case, which a parser of HTML writes small
MIXED = {name.lower(): name for name in ("viewBox", "preserveAspectRatio")}


def bind(volume: list[pages.Page], about: dict[str, str], file: Path) -> str:
    """Write the EPUB; return how much is in it."""
    about = {key: html.escape(value) for key, value in about.items()}
    texts = {
        "cover": f'<img id="cover" src="cover.png" alt="{about["title"]}"/>',
        "imprint": imprint(about),
        "contents": contents(volume),
    }
    homes = {tag["id"]: name_of(page) for page in volume for tag in page.article.select("[id]")}
    homes |= {page.id: name_of(page) for page in volume}
    pictures = set()
    for page in volume:
        pictures |= prepare(page, homes)
        texts[name_of(page)] = page.markup()
    titles = {name_of(page): html.escape(page.title) for page in volume}
    files = {
        f"{name}.xhtml": XHTML.format(
            language=about["language"], title=titles.get(name, about["title"]), body=body
        ).encode()
        for name, body in texts.items()
    }
    static = pages.HTML / "_static"
    files["book.css"] = style((static / "css/book.css").read_text(encoding="utf-8")).encode()
    files["cover.png"] = cover.draw(
        *(html.unescape(about[key]) for key in ("title", "subtitle", "author")), "png"
    )
    for font in ("STIXTwoMath.woff2", "OFL.txt"):
        files[font] = (static / "fonts" / font).read_bytes()
    for picture in sorted(pictures):
        files[picture] = (pages.HTML / "_images" / picture).read_bytes()
    files["package.opf"] = package(about, files, list(texts)).encode()
    write(file, files)
    return f"{len(texts)} files of text, {len(pictures)} pictures"


def name_of(page: pages.Page) -> str:
    """Return the name of a page's file; it must be able to serve as an XML id."""
    return f"text-{page.stem}"


def prepare(page: pages.Page, homes: dict[str, str]) -> set[str]:
    """Make a page XHTML, its links lead from file to file; return the pictures that it shows."""
    for link in page.article.select('a[href^="#"]'):
        place = link["href"][1:]
        link["href"] = f"{homes[place]}.xhtml#{place}"
    for tag in page.article.select("[role^=doc-]"):
        del tag["role"]  # most are out of use
    for tag in page.article.select("math"):
        tag["xmlns"] = "http://www.w3.org/1998/Math/MathML"
    for tag in page.article.select("svg"):
        tag["xmlns"] = "http://www.w3.org/2000/svg"
    for tag in page.article.select("svg, svg *"):
        tag.attrs = {MIXED.get(name, name): value for name, value in tag.attrs.items()}
    pictures = set()
    for img in page.article.select("img"):
        img["src"] = img["src"].rpartition("/")[2]
        pictures.add(img["src"])
    return pictures


def contents(volume: list[pages.Page]) -> str:
    """Return the table of contents, which is also what a reading program shows as such."""
    parts: dict[str, list[str]] = {}
    for page in volume:
        inner = "".join(
            f"<li>{link(page, h2.parent['id'], h2)}</li>"
            for h2 in page.sections
            if page.part != pages.ANSWERS
        )
        entry = link(page, page.id, page.article.h1) + (f"<ol>{inner}</ol>" if inner else "")
        parts.setdefault(page.part, []).append(f"<li>{entry}</li>")
    lines = [
        f"<li><span>{html.escape(part)}</span><ol>{''.join(entries)}</ol></li>"
        if part
        else "".join(entries)
        for part, entries in parts.items()
    ]
    return f'<nav epub:type="toc" id="toc"><h1>Contents</h1><ol>{"".join(lines)}</ol></nav>'


def link(page: pages.Page, place: str, title: Tag) -> str:
    return f'<a href="{name_of(page)}.xhtml#{place}">{html.escape(pages.text_of(title))}</a>'


def imprint(about: dict[str, str]) -> str:
    """Return what stands behind the cover."""
    web, repository = about["web"], about["repository"]
    return f"""<div><h1>{about["title"]}</h1><p>{about["subtitle"]}</p><p>{about["author"]}</p>
<p>Version {about["version"]}. Prose and figures are under CC BY 4.0, the code is under the Apache
License 2.0.</p>
<p>The book on the web: <a href="{web}">{web}</a>. Notebooks, package and tests:
<a href="{repository}">{repository}</a>.</p>
<p>{pages.DIFFERENT}</p></div>"""


def style(book: str) -> str:
    """Return the style sheet, with the colours of book.css, the light ones, as plain values."""
    light = book[book.index(":root {") : book.index("html[data-theme")]
    colours = dict(re.findall(r"--([\w-]+): (#\w+)", light))
    own = (HERE / "epub.css").read_text(encoding="utf-8")
    return re.sub(r"var\(--([\w-]+)\)", lambda match: colours[match[1]], own)


def package(about: dict[str, str], files: dict[str, bytes], spine: list[str]) -> str:
    """Return the file that lists all others."""
    items = []
    for name, content in files.items():
        stem, kind = os.path.splitext(name)
        properties = [
            word
            for word, found in (
                ("cover-image", name == "cover.png"),
                ("mathml", kind == ".xhtml" and b"<math" in content),
                ("nav", stem == "contents"),
                ("svg", kind == ".xhtml" and b"<svg" in content),
            )
            if found
        ]
        words = f' properties="{" ".join(properties)}"' if properties else ""
        place = stem if kind == ".xhtml" else f"file-{name}"
        items.append(f'<item id="{place}" href="{name}" media-type="{KINDS[kind]}"{words}/>')
    return PACKAGE.format(
        **about,
        identifier=uuid.uuid5(uuid.NAMESPACE_URL, about["web"]).urn,
        modified=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        manifest="\n".join(items),
        spine="\n".join(f'<itemref idref="{name}"/>' for name in spine),
    )


def write(file: Path, files: dict[str, bytes]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        # what kind of file it is stands first, and not compressed
        archive.writestr("mimetype", "application/epub+zip", zipfile.ZIP_STORED)
        archive.writestr("META-INF/container.xml", CONTAINER)
        for name, content in files.items():
            archive.writestr(f"book/{name}", content)
