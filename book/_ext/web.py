"""What a page is on the web: addresses, description, social card, sitemap; and that it is light.

* The address of the site is ``[project.urls] Documentation`` of pyproject.toml, or else GitHub
  Pages' for the repository. From it come canonical links, the sitemap and the 404 page.
* A page's description is its first paragraph.
* The theme brings 1.9 MB of icons and styles. A page gets the icons that the book uses, and of the
  styles those rules whose classes occur in it.
* Scripts choose between light and dark. Without them the reader's system does (``automatic``).
* Chinese within the English text is marked as such.
* Pictures are loaded when they come near the screen; each says its size, so that nothing jumps.
  One of many small parts keeps its size on a phone, and scrolls inside a box.
* Reading numbers the chapters, one after the other; writing is shared by several processes.
"""

import os
import re
import shutil
import struct
import tomllib
from pathlib import Path
from urllib.parse import quote, urlsplit

from docutils import nodes
from sphinx.locale import get_translation

_ = get_translation("literate")
# in code: spans for what has the colour of the text anyway, a third of a chapter's bytes
PLAIN = re.compile(r'<span class="[npw]">([^<]*)</span>')
# a formula in a line, and what touches it: a full stop must not begin the next line
TOUCHED = re.compile(r'([^\s<>]*)(<span class="math [^"]*"><math.*?</math></span>)([^\s<>]*)', re.S)
CODE = re.compile(r'<code class="([^"]*)">(.*?)</code>', re.S)
MODULE = re.compile(r"<h1>[\w.]+(?=<)")  # a heading that is the name of a module
SHORT = 20  # characters of code within a line that stay together
# roles of bibliographies that WAI-ARIA has given up
CITED = re.compile(r' role="(?:doc-biblioentry|list)"(?=[^>]*>)')
WORD = re.compile(r"[A-Za-z_][\w-]*")
# Chinese between two tags, with the digits and marks in it, and what has no text to be read aloud
CHINESE = re.compile(
    r"[0-9\u3001-\u303f\uff00-\uffef]*[\u4e00-\u9fff][0-9\u3000-\u303f\u4e00-\u9fff\uff00-\uffef]*"
)
UNREAD = re.compile(r"(<(script|style|svg|math|select|textarea)\b.*?</\2>|<[^>]*>)", re.S)
LONGEST = 200  # characters of a description
BROAD = 720  # pixels: a picture that is wider would be too small to read on a phone


def address(app, config):
    """Set the address of the site, which Sphinx makes the canonical links from."""
    project = tomllib.loads((Path(app.confdir) / "pyproject.toml").read_text(encoding="utf-8"))
    urls = project["project"]["urls"]
    owner, name = urlsplit(urls["Repository"]).path.strip("/").split("/")
    config.html_baseurl = urls.get("Documentation", f"https://{owner}.github.io/{name}/")


def description(doctree) -> str:
    """Return the first paragraph, at most so long, cut between two words."""
    text = next((p.astext() for p in doctree.findall(nodes.paragraph)), "")
    text = " ".join(re.sub(r"\\[A-Za-z]+|[{}$]", " ", text).split())
    return text if len(text) <= LONGEST else text[:LONGEST].rsplit(" ", 1)[0] + " …"


def describe(app, pagename, templatename, context, doctree):
    """Give the template what the head of the page says of it."""
    context["description"] = (doctree and description(doctree)) or app.config.project
    context["baseurl"] = app.config.html_baseurl
    context["card"] = f"{app.config.html_baseurl}_static/card.png"
    if context.get("body"):
        sources = {name: Path(app.srcdir) / path for path, name in app.builder.images.items()}
        body = lazy_pictures(context["body"], sources)
        body = re.sub(r"<pre>.*?</pre>", lambda match: PLAIN.sub(r"\1", match[0]), body, flags=re.S)
        body = TOUCHED.sub(together, CITED.sub("", body))
        body = CODE.sub(unbroken, body)
        body = MODULE.sub(lambda match: match[0].replace(".", ".<wbr>"), body)
        body = re.sub(r'<dt class="sig .*?</dt>', lambda match: lines(match[0]), body, flags=re.S)
        context["body"] = spoken(body)
    if contents := context.get("generate_toctree_html"):
        context["generate_toctree_html"] = lambda *args, **options: named(
            contents(*args, **options)
        )


