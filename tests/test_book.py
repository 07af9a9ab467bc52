"""What must hold of the notebooks as pages, and of the book built from them in ``_build/html``."""

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import unquote, urlsplit

import pytest
from bs4 import BeautifulSoup
from fontTools.ttLib import TTFont

ROOT = Path(__file__).resolve().parent.parent
HTML = ROOT / "_build" / "html"
NOTEBOOKS = sorted((ROOT / "nbs").glob("[0-9]*.ipynb"))
CHECKS = sorted((ROOT / "nbs/checks").glob("[0-9]*.ipynb"))
MODULES = sorted(p.stem for p in (ROOT / "transformer_lit").glob("[a-z]*.py"))
# What the three texts say that this course answers; each id is a row of book/coverage.md.
IDS = [
    f"{text}{n:02}" for text, last in (("A", 19), ("B", 18), ("C", 9)) for n in range(1, last + 1)
]
built = pytest.mark.skipif(
    not HTML.is_dir(), reason="no book in _build/html; run `make book` first"
)


def pages() -> list[Path]:
    return sorted(p for p in HTML.rglob("*.html") if "_static" not in p.relative_to(HTML).parts)


@cache
def soup(page: Path) -> BeautifulSoup:
    return BeautifulSoup(page.read_text(encoding="utf-8"), "html.parser")


@cache
def anchors(page: Path) -> set[str]:
    return {tag["id"] for tag in soup(page).find_all(id=True)}


def dead(page: Path, href: str) -> bool:
    """Return whether an address within the book leads nowhere."""
    url = urlsplit(href)
    if url.scheme or url.netloc:
        return False
    target = (page.parent / unquote(url.path)).resolve() if url.path else page
    if not target.is_file():
        return True
    fragment = unquote(url.fragment)
    return bool(fragment) and target.suffix == ".html" and fragment not in anchors(target)


def page_of(notebook: Path) -> Path:
    return HTML / notebook.relative_to(ROOT).with_suffix(".html")


def cells(notebook: Path) -> list[dict]:
    return json.loads(notebook.read_text(encoding="utf-8"))["cells"]


def squeeze(text: str) -> str:
    return re.sub(r"\s+", "", text)


@pytest.mark.parametrize("notebook", NOTEBOOKS + CHECKS, ids=lambda p: f"{p.parent.name}/{p.stem}")
def test_notebook(notebook):
    assert notebook.stat().st_size < 1_000_000, "too heavy for a repository"
    content = json.loads(notebook.read_text(encoding="utf-8"))
    assert content["metadata"]["kernelspec"]["name"] == "python3"
    first = content["cells"][0]
    assert first["cell_type"] == "markdown"
    assert re.fullmatch(r"# \S.*\n\n> \S.*", "".join(first["source"])), "a title and one line"
    for cell in content["cells"]:
        kinds = {output["output_type"] for output in cell.get("outputs", [])}
        assert "error" not in kinds, "".join(cell["source"])


@built
@pytest.mark.parametrize("notebook", NOTEBOOKS + CHECKS, ids=lambda p: f"{p.parent.name}/{p.stem}")
def test_page_shows_what_is_for_readers(notebook):
    shown = [tag.get_text() for tag in soup(page_of(notebook)).select("div.cell_input")]
    assert not [text for text in shown if re.search(r"^\s*#\s*\|", text, re.M)]
    shown = {squeeze(text) for text in shown}
    for cell in cells(notebook):
        source = "".join(cell["source"])
        if cell["cell_type"] == "code" and source.startswith("#| hide"):
            assert squeeze(source.split("\n", 1)[1]) not in shown, source
        elif source.startswith("#| export"):
            assert squeeze(source.split("\n", 1)[1]) in shown, source


@built
@pytest.mark.parametrize("check", CHECKS, ids=lambda p: p.stem)
def test_each_chapter_has_a_quiz(check):
    """Four to six questions; one choice is right, not always the same; each is explained."""
    questions = soup(page_of(ROOT / "nbs" / check.name)).select(".quiz")
    assert 4 <= len(questions) <= 6
    places = set()
    for question in questions:
        choices = question.select("details.choice")
        right = [n for n, choice in enumerate(choices) if "right" in choice["class"]]
        assert len(choices) >= 3 and len(right) == 1, question.get_text()
        assert all(len(choice.select_one("p").get_text()) > 10 for choice in choices)
        assert len({choice.summary.get_text() for choice in choices}) == len(choices)
        places.add(right[0])
    assert len(places) > 1, "the right choice is always in the same place"


@built
def test_colab_opens_the_notebook_of_the_page():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    repository = urlsplit(project["urls"]["Repository"]).path
    for page in pages():
        found = {a["href"] for a in soup(page).select('a[href*="colab.research.google.com"]')}
        name = page.relative_to(HTML).with_suffix(".ipynb").as_posix()
        wanted = f"https://colab.research.google.com/github{repository}/blob/main/{name}"
        assert found == ({wanted} if name.startswith("nbs/") else set()), page


