"""The built book in a real browser: every page, light and dark, wide and narrow; scripts on, off.

The bytes of each page at its first load, and the time until something stands on the screen, are
recorded, and conftest.py writes them to ``_build/pages.tsv``.
"""

import functools
import http.server
import importlib.util
import io
import re
import shutil
import threading
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

import pytest
from matplotlib.image import imread

HTML = Path(__file__).resolve().parent.parent / "_build" / "html"
NAMES = ("chromium", "google-chrome", "chromium-browser", "google-chrome-stable")
CHROMIUM = next(filter(None, map(shutil.which, NAMES)), None)
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
WIDE, NARROW = {"width": 1440, "height": 900}, {"width": 390, "height": 844}
NARROWEST = {
    "width": 320,
    "height": 640,
}  # WCAG's limit: text flows anew, and nothing goes sideways

if CHROMIUM is None:
    pytest.skip("no Chromium on the PATH, so no browser tests", allow_module_level=True)
if not HTML.is_dir():
    pytest.skip("no book in _build/html; run `make book` first", allow_module_level=True)
playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")

axe = importlib.util.find_spec("axe_playwright_python")
if axe is None:
    pytest.skip("axe-playwright-python is not installed", allow_module_level=True)
AXE = (Path(axe.origin).parent / "axe.min.js").read_text(encoding="utf-8")

