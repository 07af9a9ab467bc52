"""The pages of the built book, made ready to be bound.

A bound book cannot fold, run or load anything. So what opens on the page lies open or moves to the
end: the choices of a quiz get letters and their explanations become answers, solutions go to the
answers of their chapter, and code that only draws a picture is left out. All ids become unique
in the whole book, links lead to them, and those to pages that are not in it lead to the web.
"""

import re
import tomllib
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urldefrag, urljoin, urlsplit

import yaml
from bs4 import BeautifulSoup, Tag

ROOT = Path(__file__).resolve().parent.parent.parent
HTML = ROOT / "_build/html"
LEFT_OUT = {"book/api/index"}  # the reference: who looks something up does so where links are live
ANSWERS = "Answers"
CODE: list[str] = []  # see put_aside
# what stands in the imprint
DIFFERENT = """The chapters are notebooks, and this is what they say and print. Three things are
different here. Figures that can be moved on the web stand still. Code that only draws a picture is
left out. Answers to the quizzes and solutions to the exercises stand at the end. The reference of
the package is on the web alone; links lead there."""
# what only helps on a screen
SCREEN = "a.headerlink, .chapter-foot, .toctree-wrapper, .hint, .note, script, button, .quiz-score"


@dataclass
class Page:
    """A chapter or another page: where it stood, its part of the book, its title, its content."""

    name: str
    part: str
    article: Tag

    @property
    def title(self) -> str:
        return text_of(self.article.h1)

    @property
    def sections(self) -> list[Tag]:
        """The headings of its sections, for the contents."""
        return self.article.select("section > h2")

    @property
    def id(self) -> str:
        """Where a link to the whole page leads."""
        return self.article["id"]

    @property
    def stem(self) -> str:
        return self.name.rpartition("/")[2]

    def markup(self) -> str:
        """Return the content as text, with the code in it again."""
        text = self.article.decode(formatter="minimal")
        return re.sub("\ue000(\\d+)\ue001", lambda match: CODE[int(match[1])], text)


def put_aside(text: str) -> str:
    """Return the article of a page, a mark in place of each block of code.

    Nine tenths of all tags are those that colour code, and nothing here looks at them.
    """

    def mark(match: re.Match) -> str:
        CODE.append(match[1])
        return f"<pre>\ue000{len(CODE) - 1}\ue001</pre>"

    article = text[text.index("<article") : text.index("</article>")]
    return re.sub("<pre>(.*?)</pre>", mark, article, flags=re.DOTALL)


def text_of(tag: Tag) -> str:
    """Return a title as plain text, where no formula can stand."""
    tag = copy(tag)
    for root in tag.select("msqrt"):
        root.insert(0, "√")
    return " ".join(tag.get_text().split())


def about() -> dict[str, str]:
    """Return what the book says of itself: title, authors, version, addresses."""
    config = yaml.safe_load((ROOT / "_config.yml").read_text(encoding="utf-8"))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    index = BeautifulSoup((HTML / "book/intro.html").read_text(encoding="utf-8"), "html.parser")
    return {
        "title": config["title"],
        "author": config["author"],
        "language": index.html["lang"],
        "subtitle": text_of(index.article.strong),
        "description": index.select_one("meta[name=description]")["content"],
        "version": project["version"],
        "repository": project["urls"]["Repository"],
        "web": index.select_one("link[rel=canonical]")["href"].removesuffix("book/intro.html"),
    }


def table_of_contents() -> list[tuple[str, str]]:
    """Return the (part, page) of all pages of _toc.yml that stand at the top of a part."""
    toc = yaml.safe_load((ROOT / "_toc.yml").read_text(encoding="utf-8"))
    pages = [("", toc["root"])]
    pages += [(p["caption"], chapter["file"]) for p in toc["parts"] for chapter in p["chapters"]]
    return [(part, page) for part, page in pages if page not in LEFT_OUT]


def read(html: Path = HTML, only: set[str] | None = None) -> list[Page]:
    """Read the pages, all or ``only`` some, in their order; the answers come last."""
    web = about()["web"]
    pages, places = [], {}
    for part, name in table_of_contents():
        if only and name not in only:
            continue
        text = (html / f"{name}.html").read_text(encoding="utf-8")
        page = Page(name, part, BeautifulSoup(put_aside(text), "html.parser").article)
        clean(page.article)
        places |= rename_ids(page)
        pages.append(page)
    for page in pages:
        for link in page.article.select("a[href]"):
            link["href"] = resolve(link["href"], page.name, places, web)
    pages += [found for page in pages if (found := take_answers(page))]
    return pages


