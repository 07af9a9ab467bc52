"""The movable figures in a real browser: moved by pointer and keyboard, and by many values at once.

What they show is compared with the package.
"""
# ruff: noqa: F811  (fixtures come by import, and are arguments of the same name)

import json
import math
import random
import re
import statistics

import pytest
import torch
from test_browser import HTML, NARROW, WIDE, address, browser, visit  # noqa: F401

from transformer_lit.attention import attention, causal_mask, padding_mask
from transformer_lit.decoder import decoder_mask
from transformer_lit.embedding import sinusoidal_positions
from transformer_lit.figures import describe_mask

PAGES = {
    "soft-lookup": "02_attention",
    "scale": "02_attention",
    "positions": "03_embedding",
    "masks": "07_decoder",
    "beam": "12_decoding",  # its numbers, and those of the next two, in test_translator_page.py
    "translator": "13_translation",
    "heads": "14_inside",
}

# Set controls, by their labels, to values; after each, say how long it took and what is shown.
# A state is a mapping of labels to values, in the order in which they are set.
DRIVE = """(figure, [states, shown]) => states.map((state) => {
  const texts = (selector) => [...figure.querySelectorAll(selector)].map((node) => node.innerText);
  const labels = [...figure.querySelectorAll("label[for]")];
  let longest = 0;
  for (const [label, value] of Object.entries(state)) {
    const input = labels.find((node) => node.textContent === label).control;
    const start = performance.now();
    input.value = value;
    input.dispatchEvent(new Event(input.tagName === "SELECT" ? "change" : "input"));
    figure.getBoundingClientRect();  // so that the layout is part of it
    longest = Math.max(longest, performance.now() - start);
  }
  return { longest, ...Object.fromEntries(Object.entries(shown).map(([k, s]) => [k, texts(s)])) };
})"""


@pytest.fixture
def figure(visit, address):
    """Give a function that opens the page of a figure and returns the living figure."""

    def opened(name, size=WIDE, **options):
        tab = visit(size, **options)
        tab.goto(f"{address}nbs/{PAGES[name]}.html", wait_until="domcontentloaded")
        place = tab.locator(f".movable.{name}")
        place.scroll_into_view_if_needed()
        return place

    return opened


def number(text):
    return float(text.replace("\N{MINUS SIGN}", "-"))


def numbers(texts):
    return [number(text) for text in texts]


def near(shown, expected, digits):
    """Assert that numbers are those expected, rounded to so many digits."""
    expected = torch.as_tensor(expected, dtype=torch.float64)
    shown = torch.tensor(shown, dtype=torch.float64)
    torch.testing.assert_close(shown, expected, atol=0.5 * 10**-digits + 1e-6, rtol=0)


def values_of(place):
    script = "node => node.closest('.cell').querySelector('script.movable').textContent"
    return json.loads(place.evaluate(script))["values"]