# What a page says of itself: formulas, those of them that are set, and TeX left in the text (code
# aside).
STATE = r"""() => {
  const text = document.querySelector("main")?.cloneNode(true) ?? document.createElement("main");
  text.querySelectorAll("pre, code, script, math").forEach(e => e.remove());
  return {
    formulas: document.querySelectorAll("main .math").length,
    typeset: document.querySelectorAll("main .math math").length,
    errors: document.querySelectorAll("main merror, main .temml-error").length,
    tex: text.textContent.match(/\\[(\[)\]]|\$\$|\\[a-z]{3,}/g) ?? [],
  };
}"""
# Code and formulas are thousands of elements, which make every later look slow: after their widths
# were measured, formulas are emptied (no check looks into them), and of the words in a block of
# code one of each class is left, since what follows asks only for their colours.
THINNED = """() => {
  document.querySelectorAll("math").forEach(e => e.replaceChildren("x"));
  for (const block of document.querySelectorAll("div.highlight pre")) {
    const met = new Set();
    for (const word of block.querySelectorAll("span:not(:has(*))")) {
      const path = [];
      for (let e = word; e !== block; e = e.parentElement) path.push(e.tagName + e.className);
      const kind = path.join() + !word.textContent.trim();
      if (met.has(kind) && !word.hasAttribute("style")) word.remove();
      met.add(kind);
    }
  }
}"""
# WCAG 2.1 AA by axe-core, less the rules of COLOURS. What lies inside of code and formulas is only
# text to it.
STRUCTURE = """async () => {
  // two frames, in which the page sees how large its parts are, which have been hidden until now
  for (const _ of [1, 2]) await new Promise(requestAnimationFrame);
  const found = await axe.run({ exclude: [["div.highlight"], ["math"]] }, {
    preload: false, resultTypes: ["violations"],
    runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"],
    rules: { "color-contrast": { enabled: false }, "link-in-text-block": { enabled: false } },
  });
  return found.violations.map(v => [v.id, v.nodes.length, v.nodes[0].html.slice(0, 200)]);
}"""
# Colours are looked at by themselves, since that takes long: the elements with text are sorted by
# the colours they have and stand on, and one of each sort that was not met before is checked, while
# paragraphs and code without one are hidden. What axe cannot decide is a fault too, save for words
# in drawings: an SVG's shapes are no ground to it. One character alone is text here.
COLOURS = """async (met) => {
  const grounds = new Map();
  const ground = e => {
    if (!e) return "";
    if (!grounds.has(e)) {
      const { backgroundColor, backgroundImage, opacity } = getComputedStyle(e);
      const own = backgroundColor + backgroundImage + opacity;
      grounds.set(e, ground(e.parentElement) + (own === "rgba(0, 0, 0, 0)none1" ? "" : own));
    }
    return grounds.get(e);
  };
  const says = e => [...e.childNodes].some(n => n.nodeType === 3 && n.data.trim());
  const kinds = new Map(met.map(kind => [kind, null]));
  for (const e of document.body.querySelectorAll("*")) {
    if (!says(e) || e.closest("math")) continue;
    const { color, fill, fontSize, fontWeight } = getComputedStyle(e);
    if (!e.checkVisibility({ visibilityProperty: true })) continue;
    const ink = e.ownerSVGElement ? fill : color;
    const a = e.closest("a"); // within text it must also differ from it
    const link = a && says(a.parentElement) && [e === a, getComputedStyle(a).textDecorationLine];
    const kind = [ink, ground(e), parseFloat(fontSize) > 18, fontWeight > 600, link].join();
    if (!kinds.has(kind)) kinds.set(kind, link ? a : e);
  }
  const fresh = [...kinds.values()].filter(e => e);
  if (!fresh.length) return [met, []];
  fresh.forEach(e => e.setAttribute("data-checked", ""));
  const spared = [...document.querySelectorAll("main :is(p, pre, table, math)")]
    .filter(e => !e.closest("[data-checked]") && !e.querySelector("[data-checked]"));
  spared.forEach(e => e.setAttribute("data-spared", ""));
  axe._audit.checks["color-contrast"].options.ignoreLength = true;
  const found = await axe.run({ include: [["[data-checked]"]] },
    { preload: false, elementRef: true, resultTypes: ["violations", "incomplete"],
      runOnly: ["color-contrast", "link-in-text-block"] });
  fresh.forEach(e => e.removeAttribute("data-checked"));
  spared.forEach(e => e.removeAttribute("data-spared"));
  const unclear = found.incomplete.flatMap(v => v.nodes.filter(n => !n.element.ownerSVGElement)
    .map(n => [v.id, n.any[0].message, n.html.slice(0, 200)]));
  const faults = found.violations.flatMap(v => v.nodes.map(n => [v.id, n.html.slice(0, 200)]));
  return [[...kinds.keys()], [...faults, ...unclear]];
}"""
# Without the first, colours are looked at halfway from light to dark, or from hidden to shown. With
# the shadows at the edges of what scrolls, or halves of lines at the end of the contents, axe could
# not tell what the text there stands on.
STILL = """* { transition: none !important; animation: none !important; }
  [data-spared] { display: none !important; }
  .bd-sidebar { max-height: none !important; }
  :is(pre, .formula, .math.long, .pst-scrollable-table-container):not(#_) {
    background-image: none !important;
  }
"""
# What a page has asked for until it was loaded, and when it first showed something.
LOADED = """async () => {
  const parts = performance.getEntries().filter(e => "encodedBodySize" in e).map(e => e.name);
  const painted = new Promise(done => new PerformanceObserver(list => {
    const [entry] = list.getEntriesByName("first-contentful-paint");
    if (entry) done(Math.round(entry.startTime));
  }).observe({ type: "paint", buffered: true }));
  const late = new Promise(done => setTimeout(done, 10_000, null));
  return [[...new Set(parts)], await Promise.race([painted, late])];
}"""
# How far what was seen has jumped while the page was loaded (Cumulative Layout Shift; 0.1 is good).
SHIFT = """() => new Promise(done => {
  new PerformanceObserver(list => done(list.getEntries().reduce((sum, e) => sum + e.value, 0)))
    .observe({ type: "layout-shift", buffered: true });
  setTimeout(done, 20, 0);
})"""
# What is folded away until it is asked for: contents, answers, solutions.
UNFOLDED = """() => {
  document.querySelectorAll("details").forEach(e => (e.open = true));
  document.querySelectorAll(".toggle-hidden").forEach(e => e.classList.remove("toggle-hidden"));
}"""
# Text that the screen cuts off, without a way to scroll to it.
CUT = """() => [...document.querySelectorAll("main :is(p, li, td, figure, h1, h2, h3, math)")]
  .filter(e => e.checkVisibility() && e.getBoundingClientRect().right > innerWidth + 1)
  .filter(e => {
    for (; e; e = e.parentElement) {
      if (["auto", "scroll"].includes(getComputedStyle(e).overflowX) && e.clientWidth) return false;
    }
    return true;
  }).map(e => e.outerHTML.slice(0, 200))"""
