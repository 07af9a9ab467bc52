"""What a page is on the web: addresses, description, social card, sitemap; and that it is light.

* The address of the site is ``[project.urls] Documentation`` of pyproject.toml, or else GitHub
  Pages' for the repository. From it come canonical links, the sitemap and the 404 page.
* A page's description is its first paragraph.
* The theme brings 1.9 MB of icons and styles. A page gets the icons that the book uses, and of the
  styles those rules whose classes occur in it.
* Pictures are loaded when they come near the screen; each says its size, so that nothing jumps.
"""

import re
import struct
import tomllib
from pathlib import Path
from urllib.parse import quote, urlsplit

from docutils import nodes
from sphinx.locale import get_translation

_ = get_translation("literate")
# in code: spans for what has the colour of the text anyway, a third of a chapter's bytes
PLAIN = re.compile(r'<span class="[npw]">([^<]*)</span>')
# roles of bibliographies that WAI-ARIA has given up
CITED = re.compile(r' role="(?:doc-biblioentry|list)"(?=[^>]*>)')
WORD = re.compile(r"[A-Za-z_][\w-]*")
LONGEST = 200  # characters of a description


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
        body = lazy_pictures(context["body"], Path(app.outdir) / "_images")
        body = re.sub(r"<pre>.*?</pre>", lambda match: PLAIN.sub(r"\1", match[0]), body, flags=re.S)
        body = CITED.sub("", body)
        context["body"] = re.sub(
            r'<dt class="sig .*?</dt>', lambda match: lines(match[0]), body, flags=re.S
        )
    if contents := context.get("generate_toctree_html"):
        context["generate_toctree_html"] = lambda *args, **options: named(
            contents(*args, **options)
        )


def lines(signature: str) -> str:
    """Write the lines of a long signature as boxes: a list of definitions they are not."""
    return re.sub(r"<(/?)d[ld]>", r"<\1div>", signature)


def named(contents) -> str:
    """Give the switches in the table of contents a name."""
    name = _("Show or hide the pages of this part")
    return str(contents).replace("<summary>", f'<summary aria-label="{name}">')


def lazy_pictures(body: str, folder: Path) -> str:
    def sized(match):
        path = folder / match[2]
        size = ""
        if path.suffix == ".png" and path.is_file() and "width" not in match[0]:
            with path.open("rb") as file:
                width, height = struct.unpack(">II", file.read(24)[16:])
            size = f' width="{width}" height="{height}"'
        return f'<img loading="lazy" decoding="async"{size} {match[1]}_images/{match[2]}"'

    return re.sub(r'<img (?!loading)([^>]*?src="[^"]*?)_images/([^"]+)"', sized, body)


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


def lighten(app):
    """Write the icons, and trim the style sheets that the theme and the extensions brought."""
    out = Path(app.outdir)
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
        if sheet.parent != own and "fontawesome" not in sheet.parts:
            sheet.write_text(trim(sheet.read_text(encoding="utf-8"), words), encoding="utf-8")


def finish(app, error):
    if not error and app.builder.name == "html":
        sitemap(app)
        lighten(app)


def setup(app):
    app.connect("config-inited", address)
    app.connect("html-page-context", describe, priority=800)
    app.connect("build-finished", finish)
    return {"version": "0.1", "parallel_read_safe": True, "parallel_write_safe": True}