@pytest.mark.parametrize("path", [*NOTEBOOKS, *CHECKS], ids=lambda p: f"{p.parent.name}-{p.stem}")
def test_on_colab_the_first_code_cell_installs_the_package(path):
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    first = "".join(next(cell for cell in cells if cell["cell_type"] == "code")["source"])
    assert '"google.colab" in sys.modules' in first and "%pip install -q" in first


@built
def test_chinese_is_marked_and_has_its_characters():
    """So that it is read aloud as Chinese, and drawn where the machine has no font for it."""
    fonts = [HTML / f"_static/fonts/{name}.otf" for name in ("chinese", "dates")]
    held, seen = set().union(*(TTFont(font).getBestCmap() for font in fonts)), 0
    for page in pages():
        found = [
            text
            for article in soup(page).select("article")
            for text in article.find_all(string=re.compile("[\u4e00-\u9fff]"))
            if not text.find_parent(["script", "style", "svg", "math", "select", "textarea"])
        ]
        for text in found:
            assert text.find_parent(lang=re.compile("zh")), (page, text[:80])
            assert {ord(c) for c in text if "\u3000" <= c <= "\u9fff"} <= held, (page, text)
        seen += len(found)
    assert seen > 100, "the book has no Chinese any more"


@built
def test_nothing_is_loaded_from_elsewhere():
    for page in pages():
        tags = soup(page).select(
            "[src], link[href]:not([rel=canonical]), object[data], [srcset], [poster]"
        )
        loaded = [t.get(a) for t in tags for a in ("src", "data", "srcset", "poster", "href")]
        assert not [u for u in loaded if u and re.match(r"(?i)(https?:)?//", u)], page
    for sheet in HTML.rglob("*.css"):
        text = sheet.read_text(encoding="utf-8")
        assert not re.search(r"""(?i)(url\(|@import)\s*["']?(https?:)?//""", text), sheet


@built
def test_no_page_has_a_script_for_tabs_without_tabs():
    for page in pages():
        here = soup(page)
        assert here.select(".sd-tab-set") or not here.select("script[src*=design-tabs]"), page


@built
def test_each_page_says_what_it_is():
    """Its address, a description of its own, a picture; the sitemap has all pages."""
    home = "https://transformer-lit.github.io/transformer-lit/"
    seen = {}
    for page in pages():
        name = page.relative_to(HTML).as_posix()
        if name.startswith("_modules/") or not name.endswith(".html") or "/" not in name:
            continue
        head = soup(page).head
        assert head.select_one("link[rel=canonical]")["href"] == home + name
        text = head.select_one("meta[name=description]")["content"]
        assert 20 < len(text) <= 210 and text not in seen, (name, text, seen.get(text))
        seen[text] = name
        assert head.select_one('meta[property="og:description"]')["content"] == text
        picture = head.select_one('meta[property="og:image"]')["content"]
        assert (HTML / picture.removeprefix(home)).is_file()
    sitemap = (HTML / "sitemap.xml").read_text(encoding="utf-8")
    assert {f"{home}{name}" for name in seen.values()} <= set(
        re.findall("<loc>(.*?)</loc>", sitemap)
    )
    assert soup(HTML / "404.html").select_one(f'a[href="{home}book/intro.html"]')


@built
def test_each_equation_figure_and_exercise_has_a_number_and_a_link():
    for page in (HTML / "book/intro.html", *map(page_of, NOTEBOOKS)):
        main = soup(page).main
        for kind, number in (
            ("div.math", ".eqno"),
            ("figure:has(img, svg)", "figcaption .caption-number"),
            ("div.exercise", ".admonition-title .caption-number"),
        ):
            for part in main.select(kind):
                found = part.select_one(number)
                assert found and re.search(r"\d", found.get_text()), part.get_text()[:200]
                assert part.select_one("a.headerlink[href^='#']"), part.get_text()[:200]


@built
def test_each_chapter_has_its_head_and_foot():
    """Where it stands in the model, the notebook, and the way to its parts and onwards."""
    for check in CHECKS:
        page = page_of(ROOT / "nbs" / check.name)
        head, foot = (soup(page).select_one(f".chapter-{end}") for end in ("head", "foot"))
        assert head.select_one("a.here svg") and head.select_one("a[download]")
        assert not dead(page, head.select_one("a[download]")["href"])
        assert len(str(head.select_one("svg"))) < 10_000
        assert "You need" in head.get_text() and "Reading" in head.get_text()
        assert {"#quiz", "#exercises", "#summary"} <= {a["href"] for a in foot.select("a")}