# Pictures whose place is not kept free before they come, or that are drawn out of shape.
PICTURES = r"""() => [...document.querySelectorAll("article img[src*='_images/']")].filter(e => {
  const { paddingLeft, paddingTop } = getComputedStyle(e);
  const width = e.clientWidth - 2 * parseFloat(paddingLeft);
  const height = e.clientHeight - 2 * parseFloat(paddingTop);
  const ratio = e.getAttribute("width") / e.getAttribute("height");
  return !ratio || (e.clientWidth && Math.abs(width / height / ratio - 1) > 0.02);
}).map(e => e.outerHTML.slice(0, 200))"""
SIDEWAYS = "() => document.documentElement.scrollWidth - document.documentElement.clientWidth"


class Handler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *args):
        pass


@pytest.fixture(scope="module")
def address():
    handler = functools.partial(Handler, directory=str(HTML))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as p:
        browser = p.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def visit(browser, address):
    """Give a function that opens a tab, and fail if anything went wrong in one of them."""
    faults, contexts = [], []

    def open_tab(size=WIDE, scheme="light", **options):
        contexts.append(browser.new_context(viewport=size, color_scheme=scheme, **options))
        tab = contexts[-1].new_page()

        def note(*fault):
            faults.append((tab.url.removeprefix(address), *fault))

        def asked(request):
            if not request.url.startswith((address, HTML.as_uri(), "data:", "blob:")):
                note("asked another host", request.url)

        def failed(request):
            # aborted: the tab left for another page before an icon had come; csp: a script, where
            # scripts are off
            if request.failure not in ("net::ERR_ABORTED", "csp"):
                note("failed", request.url, request.failure)

        tab.on("request", asked)
        tab.on("requestfailed", failed)
        tab.on("response", lambda r: r.status >= 400 and note(r.status, r.url))
        tab.on("console", lambda m: m.type in ("error", "warning") and note(m.type, m.text))
        tab.on("pageerror", lambda e: note("page error", str(e)))
        return tab

    yield open_tab
    for context in contexts:
        context.close()
    assert not faults


def pages() -> list[str]:
    found = [path.relative_to(HTML).as_posix() for path in sorted(HTML.rglob("*.html"))]
    return [
        p for p in found if not p.startswith("_static/") and p not in ("index.html", "404.html")
    ]


def on_disk(url: str, address: str) -> Path:
    return HTML / unquote(urlsplit(url.removeprefix(address)).path)


def schemes(tab):
    """Go through light and dark, beginning with what the tab has."""
    dark = tab.evaluate("matchMedia('(prefers-color-scheme: dark)').matches")
    for scheme in ("dark", "light") if dark else ("light", "dark"):
        tab.emulate_media(color_scheme=scheme)
        if tab.evaluate("document.documentElement.dataset.mode"):  # a script follows the system
            tab.locator(f"html[data-theme={scheme}]").wait_for(state="attached", timeout=20_000)
        yield scheme


def prepare(tab):
    tab.evaluate(AXE)
    tab.add_style_tag(content=STILL)


def faults_of_loading(tab) -> list:
    shift = tab.evaluate(SHIFT)
    return [("jumps", shift)] if shift > 0.1 else []


def faults_of_colour(tab) -> list:
    found = []
    for scheme in schemes(tab):
        met[scheme], faults = tab.evaluate(COLOURS, met[scheme])
        found += [(scheme, *fault) for fault in faults]
    return found


def faults_of_width(tab) -> list:
    pixels = tab.evaluate(SIDEWAYS)
    found = [(f"{pixels} px sideways",)] if pixels > 0 else []
    found += [("cut off", html) for html in tab.evaluate(CUT)]
    return found + [("no size, or another", html) for html in tab.evaluate(PICTURES)]


def faults_of_structure(tab) -> list:
    return tab.evaluate(STRUCTURE)


SHARDS = 8  # parts of the book that can be looked at side by side
each_part = pytest.mark.parametrize(
    "pages", [pages()[n::SHARDS] for n in range(SHARDS)], ids=range(SHARDS)
)
met = {"light": [], "dark": []}  # the sorts of coloured text that were checked