def unbroken(match) -> str:
    short = " nowrap" if len(re.sub("<[^>]*>", "", match[2])) <= SHORT else ""
    return f'<code class="{match[1]}{short}">{match[2]}</code>'


def together(match) -> str:
    return f'<span class="nowrap">{match[0]}</span>' if match[1] or match[3] else match[0]


def spoken(body: str) -> str:
    """Mark what is Chinese as Chinese, so that it is read aloud, and drawn, as such."""
    ends, parts = 0, []
    for unread in UNREAD.finditer(body):
        text = body[ends : unread.start()]
        parts += [CHINESE.sub(r'<span lang="zh-Hans">\g<0></span>', text), unread[0]]
        ends = unread.end()
    return "".join([*parts, body[ends:]])


def lines(signature: str) -> str:
    """Write the lines of a long signature as boxes: a list of definitions they are not."""
    return re.sub(r"<(/?)d[ld]>", r"<\1div>", signature)


def named(contents) -> str:
    """Give the switches in the table of contents a name."""
    name = _("Show or hide the pages of this part")
    return str(contents).replace("<summary>", f'<summary aria-label="{name}">')


def lazy_pictures(body: str, sources: dict[str, Path]) -> str:
    """Load pictures as the reader nears them, and keep their place free before they come.

    ``sources`` says where each picture lies now: Sphinx copies them after the last page.
    """

    def sized(match):
        path = sources.get(match[3])
        size, box, end = "", "", ""
        if path and path.suffix == ".png" and " width=" not in match[0]:
            with path.open("rb") as file:
                width, height = struct.unpack(">II", file.read(24)[16:])
            size = f' width="{width}" height="{height}"'
            if width > BROAD:
                box, end = '<span class="picture">', "</span>"
        return f'{box}<img loading="lazy" decoding="async"{size} {match[1]}{end}'

    return re.sub(r'<img (?!loading)([^>]*?src="[^"]*?(_images/([^"]+))"[^>]*>)', sized, body)


def sitemap(app):
    pages = sorted(page for page in app.env.found_docs)
    urls = "".join(
        f"<url><loc>{app.config.html_baseurl}{quote(app.builder.get_target_uri(page))}</loc></url>\n"
        for page in pages
    )
    space = "http://www.sitemaps.org/schemas/sitemap/0.9"
    (Path(app.outdir) / "sitemap.xml").write_text(
        f'<?xml version="1.0" encoding="UTF-8"?>\n<urlset xmlns="{space}">\n{urls}</urlset>\n'
    )


def icons(names: set[str], source: str) -> str:
    """Return rules that paint the theme's icons, by the shapes in its script of all icons."""
    rules = []
    for name in sorted(names):
        shape = r'(\d+),(\d+),\[[^\]]*\],"f?\w+","(M[^"]+)"'
        found = re.findall(rf'[{{,]"?{name}"?:\[{shape}', source) or re.findall(
            rf'\[(\d+),(\d+),\[[^\]]*"{name}"[^\]]*\],"\w+","(M[^"]+)"', source
        )
        if found:
            width, height, path = found[-1]  # the last is the filled one
            box = f"viewBox='0 0 {width} {height}'"
            svg = f"<svg xmlns='http://www.w3.org/2000/svg' {box}><path d='{path}'/></svg>"
            rules.append(
                f'.fa-{name}{{--icon:url("data:image/svg+xml,{quote(svg, safe=" /=:")}")}}'
            )
    return "\n".join(rules) + "\n"


def rules(css: str):
    """Yield the top-level rules of a style sheet as (what stands before the brace, its inside)."""
    css = re.sub(r"/\*.*?\*/", "", css, flags=re.S)
    depth = start = body = 0
    for match in re.finditer(r'"(?:\\.|[^"\\])*"|[{};]', css):
        if match[0] == "{":
            depth += 1
            body = match.end() if depth == 1 else body
        elif match[0] == "}":
            depth -= 1
            if not depth:
                yield css[start : body - 1].strip(), css[body : match.start()]
                start = match.end()
        elif match[0] == ";" and not depth:
            yield css[start : match.end()].strip(), None
            start = match.end()