def quick(states):
    """Assert that a change takes under 60 ms, where the machine is not doing other things."""
    times = sorted(state["longest"] for state in states)
    print(f"a change takes {statistics.median(times):.1f} ms, the longest {times[-1]:.1f} ms")
    assert times[len(times) // 4] < 60


# --- 1: the soft look-up

LOOK_UP = {"numbers": "td.number", "report": ".report"}
KINDS = ["novel", "history", "technology"]


def check_look_up(keys, query, factor, shown):
    keys = torch.tensor(keys, dtype=torch.float64)
    query = factor * torch.tensor(query, dtype=torch.float64)
    answer, weights = attention(math.sqrt(3) * query[None], keys, keys)
    told = numbers(shown["numbers"])
    near(told[::2], keys @ query, 2)
    near(told[1::2], weights[0], 2)
    words = shown["report"][0].split("The answer: ")[1].rstrip(".").split(", ")
    near([number(word.split()[0]) for word in words], answer[0], 2)
    assert [word.split()[1] for word in words] == KINDS


def test_the_look_up_answers_as_attention_does(figure):
    place = figure("soft-lookup")
    keys, r = values_of(place)["keys"], random.Random(0)
    states = [{"novel": 0, "history": 0, "technology": 0, "scores times": 0}]
    states += [dict.fromkeys(KINDS, 1) | {"scores times": 40}]
    states += [
        {kind: round(r.random(), 2) for kind in KINDS} | {"scores times": r.randrange(41)}
        for _ in range(30)
    ]
    told = place.evaluate(DRIVE, [states, LOOK_UP | {"values": ".control .value"}])
    for state, shown in zip(states, told, strict=True):
        *query, factor = numbers(shown["values"])
        assert query == [state[kind] for kind in KINDS]
        assert factor == pytest.approx(10 ** (state["scores times"] / 20), rel=0.05)
        check_look_up(keys, query, factor, shown)
    assert "Several come first" in told[0]["report"][0]
    quick(told)
    place.get_by_role("button", name="As in the text").click()
    [shown] = place.evaluate(DRIVE, [[{}], LOOK_UP])
    check_look_up(keys, [0.8, 0.1, 0.1], 1, shown)


def test_the_query_is_dragged(figure):
    """To each book, and far out of the triangle; the arrows move it as well."""
    place = figure("soft-lookup")
    keys = values_of(place)["keys"]
    mouse, handle = place.page.mouse, place.get_by_role("slider", name="query")
    for size in (WIDE, NARROW):
        place.page.set_viewport_size(size)
        place.locator("svg").evaluate("node => node.scrollIntoView({ block: 'center' })")
        circles = [place.locator("circle.key").nth(j) for j in range(4)]
        for j, circle in enumerate(circles):
            box = circle.bounding_box()
            handle.hover()
            mouse.down()
            mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2, steps=3)
            mouse.up()
            [shown] = place.evaluate(DRIVE, [[{}], LOOK_UP | {"values": ".control .value"}])
            query = numbers(shown["values"][:3])
            key = torch.tensor(keys[j])
            torch.testing.assert_close(torch.tensor(query), key / key.sum(), atol=0.02, rtol=0)
            check_look_up(keys, query, 1, shown)
        handle.hover()
        mouse.down()
        mouse.move(0, 0, steps=2)
        mouse.up()
        mouse.move(300, 300)  # no longer held
        handle.hover()
        mouse.down(button="right")  # this opens a menu
        mouse.move(300, 300)
        mouse.up(button="right")
        [shown] = place.evaluate(DRIVE, [[{}], LOOK_UP | {"values": ".control .value"}])
        query = numbers(shown["values"][:3])
        assert min(query) >= 0 and sum(query) == pytest.approx(1, abs=0.011)
        check_look_up(keys, query, 1, shown)

        place.get_by_role("button", name="As in the text").click()
        handle.focus()
        place.page.keyboard.press("ArrowRight")
        place.page.keyboard.press("Shift+ArrowUp")
        [shown] = place.evaluate(DRIVE, [[{}], LOOK_UP | {"values": ".control .value"}])
        query = numbers(shown["values"][:3])
        assert query[0] < 0.75 and query[1] > 0.15 and sum(query) == pytest.approx(1, abs=0.011)
        check_look_up(keys, query, 1, shown)
        assert handle.get_attribute("aria-valuetext") == ", ".join(
            f"{x:.2f} {kind}" for x, kind in zip(query, KINDS, strict=True)
        )
        place.page.keyboard.press("Tab")  # to the first of the sliders, which does the same
        place.page.keyboard.press("Home")
        assert place.locator(".control .value").first.inner_text() == "0.00"