@each_part
def test_every_page_wide(visit, address, pages, record_property):
    """Nothing goes wrong; formulas are set; WCAG 2.1 AA; under 1 MB at the first load."""
    tab, wrong = visit(), []
    for page in pages:
        tab.goto(address + page)
        parts, painted = tab.evaluate(LOADED)
        size = sum(on_disk(part, address).stat().st_size for part in parts)
        record_property("page", (page, size, len(parts), painted))
        if size >= 1_000_000 or painted is None:
            wrong.append((page, f"{size} bytes, painted after {painted} ms"))
        state = tab.evaluate(STATE)
        if state["typeset"] != state["formulas"] or state["errors"] or state["tex"]:
            wrong.append((page, state))
        found = faults_of_loading(tab)
        prepare(tab)
        found += faults_of_width(tab)
        tab.evaluate(THINNED)
        found += faults_of_colour(tab) + faults_of_structure(tab)
        wrong += [(page, *fault) for fault in found]
    assert not wrong, "\n".join(map(str, wrong))


@each_part
def test_every_page_narrow_and_from_a_folder(visit, pages):
    """No server: no request fails, and nothing complains (the fixture looks). All is unfolded."""
    tab, wrong = visit(NARROW), []
    for page in pages:
        tab.goto(f"{HTML.as_uri()}/{page}")
        found = faults_of_loading(tab)
        prepare(tab)
        tab.evaluate(UNFOLDED)
        found += faults_of_width(tab)
        tab.set_viewport_size(NARROWEST)
        found += faults_of_width(tab)
        tab.evaluate(THINNED)
        tab.set_viewport_size(NARROW)
        found += faults_of_colour(tab) + faults_of_structure(tab)
        wrong += [(page, *fault) for fault in found]
    assert not wrong, "\n".join(map(str, wrong))


def without_scripts(route):
    """Answer as a browser reads a page whose scripts are off, while the test's own can run."""
    html = route.fetch().text()
    html = re.sub(r"<script\b.*?</script>", "", html, flags=re.S)
    route.fulfill(body=re.sub(r"</?noscript>", "", html), content_type="text/html; charset=utf-8")


@each_part
def test_every_page_without_scripts(visit, address, pages):
    """Narrow and wide; colours do not depend on the width, as the tests above have seen."""
    tab, wrong = visit(NARROW), []
    tab.route("**/*.html", without_scripts)
    for page in pages:
        tab.goto(address + page)
        prepare(tab)
        found = faults_of_width(tab)
        tab.set_viewport_size(WIDE)
        found += faults_of_width(tab)
        tab.evaluate(THINNED)
        found += faults_of_structure(tab)
        tab.set_viewport_size(NARROW)
        found += faults_of_colour(tab)
        wrong += [(page, *fault) for fault in found]
    assert not wrong, "\n".join(map(str, wrong))


def test_first_page(visit, address):
    tab = visit()
    tab.goto(address)
    tab.wait_for_url("**/book/intro.html")
    tab.locator("svg.model-map").get_by_role("link", name="cross-attention").locator("rect").click()
    tab.wait_for_url("**/nbs/07_decoder.html*")


@pytest.mark.parametrize("scripts", [True, False], ids=["scripts", "no scripts"])
@pytest.mark.parametrize("size", [WIDE, NARROW], ids=["wide", "narrow"])
def test_map_tells_what_a_block_computes(visit, address, scripts, size):
    """By pointer and by keyboard; and all that it says lies within the drawing."""
    tab = visit(size, java_script_enabled=scripts)
    tab.goto(address + "book/intro.html")
    block = tab.locator("svg.model-map a").filter(has_text="Self-attention").first
    note, hint = block.locator(".note"), tab.locator("svg.model-map .hint")
    assert hint.is_visible() and not note.is_visible()
    block.locator("rect").hover()
    assert note.is_visible() and not hint.is_visible()
    tab.mouse.move(0, 0)
    block.focus()
    assert note.is_visible() and "softmax" in note.text_content()
    assert block.get_attribute("aria-label").startswith("Multi-head self-attention")
    if scripts:
        drawing = tab.locator("svg.model-map").bounding_box()
        for box in tab.evaluate(
            "() => [...document.querySelectorAll('svg.model-map text')]"
            ".map(e => (({ left, right, top, bottom }) => [left, right, top, bottom])"
            "(e.getBoundingClientRect()))"
        ):
            assert drawing["x"] <= box[0] and box[1] <= drawing["x"] + drawing["width"]
        keyboard = tab.evaluate(
            "() => [...document.querySelectorAll('svg.model-map a')].map(e => e.tabIndex)"
        )
        assert len(keyboard) >= 20 and set(keyboard) == {0}