def clean(article: Tag) -> None:
    """Take out what is for a screen alone, and open what is folded."""
    article.name, article["class"] = "div", "bd-article"
    for tag in article.select(SCREEN):
        tag.decompose()
    for folded in article.select("details.hide"):
        code, cell = folded.select_one(".cell_input"), folded.find_parent(class_="cell")
        if cell.select_one("img") and "tag_export" not in cell["class"]:
            folded.decompose()
        else:
            folded.replace_with(code.extract())
    for tag in article.select("code span.pre"):
        tag.unwrap()
    for tag in article.select("a[data-meaning], a[download], img[loading]"):
        for name in ("data-meaning", "download", "loading", "decoding"):
            tag.attrs.pop(name, None)


def rename_ids(page: Page) -> dict[tuple[str, str], str]:
    """Make the ids of a page those of no other page; return (page, old id) -> new id."""
    page.article["id"] = page.stem
    places = {(page.name, ""): page.id}
    for tag in page.article.find_all(id=True):
        old = tag["id"]
        tag["id"] = places[page.name, old] = f"{page.stem}.{re.sub(r'[^A-Za-z0-9_.-]', '-', old)}"
    return places


def resolve(href: str, name: str, places: dict[tuple[str, str], str], web: str) -> str:
    """Return where a link leads in the bound book, or else on the web."""
    if urlsplit(href).scheme:
        return href
    path, fragment = urldefrag(urljoin(f"/{name}.html", href))
    target = path.lstrip("/").removesuffix(".html")
    place = places.get((target, unquote(fragment))) or places.get((target, ""))
    return f"#{place}" if place else urljoin(web, urljoin(f"/{name}.html", href).lstrip("/"))


def take_answers(page: Page) -> Page | None:
    """Move solutions and the explanations of quizzes from a chapter to a page of their own."""
    questions, solutions = page.article.select(".quiz"), page.article.select("div.solution")
    if not questions and not solutions:
        return None
    place = f"answers-{page.stem}"
    answers = new("div", new("h1", title_of_answers(page)), id=place, class_="bd-article answers")
    if questions:
        part = new("section", new("h2", "Quiz"), id=f"{place}.quiz")
        answers.append(part)
        questions[-1].insert_after(see("Answers", part["id"]))
        part.append(new("ol", *[take_choices(question) for question in questions]))
        part.ol["class"] = "questions"
    if solutions:
        part = new("section", new("h2", "Solutions"), id=f"{place}.solutions")
        answers.append(part)
        for solution in solutions:
            exercise = solution.select_one(".admonition-title a")["href"].removeprefix("#")
            page.article.find(id=exercise).append(see("Solution", solution["id"]))
            part.append(solution.extract())
    return Page(place, ANSWERS, answers)


def title_of_answers(page: Page) -> str:
    number = page.article.h1.select_one(".section-number")
    if number is None:
        return f"{ANSWERS}: {page.title}"
    return f"{ANSWERS} to chapter {text_of(number).strip('.')}"


def take_choices(question: Tag) -> Tag:
    """Give the choices of a question letters; return the question again, with what is said to each.

    A choice is a ``<details>``: its summary stays, the rest is moved.
    """
    choices, said = new("ol", type="A", class_="choices"), new("ol", type="A", class_="why")
    for choice in question.select("details.choice"):
        text = choice.summary.extract()
        text.name = "li"
        choices.append(text)
        said.append(new("li", *choice.contents[:], class_=choice["class"][-1]))
        choice.decompose()
    question.append(choices)
    return new("li", copy(question.select_one(".quiz-question")), said)


def see(words: str, place: str) -> Tag:
    return new("p", new("a", words, href=f"#{place}", class_="see"))


def new(name: str, *children: Tag | str, **attributes: str) -> Tag:
    """Return a tag; an attribute may end with _ to be no word of Python."""
    tag = Tag(name=name, attrs={key.rstrip("_"): value for key, value in attributes.items()})
    tag.extend(children)
    return tag