def test_a_finger_drags_the_query_and_not_the_page(figure):
    place = figure("soft-lookup", NARROW, has_touch=True)
    place.locator("svg").evaluate("node => node.scrollIntoView({ block: 'center' })")
    tab, touch = place.page, place.page.context.new_cdp_session(place.page)
    scrolled = tab.evaluate("scrollY")
    start, end = (
        (box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
        for box in (place.locator(css).bounding_box() for css in (".handle", "circle.key >> nth=2"))
    )
    for kind, part in (("Start", 0), ("Move", 0.3), ("Move", 0.6), ("Move", 1), ("End", None)):
        at = [] if part is None else [a + part * (b - a) for a, b in zip(start, end, strict=True)]
        points = [dict(zip("xy", at, strict=True))] if at else []
        touch.send("Input.dispatchTouchEvent", {"type": f"touch{kind}", "touchPoints": points})
    [shown] = place.evaluate(DRIVE, [[{}], {"values": ".control .value"}])
    key = torch.tensor(values_of(place)["keys"][2])
    query = torch.tensor(numbers(shown["values"][:3]))
    torch.testing.assert_close(query, key / key.sum(), atol=0.02, rtol=0)
    assert tab.evaluate("scrollY") == scrolled


# --- 2: scale and softmax


def test_the_softmax_saturates_as_it_does_in_torch(figure):
    """Every width, every query: largest weight, entropy, size of the derivative."""
    place = figure("scale")
    values = values_of(place)
    assert values["widths"][0] == 1 and values["widths"][-1] == 1024
    states = [
        {"query": q, "width dₖ": w}
        for q in range(len(values["dots"]))
        for w in range(len(values["widths"]))
    ]
    shown = {"numbers": "td.number", "report": ".report", "values": ".control .value"}
    told = place.evaluate(DRIVE, [states, shown])
    dots = torch.tensor(values["dots"], dtype=torch.float64)
    for state, said in zip(states, told, strict=True):
        at, width = state["width dₖ"], values["widths"][state["width dₖ"]]
        assert said["values"] == [str(width)]
        expected = []
        for scores in (dots[state["query"], :, at], dots[state["query"], :, at] / width**0.5):
            weights = scores.softmax(dim=0)
            jacobian = torch.autograd.functional.jacobian(lambda x: x.softmax(dim=0), scores)
            entropy = torch.distributions.Categorical(probs=weights).entropy() / math.log(2)
            expected += [weights.max(), entropy, jacobian.norm()]
        near(numbers(said["numbers"]), expected, 3)
        average = [values["without"][at], values["with_scale"][at]]
        *_, bare, _, scaled = said["report"][0].removesuffix(" on average.").split()
        near([float(bare), float(scaled)], average, 2)
    quick(told)

    place.get_by_label("width dₖ").focus()
    for key, width in (("End", "1024"), ("ArrowLeft", "768"), ("Home", "1")):
        place.page.keyboard.press(key)
        assert place.locator(".control .value").inner_text() == width
        assert place.get_by_label("width dₖ").get_attribute("aria-valuetext") == width


# --- 3: positions


def test_positions_are_those_of_the_package(figure):
    place = figure("positions")
    r = random.Random(1)
    states = []
    for d in (8, 16, 32, 64, 128, 256, 512):
        for _ in range(5):
            state = {"width d": d, "position p": r.randrange(64), "step k": r.randrange(65)}
            states.append(state | {"hand i": r.randrange(d // 2)})
    told = place.evaluate(DRIVE, [states, {"numbers": "td.number", "report": ".report"}])
    for state, said in zip(states, told, strict=True):
        d, p, k, i = state.values()
        table = sinusoidal_positions(129, d).double()
        pairs = table[[p, p + k, p + k], 2 * i : 2 * i + 2]
        near(numbers(said["numbers"]), pairs.flatten(), 3)  # the third is the first, turned
        dot = (table[p] @ table[p + k]).item()
        assert f"is {dot:.2f}, of {d // 2} at most" in said["report"][0]
    quick(told)


def test_the_heat_map_is_painted_in_the_colours_of_the_page(figure):
    """In light and dark, from blue over the page's own colour to orange. It can be pointed at."""
    place = figure("positions", scheme="light")
    table = sinusoidal_positions(128, 64).double()
    for scheme in ("light", "dark"):
        place.page.emulate_media(color_scheme=scheme)
        place.page.locator(f"html[data-theme={scheme}]").wait_for(state="attached")
        pixels, *colours = place.evaluate(
            """(figure) => {
              const canvas = figure.querySelector("canvas"), probe = figure.querySelector("p");
              const data = canvas.getContext("2d").getImageData(0, 0, canvas.width, 128).data;
              const read = (name) => {
                probe.style.color = `var(${name})`;
                return getComputedStyle(probe).color.match(/\\d+/g).slice(0, 3).map(Number);
              };
              return [[...data], ...["--paper", "--query", "--stream"].map(read)];
            }"""
        )
        paper, positive, negative = torch.tensor(colours, dtype=torch.float64)
        far = torch.where(table[..., None] > 0, positive, negative)
        expected = paper + table.abs()[..., None] * (far - paper)
        painted = torch.tensor(pixels, dtype=torch.float64).view(128, 64, 4)
        torch.testing.assert_close(painted[..., :3], expected, atol=1, rtol=0)

    box = place.locator(".map").bounding_box()
    place.page.mouse.click(box["x"] + 0.51 * box["width"], box["y"] + 0.25 * box["height"])
    p, k, i = (int(x) for x in place.locator(".control .value").all_inner_texts())
    assert abs(p - 32) <= 1 and k == 5 and i == 16


# --- 4: masks

SENTENCES = [
    ("es regnet", ["es", "regnet"]),
    ("", []),
    (" \t\n ", []),
    ("the cat saw the dog", ["the", "cat", "saw", "the", "dog"]),
    ("<pad> a <pad>", ["<pad>", "a", "<pad>"]),
    ("猫喝牛奶", list("猫喝牛奶")),
    ("我有 2 只cat", ["我", "有", "2", "只", "cat"]),
    ("שלום עולם", ["שלום", "עולם"]),
    ("مرحبا <bdo>", ["مرحبا", "<bdo>"]),
    ("👩‍👩‍👧‍👦 👍🏽 x", ["👩‍👩‍👧‍👦", "👍🏽", "x"]),
    ("<img src=x onerror=alert(1)>", ["<img", "src=x", "onerror…"]),
    ("<b>bold</b> &lt;i&gt;", ["<b>bold…", "&lt;i&g…"]),
    ("Rindfleischetikettierung geht", ["Rindfle…", "geht"]),
    ("\u200b a \u202eb", ["(unseen)", "a", "\u202eb"]),
    ("e" + 500 * "\u0301", ["e" + 4 * "\u0301"]),
    (" ".join(map(str, range(300))), [str(i) for i in range(10)]),
    (100_000 * "x" + " y", ["xxxxxxx…", "y"]),
    (50_000 * "a ", 10 * ["a"]),
    ("\ud83d x", None),
    ("WWWWWWWW 안녕하세요 ＷＷＷＷＷＷＷＷ", ["WWWWWWWW", "안녕하세요", "ＷＷＷＷＷＷＷＷ"]),
]
# Whether all words at the edges are whole: none reaches out of its drawing.
WHOLE = """(figure) => [...figure.querySelectorAll(".grid svg")].every((grid) => {
  const { left, top } = grid.getBoundingClientRect();
  return [...grid.querySelectorAll("text")].every((text) => {
    const box = text.getBoundingClientRect();
    return box.left >= left && box.top >= top;
  });
})"""
# The places of the allowed and the forbidden cells of each grid, in its own units.
CELLS = """(figure) => [...figure.querySelectorAll(".grid svg")].map((grid) =>
  [".may", ".rule"].map((path) => grid.querySelector(path).getAttribute("d")))"""


def drawn(paths):
    """Return the mask (t, s) that a grid shows."""
    may, may_not = ({(int(y), int(x)) for x, y in re.findall(r"M(\d+) (\d+)h", d)} for d in paths)
    assert not may & may_not
    ys, xs = (sorted(set(places)) for places in zip(*may | may_not, strict=True))
    assert len(may | may_not) == len(ys) * len(xs)
    return [[(y, x) in may for x in xs] for y in ys]


def test_masks_of_any_sentence(figure):
    """Grids and words are those of the package, and a typed text stays a text."""
    place = figure("masks")
    r = random.Random(2)
    told = []
    for n, (target, to) in enumerate(SENTENCES):
        source, of = SENTENCES[(5 * n + 3) % len(SENTENCES)]
        pads = [r.randrange(5), r.randrange(5)]
        state = {"padding of the target": pads[0], "padding of the source": pads[1]}
        state = {"target": target, "source": source} | state
        row = r.randrange(1 + pads[0] + min(len(to or "?"), 10))
        shown = {"lines": ".lines td", "note": ".note"}
        [said] = place.evaluate(DRIVE, [[state | {"row, a query": row}], shown])
        told.append(said)
        assert not place.locator("img, script, b, i, bdo").count(), "markup came in"
        assert place.evaluate(WHOLE), "a word is cut"
        if to is None or of is None:
            continue
        queries = ["<bos>", *to, *pads[0] * ["<pad>"]]
        keys = [*of, *pads[1] * ["<pad>"]]
        t, s = len(queries), len(keys)
        ids, source_ids = (
            torch.tensor([[int(w != "<pad>") for w in words]]) for words in (queries, keys)
        )
        masks = [causal_mask(t), padding_mask(ids)[0, 0].expand(t, t), decoder_mask(ids)[0, 0]]
        if keys:
            masks.append(padding_mask(source_ids)[0, 0].expand(t, s))
        grids = [drawn(paths) for paths in place.evaluate(CELLS)[: len(masks)]]
        assert grids == [mask.tolist() for mask in masks]
        words = [
            describe_mask(mask, queries, queries if i < 3 else keys).splitlines()[row]
            for i, mask in enumerate(masks)
        ]
        words = [line.split(" may attend to: ", 1)[1] for line in words]
        assert said["lines"] == words + (4 - len(words)) * ["nothing"]
        assert ("source is empty" in said["note"][0]) == (not keys)
        assert ("nothing but padding" in said["note"][0]) == (set(keys) == {"<pad>"})
        assert ("first 10 words" in said["note"][0]) == (10 in (len(to), len(of)))
    quick(told)

    [_] = place.evaluate(DRIVE, [[{"target": "es regnet"}], {}])
    place.locator(".grid").nth(2).locator("text").nth(1).hover()
    assert place.locator(".control .value").last.inner_text() == "1 es"
    assert place.locator(".looked-at").count() == 4
    assert place.locator(".lines td").nth(2).inner_text() == "<bos> es"
    place.get_by_label("row, a query").focus()
    place.page.keyboard.press("ArrowRight")
    assert place.locator(".lines td").nth(2).inner_text() == "<bos> es regnet"


# --- All of them


@pytest.mark.parametrize("page", sorted(set(PAGES.values())))
def test_on_a_phone_to_the_ear_and_on_paper(visit, address, page):
    """It fits, a finger can hit what moves, a change is told, the still picture is printed."""
    tab = visit(NARROW, scheme="dark")
    tab.goto(f"{address}nbs/{page}.html")
    names = [name for name in PAGES if PAGES[name] == page]
    for place in (tab.locator(f".movable.{name}") for name in names):
        assert place.evaluate("node => node.scrollWidth <= node.clientWidth")
        for box in place.locator("input, select, button, .handle").evaluate_all(
            "nodes => nodes.map(node => node.getBoundingClientRect().toJSON())"
        ):
            assert box["height"] >= 24 and box["left"] >= 0 and box["right"] <= NARROW["width"]
        caption = tab.locator(f"#{place.get_attribute('aria-labelledby')}")
        assert len(caption.inner_text()) > 20
        status = place.locator("[role=status]").last
        assert not status.inner_text(), "nothing has changed yet"
        seen = status.locator("xpath=preceding-sibling::p[contains(@class, 'report')]")
        hidden = seen.evaluate_all("all => all.map(node => node.ariaHidden)")
        assert hidden in ([], ["false"]), "the first sentence cannot be heard"
        place.locator("input:is([type=range], [type=radio])").first.press("ArrowRight")
        tab.wait_for_function("node => node.textContent", arg=status.element_handle())
        assert seen.evaluate_all("all => all.every(node => node.ariaHidden === 'true')"), "twice"
        still = place.locator("xpath=ancestor::figure").locator("img")
        assert place.is_visible() and not still.is_visible()
        tab.emulate_media(media="print")
        still.wait_for(state="visible", timeout=20_000)
        assert not place.is_visible() and len(still.get_attribute("alt")) > 50
        tab.emulate_media(media="screen")


def test_without_scripts(visit, address):
    tab = visit(java_script_enabled=False)
    for page in set(PAGES.values()):
        tab.goto(f"{address}nbs/{page}.html")
        assert not tab.locator(".movable:not(script)").count()
        stills = tab.locator(".tag_movable figure img")
        assert all(still.is_visible() for still in stills.all()) and stills.count()


def test_a_figure_that_fails_stays_still(browser, address):
    context = browser.new_context()
    tab, said = context.new_page(), []
    tab.on("console", lambda message: said.append(message.text))
    broken = "literate.figures.masks = () => { throw new Error('broken'); };"
    tab.route("**/figures/masks.js*", lambda route: route.fulfill(body=broken))
    tab.goto(f"{address}nbs/07_decoder.html")
    tab.locator(".tag_movable figure img").wait_for(state="visible", timeout=20_000)
    assert not tab.locator("div.movable").count()
    assert any("masks stays as it is" in text for text in said)
    context.close()


def test_a_reader_who_comes_back(visit, address):
    """No control keeps a value that the figure, which is drawn anew, does not show."""
    tab = visit()
    values = (
        """figure => [...figure.querySelectorAll("input, select")].map(e => e.value + e.checked)"""
    )
    for name in ("soft-lookup", "masks", "heads"):
        page = f"{address}nbs/{PAGES[name]}.html"
        tab.goto(page)
        figure = tab.locator(f".movable.{name}")
        begun = figure.evaluate(values)
        for control in figure.locator("input[type=range], select, .tokens label").all()[:6]:
            control.press("ArrowDown")
        for field in figure.locator("input[type=text]").all():
            field.fill("other words")
        assert figure.evaluate(values) != begun
        tab.goto(f"{address}404.html")
        tab.go_back()
        assert tab.url == page and figure.evaluate(values) == begun, name


def test_only_pages_with_such_figures_load_their_scripts():
    for path in HTML.glob("*/*.html"):
        text = path.read_text(encoding="utf-8")
        assert ("js/movable.js" in text) == ('class="movable"' in text), path
        for name, page in PAGES.items():
            assert (f"js/figures/{name}.js" in text) == (path.stem == page), path


def test_they_move_in_a_folder(browser):
    """Opened as files, without a server."""
    context = browser.new_context()
    tab, faults = context.new_page(), []
    tab.on(
        "requestfailed", lambda r: r.failure == "net::ERR_ABORTED" or faults.append(r.url)
    )  # aborted: an icon, when the tab went on
    tab.on("pageerror", lambda error: faults.append(str(error)))
    for page in sorted(set(PAGES.values())):
        tab.goto((HTML / "nbs" / f"{page}.html").as_uri())
        names = [name for name in PAGES if PAGES[name] == page]
        assert all(tab.locator(f".movable.{name}").is_visible() for name in names)
    assert not faults
    context.close()