def test_small_map_leads_to_the_large_one(visit, address):
    tab = visit()
    tab.goto(address + "nbs/07_decoder.html")
    here = tab.locator(".chapter-head a.here")
    assert here.locator("rect.lit").count() >= 6 and "the decoder" in here.inner_text()
    here.click()
    tab.wait_for_url("**/book/intro.html#a-map-of-the-model")


def test_term_shows_its_meaning(visit, address):
    """On hover and focus, until Escape; a tap shows it, a second one follows."""
    tab = visit()
    tab.goto(address + "nbs/02_attention.html")
    term, meaning = tab.locator("a.term").first, tab.locator("#meaning")
    assert not meaning.is_visible()
    term.hover()
    meaning.wait_for(state="visible", timeout=20_000)
    assert meaning.inner_text() == term.get_attribute("data-meaning")
    meaning.hover()
    tab.wait_for_timeout(400)
    assert meaning.is_visible(), "it must stay while the pointer is on it"
    tab.mouse.move(0, 0)
    meaning.wait_for(state="hidden", timeout=20_000)
    term.focus()
    meaning.wait_for(state="visible", timeout=20_000)
    assert term.get_attribute("aria-describedby") == "meaning"
    tab.keyboard.press("Escape")
    assert not meaning.is_visible()

    phone = visit(NARROW, has_touch=True, java_script_enabled=True)
    phone.goto(address + "nbs/02_attention.html")
    term, meaning = phone.locator("a.term").first, phone.locator("#meaning")
    term.tap()
    meaning.wait_for(state="visible", timeout=20_000)
    box = meaning.bounding_box()
    assert box["x"] >= 0 and box["x"] + box["width"] <= NARROW["width"]
    phone.locator("article h1").first.tap()
    meaning.wait_for(state="hidden", timeout=20_000)
    term.focus()  # by a keyboard, after the tap
    meaning.wait_for(state="visible", timeout=20_000)
    phone.locator("article h1").first.tap()
    meaning.wait_for(state="hidden", timeout=20_000)
    term.tap()
    meaning.wait_for(state="visible", timeout=20_000)
    term.tap()
    phone.wait_for_url("**/book/glossary.html#*")


def test_chinese_comes_with_the_book(visit, address):
    """For a machine that has no Chinese font, in prose as in code; other pages do not load it."""
    tab, loaded = visit(), "() => [...document.fonts].filter(f => f.status == 'loaded').length"
    for page, fonts in (("book/intro.html", 1), ("nbs/13_translation.html", 2)):
        tab.goto(address + page)
        tab.wait_for_function(f"[...document.fonts].length && ({loaded})() >= {fonts}")
    tab.goto(address + "nbs/05_layers.html")
    tab.evaluate("document.fonts.ready.then(() => 0)")
    names = tab.evaluate(
        "() => [...document.fonts].filter(f => f.status == 'loaded').map(f => f.family)"
    )
    assert not any("Chinese" in name or "Dates" in name for name in names)


def test_what_scrolls_sideways_says_so(visit, address):
    tab = visit(NARROW)
    tab.goto(address + "nbs/14_inside.html")
    boxes = tab.locator("span.picture[tabindex]")
    boxes.first.wait_for(timeout=20_000)
    for box in boxes.all():
        assert box.get_attribute("role") == "group" and "sideways" in box.get_attribute(
            "aria-label"
        )


