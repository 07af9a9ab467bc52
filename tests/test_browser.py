"""The built book in a real browser: every page, in light and dark, wide and narrow."""

import functools
import http.server
import shutil
import threading
from pathlib import Path

import pytest

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
WIDE, NARROW = {"width": 1280, "height": 900}, {"width": 390, "height": 844}

if CHROMIUM is None:
    pytest.skip("no Chromium on the PATH, so no browser tests", allow_module_level=True)
if not HTML.is_dir():
    pytest.skip("no book in _build/html; run `make book` first", allow_module_level=True)
playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")

# What a page says of itself once MathJax is done: formulas set and in all, TeX left in the text
# (code aside), and how far the page can be pushed sideways.
STATE = r"""async () => {
  await window.MathJax?.startup?.promise;
  const text = document.querySelector("main")?.cloneNode(true) ?? document.createElement("main");
  text.querySelectorAll("pre, code, script, mjx-container").forEach(e => e.remove());
  return {
    formulas: document.querySelectorAll("main .math").length,
    typeset: document.querySelectorAll("main .math mjx-container").length,
    errors: document.querySelectorAll("mjx-merror").length,
    tex: text.textContent.match(/\\[(\[)\]]|\$\$|\\[a-z]{3,}/g) ?? [],
  };
}"""
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
            if not request.url.startswith((address, "data:", "blob:")):
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


def test_every_page(visit, address):
    tab, wrong = visit(), []
    for path in sorted(HTML.rglob("*.html")):
        page = path.relative_to(HTML).as_posix()
        if page.startswith("_static/") or page == "index.html":  # which only leads on
            continue
        tab.goto(address + page)
        state = tab.evaluate(STATE)
        if state["typeset"] != state["formulas"] or state["errors"] or state["tex"]:
            wrong.append((page, state))
        for scheme in ("light", "dark"):
            tab.emulate_media(color_scheme=scheme)
            tab.locator(f"html[data-theme={scheme}]").wait_for(state="attached", timeout=5000)
            for size in (WIDE, NARROW):
                tab.set_viewport_size(size)
                if (pixels := tab.evaluate(SIDEWAYS)) > 0:
                    wrong.append((page, scheme, size["width"], f"{pixels} px sideways"))
        tab.set_viewport_size(WIDE)
    assert not wrong


def test_front_page(visit, address):
    tab = visit()
    tab.goto(address)
    tab.wait_for_url("**/book/intro.html")
    tab.locator(".model-map").get_by_text("Cross-attention").click()
    tab.wait_for_url("**/nbs/07_decoder.html")


def test_search(visit, address):
    tab = visit()
    tab.goto(address + "book/intro.html")
    tab.keyboard.press("Control+K")
    tab.keyboard.type("attention")
    tab.keyboard.press("Enter")
    tab.locator('#search-results a[href*="nbs/02_attention.html"]').first.wait_for(timeout=10_000)


@pytest.mark.parametrize("size", [WIDE, NARROW], ids=["wide", "narrow"])
def test_solution_opens_with_the_keyboard(visit, address, size):
    tab = visit(size)
    tab.goto(address + "nbs/02_attention.html")
    solution = tab.locator("div.solution").first
    code = solution.locator("pre").first
    assert not code.is_visible()
    solution.locator("button").first.focus()
    tab.keyboard.press("Enter")
    code.wait_for(state="visible", timeout=5000)


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
        explanation.wait_for(state="visible", timeout=5000)
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


def test_focus_can_be_seen(visit, address):
    tab = visit()
    tab.goto(address + "nbs/02_attention.html")
    for _ in range(12):
        tab.keyboard.press("Tab")
        outline = tab.evaluate("parseFloat(getComputedStyle(document.activeElement).outlineWidth)")
        assert outline >= 2, tab.evaluate("document.activeElement.outerHTML")