def trim(css: str, words: set[str]) -> str:
    """Leave out the rules none of whose selectors can apply: their classes occur nowhere."""
    kept = []
    for head, inside in rules(css):
        if inside is None:
            kept.append(head)
        elif head == "@font-face" and "fontawesome" in inside:
            continue  # the icons are pictures (see ``icons``)
        elif head.startswith(("@media", "@supports", "@layer")):
            if inner := trim(inside, words):
                kept.append(f"{head}{{{inner}}}")
        elif head.startswith("@"):
            kept.append(f"{head}{{{inside}}}")
        else:
            bare = re.sub(r'"[^"]*"|:not\((?:[^()]|\([^()]*\))*\)', "", head)
            if any(
                set(re.findall(r"[.#]([\w-]+)", selector)) <= words
                for selector in re.split(r",(?![^(]*\))", bare)
            ):
                kept.append(f"{head}{{{inside}}}")
    return "".join(kept)


THEME = re.compile(r"""\[data-theme=["']?(light|dark)["']?\]""")


def themed(css: str, theme: str) -> str:
    """Return the rules for one theme, as rules for a page whose theme is still "auto"."""
    kept = []
    for head, inside in rules(css):
        if inside and head.startswith(("@media", "@supports")):
            if inner := themed(inside, theme):
                kept.append(f"{head}{{{inner}}}")
        elif inside and not head.startswith("@"):
            selectors = re.split(r",(?![^(]*\))", head)
            if mine := [s for s in selectors if theme in THEME.findall(s)]:
                kept.append(f"{THEME.sub('[data-theme=auto]', ','.join(mine))}{{{inside}}}")
    return "".join(kept)


def automatic(sheets: list[str]) -> str:
    """Return the style sheet of readers without scripts, whose system says which theme it is."""
    dark, light = ("".join(themed(css, theme) for css in sheets) for theme in ("dark", "light"))
    when = "(prefers-color-scheme: dark)"
    return f"@media {when}{{{dark}}}\n@media not {when}{{{light}}}\n"


def lighten(app):
    """Write the icons, and trim the style sheets that the theme and the extensions brought."""
    out = Path(app.outdir)
    shutil.rmtree(out / "_static/vendor/fontawesome", ignore_errors=True)  # no page asks for it
    own = out / "_static/css"
    texts = [page.read_text(encoding="utf-8") for page in out.rglob("*.html")]
    names = {name for text in texts for name in re.findall(r'[\s"]fa-([a-z-]+)(?=[\s"])', text)}
    script = out / "_static/scripts/fontawesome.js"
    sheet = own / "icons.css"
    if script.is_file():
        sheet.write_text(icons(names, script.read_text(encoding="utf-8")), encoding="utf-8")
    words = {word for text in texts for word in WORD.findall(text)}
    for code in (out / "_static").rglob("*.js"):
        if code != script:
            words |= set(WORD.findall(code.read_text(encoding="utf-8")))
    for sheet in (out / "_static").rglob("*.css"):
        if sheet.parent != own:
            sheet.write_text(trim(sheet.read_text(encoding="utf-8"), words), encoding="utf-8")
    linked = re.findall(r'<link[^>]* href="[./]*(_static/[^"?]+\.css)', "".join(texts))
    sheets = [out / name for name in dict.fromkeys(linked) if not name.endswith("auto.css")]
    css = automatic([sheet.read_text(encoding="utf-8") for sheet in sheets])
    (own / "auto.css").write_text(css, encoding="utf-8")


def finish(app, error):
    if not error and app.builder.name == "html":
        sitemap(app)
        lighten(app)


def notice(app, env, docnames):
    """Note whether all pages are read, and so written, anew."""
    app.all_are_read = set(docnames) == env.found_docs


def write_at_once(app, env):
    """Let several processes write pages, now that all are read: numbering reads them in turn.

    Not if some pages are as before: Sphinx writes the first alone, before it starts the others,
    and if it has formulas, the V8 that sets them does not outlive the fork.
    """
    if app.all_are_read:  # then the first is the API of attention, which has none
        app.parallel = 1 + (os.cpu_count() or 1)  # one hands out, the others write


def setup(app):
    app.connect("config-inited", address)
    app.connect("env-before-read-docs", notice)
    app.connect("env-updated", write_at_once)
    app.connect("html-page-context", describe, priority=800)
    app.connect("build-finished", finish, priority=900)  # when the theme has written its colours
    return {"version": "0.1", "parallel_read_safe": True, "parallel_write_safe": True}