def test_without_scripts_a_page_is_whole(visit, address):
    tab = visit(scheme="dark", java_script_enabled=False)
    tab.goto(address + "nbs/02_attention.html")
    assert tab.locator(".formula math").first.is_visible()
    assert tab.locator("figure img").first.is_visible()
    page, text, keyword = tab.evaluate(
        "() => [['body', 'backgroundColor'], ['pre', 'color'], ['pre .kn', 'color']].map("
        "([of, name]) => getComputedStyle(document.querySelector(of))[name])"
    )
    dark, bright = (sum(map(int, re.findall(r"\d+", c)[:3])) for c in (page, text))
    assert dark < 150 and bright > 500, "the system's dark theme"
    assert keyword != text, "colours of code"
    tab.set_viewport_size(NARROW)
    assert not tab.locator(".sidebar-toggle >> visible=true").count(), "a button that does nothing"
    assert tab.locator(".bd-sidebar-primary").get_by_role("link", name="Glossary").is_visible()
    tab.locator("a.term").first.click()
    tab.wait_for_url("**/book/glossary.html#*")


def test_printed_page_is_clean(visit, address):
    tab = visit(scheme="dark")
    tab.goto(address + "nbs/02_attention.html")
    tab.emulate_media(media="print")
    for gone in (".bd-sidebar-primary", ".bd-header-article", ".prev-next-footer", "div.solution"):
        assert not tab.locator(gone).first.is_visible(), gone
    assert tab.locator("div.exercise").first.is_visible() and tab.locator("h1").last.is_visible()
    tab.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    assert tab.locator("html[data-theme=light]").count() == 1
    picture = tab.locator("div.cell_output img").first
    assert picture.evaluate("e => getComputedStyle(e).filter") == "none", "as it was drawn"
    tab.wait_for_function(
        "() => [...document.querySelectorAll('article img')].every(e => e.naturalWidth)"
    )
    tab.evaluate("window.dispatchEvent(new Event('afterprint'))")
    assert tab.locator("html[data-theme=dark]").count() == 1


def test_what_is_too_wide_says_so(visit, address):
    """A table or a picture of many panels scrolls inside itself, under a shadow at its edge."""
    tab = visit(NARROW)
    tab.goto(address + "nbs/13_translation.html")
    for kind in (".pst-scrollable-table-container", ".picture"):
        box = tab.locator(kind).first
        wide, seen, ground = box.evaluate(
            "e => [e.scrollWidth, e.clientWidth, getComputedStyle(e).backgroundImage]"
        )
        assert wide > seen and "gradient" in ground
        box.focus()
        tab.keyboard.press("ArrowRight")
        tab.wait_for_function(f"document.querySelector('{kind}').scrollLeft > 0", timeout=20_000)
    picture = box.locator("img")
    assert picture.evaluate("e => [e.clientWidth, e.clientHeight].join('x')") == "x".join(
        picture.get_attribute(side) for side in ("width", "height")
    ), "small letters are read at the size they were drawn in"


def test_pictures_belong_to_the_page_in_the_dark(visit, address):
    """What was white is the page's ground, what was black is bright, and blue stays blue."""
    tab = visit()
    tab.goto(address + "nbs/02_attention.html")
    picture = tab.locator("figure:has-text('Blue cells may be attended to') img")
    picture.scroll_into_view_if_needed()
    tab.wait_for_function("e => e.complete && e.naturalWidth", arg=picture.element_handle())
    for scheme in schemes(tab):
        ground = tab.evaluate("getComputedStyle(document.body).backgroundColor")
        seen = (imread(io.BytesIO(picture.screenshot()))[..., :3] * 255).round().astype(int)
        assert f"rgb({', '.join(map(str, seen[2, 2]))})" == ground, scheme
        sums = seen.sum(axis=-1)
        assert sums.max() - sums.min() > 500, "its letters stand out"
        red, _green, blue = seen.reshape(-1, 3).T
        assert (blue - red > 80).mean() > 0.2, "the cells that may be attended to"