@built
def test_glossary_is_used():
    terms = {dt["id"] for dt in soup(HTML / "book/glossary.html").select("dt[id^=term-]")}
    assert len(terms) >= 40
    marked = set()
    for page in pages():
        links = soup(page).select("a.term")
        names = [urlsplit(a["href"]).fragment for a in links]
        assert len(set(names)) == len(names), f"a term is marked twice in {page}"
        assert not soup(page).select("h1 a.term, h2 a.term, a a.term, pre a.term")
        assert all(len(a["data-meaning"]) > 20 for a in links)
        marked |= set(names)
    assert len(marked & terms) >= 0.8 * len(terms), terms - marked


@built
def test_links_within_the_book_lead_somewhere():
    links = [(page, a["href"]) for page in pages() for a in soup(page).select("a[href]")]
    assert not sorted({(str(p.relative_to(HTML)), href) for p, href in links if dead(p, href)})


@built
def test_every_font_comes_with_its_licence():
    fonts = {path for kind in ("woff2", "woff", "otf", "ttf") for path in HTML.rglob(f"*.{kind}")}
    folder = HTML / "_static/fonts"
    licence = (folder / "OFL.txt").read_text(encoding="utf-8")
    assert "SIL OPEN FONT LICENSE Version 1.1" in licence
    assert len(fonts) >= 2 and all(f.parent == folder and f.name in licence for f in fonts), fonts


@built
def test_every_picture_is_described():
    for page in pages():
        assert not [img["src"] for img in soup(page).select("main img") if not img.get("alt")], page


@built
def test_every_notebook_and_module_has_its_page():
    assert not [n for n in NOTEBOOKS + CHECKS if not page_of(n).is_file()]
    missing = [m for m in MODULES if not (HTML / "book/api" / f"{m}.html").is_file()]
    assert not missing, "book/api lacks a page for these modules"


@built
def test_signatures_are_written_as_the_code_has_them():
    for page in (HTML / "book/api").glob("*.html"):
        for signature in soup(page).select("dt.sig"):
            assert not re.search(r"~\w|<\w+ | at 0x", signature.get_text()), page


@built
def test_coverage_names_every_id_and_links_to_where_it_is_shown():
    page = HTML / "book" / "coverage.html"
    rows = [row.find_all("td") for row in soup(page).select("main table tbody tr")]
    answers = {name: row[-1] for row in rows for name in row[0].get_text().split()}
    assert sorted(answers) == IDS
    for name, cell in answers.items():
        links = [a["href"] for a in cell.find_all("a")]
        assert links, f"{name} leads nowhere"
        assert not [link for link in links if dead(page, link)], name
        assert all(urlsplit(link).fragment for link in links), f"{name}: link to a section"


def test_plain_sphinx_builds_the_book(tmp_path):
    """Whoever does not want Jupyter Book's command can go on with Sphinx alone."""
    for name in ("_config.yml", "_toc.yml", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    for name in ("nbs", "book"):
        shutil.copytree(ROOT / name, tmp_path / name)
    environment = os.environ | {"PYTHONPATH": str(tmp_path / "book" / "_ext")}
    for command in ("jupyter-book config sphinx .", "sphinx-build -q -W -n . _build"):
        program, *arguments = command.split()
        run = subprocess.run(
            [Path(sys.executable).with_name(program), *arguments],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
        )
        assert run.returncode == 0, run.stderr
    assert (tmp_path / "_build/nbs" / f"{NOTEBOOKS[-1].stem}.html").is_file()


@built
def test_several_processes_write_only_whole_books(monkeypatch):
    """Of some pages the first may have formulas, after which no other process could set any."""
    monkeypatch.syspath_prepend(ROOT / "book" / "_ext")
    import web

    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    app = SimpleNamespace(parallel=1)
    for read, several in ((["b"], False), ([], False), (["a", "b"], True)):
        env = SimpleNamespace(found_docs={"a", "b"})
        web.notice(app, env, read)
        web.write_at_once(app, env)
        assert (app.parallel > 1) == several
    first = min(path.relative_to(ROOT).as_posix() for path in (ROOT / "book").rglob("*.md"))
    assert "<math" not in (HTML / first).with_suffix(".html").read_text(encoding="utf-8")


def test_formulas_are_not_waited_for_in_a_forked_process():
    """V8 has threads of its own, which do not come along."""
    program = """
import os, sys
import mathml
assert "<math" in mathml.typeset("x", False)
if not os.fork():
    try:
        mathml.typeset("y", False)
    except RuntimeError as error:
        os._exit("forked" in str(error))
    os._exit(0)
sys.exit(os.waitstatus_to_exitcode(os.wait()[1]) != 1)
"""
    environment = os.environ | {"PYTHONPATH": str(ROOT / "book" / "_ext")}
    command = [sys.executable, "-c", program]
    subprocess.run(command, env=environment, check=True, timeout=60)