def test_reference_on_a_phone(visit, address):
    """A module's name breaks after its full stop; each link to the source lies in its box."""
    tab = visit(NARROW)
    tab.goto(address + "book/api/attention.html")
    name = tab.locator("article h1").last
    broken, whole = name.evaluate("""e => {
      const words = [...e.childNodes].filter(n => n.data).map(text => {
        const range = document.createRange();
        range.selectNodeContents(text);
        return range.getClientRects().length;
      });
      return [words.length, Math.max(...words)];
    }""")
    assert (broken, whole) == (2, 1)
    outside = """() => [...document.querySelectorAll("dt.sig .viewcode-link")].filter(e =>
      e.getBoundingClientRect().bottom > e.closest("dt").getBoundingClientRect().bottom)
      .map(e => e.closest("dt").id)"""
    assert tab.locator("dt.sig .viewcode-link").count() and not tab.evaluate(outside)
    assert tab.get_by_text('alias of Shaped[Tensor, "..."]').is_visible()


def test_titles_of_works_are_not_marked(visit, address):
    tab = visit()
    tab.goto(address + "book/bibliography.html")
    assert tab.locator("div.citation").count() and not tab.locator("a.term").count()


SEARCHES = {  # what is looked for, and a page that must be among the first three
    "beam_search": "book/api/decoding.html#transformer_lit.decoding.beam_search",
    "KeyValueCache": "book/api/multi_head.html#transformer_lit.multi_head.KeyValueCache",
    "A window": "nbs/02_attention.html#ex-window",
    "d_k": "nbs/02_attention.html",
    "teacher forcing": "book/glossary.html#term-teacher-forcing",
}


@pytest.mark.parametrize("place", ["server", "folder"])
def test_search_finds(visit, address, place):
    """Functions, classes, exercises, symbols and terms; also where there is no server."""
    tab = visit()
    start = address if place == "server" else f"{HTML.as_uri()}/"
    for words, page in SEARCHES.items():
        tab.goto(f"{start}search.html?q={quote(words)}")
        tab.locator("#search-results ul.search li a").first.wait_for(timeout=20_000)
        tab.locator(".search-summary").get_by_text("finished").wait_for(timeout=20_000)
        links = tab.locator("#search-results ul.search > li > a").evaluate_all(
            "all => all.slice(0, 3).map(a => a.getAttribute('href'))"
        )
        assert page in links, (words, links)


def test_search_takes_anything(visit, address):
    """It comes to an end, and what was typed stays text."""
    tab = visit(NARROW)
    for words in ("constructor", "__proto__", "<img src=x onerror=alert(1)>", "(((", "\\", "注意"):
        tab.goto(f"{address}search.html?q={quote(words)}")
        said = tab.locator(".search-summary").filter(has_text=re.compile("finished|did not match"))
        said.wait_for(timeout=20_000)
        assert not tab.locator("#search-results img").count() and not tab.evaluate(SIDEWAYS)


def test_search(visit, address):
    tab = visit()
    tab.goto(address + "book/intro.html")
    tab.keyboard.press("Control+K")
    tab.keyboard.type("attention")
    tab.keyboard.press("Enter")
    tab.locator('#search-results a[href*="nbs/02_attention.html"]').first.wait_for(timeout=20_000)


@pytest.mark.parametrize("size", [WIDE, NARROW], ids=["wide", "narrow"])
def test_solution_opens_with_the_keyboard(visit, address, size):
    tab = visit(size)
    tab.goto(address + "nbs/02_attention.html")
    solution = tab.locator("div.solution").first
    code = solution.locator("pre").first
    assert not code.is_visible()
    solution.locator("button").first.focus()
    tab.keyboard.press("Enter")
    code.wait_for(state="visible", timeout=20_000)


@pytest.mark.parametrize("scripts", [True, False], ids=["scripts", "no scripts"])
def test_quiz(visit, address, scripts):
    """A choice opens to say why, by the keyboard and without scripts; with them, tries count."""
    tab = visit(java_script_enabled=scripts)
    tab.goto(address + "nbs/02_attention.html")
    right = tab.locator(".quiz .choice.right").first
    wrong = tab.locator(".quiz").nth(1).locator(".choice.wrong").first
    for choice, said in ((right, "Right."), (wrong, "Not quite.")):
        explanation = choice.locator("p")
        assert not explanation.is_visible()
        choice.locator("summary").focus()
        tab.keyboard.press("Enter")
        explanation.wait_for(state="visible", timeout=20_000)
        assert said in choice.inner_text()
    if scripts:
        score = tab.locator(".quiz-score")
        assert score.inner_text().startswith("Right at the first try: 1 of 2 answered")
        tab.locator(".quiz").nth(1).locator(".choice.right summary").click()
        assert "1 of 2" in score.inner_text(), "a second try does not count"


@pytest.mark.parametrize("size", [WIDE, NARROW], ids=["wide", "narrow"])
def test_theme_switch(visit, address, size):
    tab = visit(size)
    tab.goto(address + "book/intro.html")
    colours = set()
    for _ in range(3):
        tab.locator("button.theme-switch-button >> visible=true").click()
        colours.add(tab.evaluate("getComputedStyle(document.body).backgroundColor"))
    assert len(colours) == 2, "light and dark look the same"


# The colours of book.css by their names, as red, green and blue.
PALETTE = r"""names => Object.fromEntries(names.map(name => {
  const e = document.body.appendChild(document.createElement("i"));
  e.style.color = `var(--${name})`;
  const { color } = getComputedStyle(e);
  e.remove();
  return [name, color.match(/\d+/g).map(Number)];
}))"""


def luminance(colour) -> float:
    parts = [c / 255 for c in colour]
    red, green, blue = (c / 12.92 if c <= 0.04 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_colours_of_drawings_have_contrast(visit, address):
    """On the page and on each other, as WCAG asks: words 4.5, lines 3. Axe cannot see them."""
    meanings = ("query", "key", "value", "stream", "mask", "good", "bad")
    kinds = ("attention", "feed-forward", "norm", "embedding", "plain")
    words = [("ink", kind) for kind in kinds] + [("ink", "paper"), ("ink-muted", "paper")]
    for name in meanings:
        words += [(f"{name}-text", "paper"), (f"{name}-text", f"{name}-fill")]
        words += [("ink", f"{name}-fill"), ("ink-muted", f"{name}-fill")]
    least = dict.fromkeys(words, 4.5) | {(name, "paper"): 3 for name in meanings}
    tab = visit()
    tab.goto(address + "book/intro.html")
    prepare(tab)
    for scheme in schemes(tab):
        colours = tab.evaluate(PALETTE, sorted({name for pair in least for name in pair}))
        for pair, ratio in least.items():
            dark, bright = sorted(luminance(colours[name]) for name in pair)
            assert (bright + 0.05) / (dark + 0.05) >= ratio, (scheme, *pair)


# Where the focus is, whether it shows, and whether the header at the upper edge hides it.
FOCUS = """() => {
  const e = document.activeElement, box = e.getBoundingClientRect();
  const shown = [e, e.nextElementSibling, ...e.children].some(
    part => part && parseFloat(getComputedStyle(part).outlineWidth) >= 2);
  const header = document.querySelector(".bd-header-article").getBoundingClientRect();
  const hidden = box.bottom <= header.bottom && e.matches("article *");
  return [e.tagName, e.className.baseVal ?? e.className, shown && !hidden];
}"""


def test_keyboard_goes_through_a_chapter(visit, address):
    """Past the contents by the skip link, then to all there is to do; one always sees where."""
    tab = visit(reduced_motion="reduce")
    tab.goto(address + "nbs/02_attention.html")
    tab.keyboard.press("Tab")
    tab.keyboard.press("Enter")
    tab.wait_for_url("**#main-content")  # the address changes a moment after the key
    stops = []
    while not stops or stops[-1][0] != "BODY":
        tab.keyboard.press("Tab")
        stops.append(tab.evaluate(FOCUS))
        assert stops[-1][2] or stops[-1][0] == "BODY", tab.evaluate(
            "document.activeElement.outerHTML.slice(0, 300)"
        )
        assert len(stops) < 400, "the focus goes round"
    names = {f"{tag} {name}" for tag, name, _ in stops}
    assert {"SUMMARY ", "SELECT ", "INPUT ", "A term"} <= names
    for kind in ("toggle-button", "copybtn", "handle", "theme-switch"):
        assert any(kind in name for name in names), kind
    tab.keyboard.press("Shift+Tab")
    assert tab.evaluate(FOCUS)[2]
