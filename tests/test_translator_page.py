"""The date model in the page, the heads and the beam: each number against the package's."""
# ruff: noqa: F811  (fixtures come by import, and are arguments of the same name)

import base64
import json
import math
import random
from functools import cache

import pytest
import torch
from test_browser import HTML, NARROW, address, browser, visit  # noqa: F401

from transformer_lit.data import BOS, EOS, date_pairs, normal_form
from transformer_lit.decoding import length_penalty, log_probabilities
from transformer_lit.inside import attention_maps
from transformer_lit.translation import Translator, unusual_dates

PAGE = "nbs/13_translation.html"
READY = "literate.Translator !== undefined && literate.datesModel !== undefined"
# fmt: off
ODD = [
    "hello", "", " ", "\u3000\u00a0\t", "x" * 100, "1" * 60, "ab" * 50, "\x00\x01", "a\tb\n\nc",
    "29 February 2100", "31/12/9999", "Friday, 31 December 9999", "28.11.2026", "  two   spaces  ",
    "😀", "👨\u200d👩\u200d👧 2026", "2026年11月28日", "二〇二六年十一月", "２８ November ２０２６",
    "<b>bold</b>", "<script>alert(1)</script>", "&amp;", "<pad><bos><eos>", "'; DROP TABLE --",
    "cafe\u0301 2026", "e\u0301\u0301", "A\u030a", "½ ² Ⅷ ① ٣", "𝟙𝟚𝟛", "₁₂", "שלום", "مرحبا 2026",
    "it'st 're we'll 'S", "Ж" * 20, "\u180e x", "\u2028x\u2029", "\u200b 28 \u200d",
    "\ufeff28 November", "\x1c28 Nov\x1f", "a\u0085b  \u0085 c",
]
# fmt: on


@cache
def translator():
    return Translator.dates()


@cache
def inputs():
    """Return dates of all forms, unusual ones, strange texts, and signs at random."""
    rng = random.Random(0)
    signs = "abcXYZ0123456789 ,./-'é日年😀\u00a0\u3000\t\n"
    chance = ["".join(rng.choices(signs, k=rng.randint(1, 30))) for _ in range(40)]
    unusual = [source for pairs in unusual_dates(6).values() for source, _ in pairs]
    return [*(source for source, _ in date_pairs(80, 5, "test")), *unusual, *ODD, *chance]


@pytest.fixture(scope="module")
def page(browser, address):
    """Open the chapter in a tab, and fetch the model as a reader would: by going to the field."""
    context = browser.new_context()
    tab = context.new_page()
    tab.goto(address + PAGE)
    field(tab).focus()
    tab.wait_for_function(READY)
    yield tab
    context.close()


def field(tab):
    return tab.locator(".translator input[type=text]")


def report(tab, figure):
    return tab.locator(f".{figure} .report")


def wait_for(tab, text):
    """Wait until the translator says something with ``text``."""
    tab.locator(".translator .report", has_text=text).wait_for(timeout=20_000)


def numbers(locator):
    """Return the numbers at the end of some items of a list."""
    return [float(text.split("\n")[-1]) for text in locator.all_inner_texts()]


def test_logits_and_outputs(page):
    """The two implementations read the same ids, give the same logits and write the same text."""
    texts = inputs()
    assert len(texts) >= 200
    found, odd, seconds = page.evaluate(
        """([texts, odd]) => {
          const translator = literate.Translator.dates();
          const begun = performance.now();
          const found = texts.map(text => {
            const src = translator.source(text);
            const steps = [...literate.greedySearch(translator.model, src)];
            const ids = steps.map(step => step.token);
            const bytes = steps.flatMap(step => [...new Uint8Array(step.logits.buffer)]);
            return {
              src, ids, text: translator.tokenizer.decode(ids),
              pieces: translator.tokenizer.pieces(src),
              logits: btoa(bytes.map(byte => String.fromCharCode(byte)).join("")),
            };
          });
          const seconds = (performance.now() - begun) / 1000;
          return [found, odd.map(text => translator.translate(text)), seconds];
        }""",
        [texts, ODD],
    )
    model, (tokenizer, _) = translator().model, translator().tokenizers
    worst, n_tokens = 0.0, 0
    for text, ours in zip(texts, found, strict=True):
        src = [*tokenizer.encode(normal_form(text)), EOS]
        assert ours["src"] == src and ours["pieces"] == tokenizer.pieces(src), repr(text)
        ids = ours["ids"]
        with torch.inference_mode():
            logits = model(torch.tensor([src]), torch.tensor([[BOS, *ids[:-1]]]))[0]
        raw = bytearray(base64.b64decode(ours["logits"]))
        theirs = torch.frombuffer(raw, dtype=torch.float32).view(len(ids), -1)
        worst = max(worst, (theirs - logits).abs().max().item())
        assert log_probabilities(logits).argmax(dim=-1).tolist() == ids, repr(text)
        assert ids[-1] == EOS or len(ids) == len(src) + 50
        n_tokens += len(ids)
    assert worst < 1e-4
    expected = translator().translate(texts)
    assert odd == translator().translate(ODD)
    for text, ours, theirs in zip(texts, found, expected, strict=True):
        assert ours["text"] == theirs or not normal_form(text), repr(text)
    speed = 1000 * seconds / n_tokens
    print(f"{len(texts)} inputs, logits within {worst:.1e}, {speed:.1f} ms a token")
    assert seconds / n_tokens < 0.05


def test_what_the_page_loads(visit, address):
    """Nothing of the model before a reader asks; then under 2 MB, and soon ready."""
    tab, asked = visit(), []
    tab.on("request", lambda request: asked.append(request.url))
    tab.goto(address + PAGE)
    files = ("js/tokenizer.js", "js/model.js", "dates-model.js")
    assert not [url for url in asked if url.endswith(files)]
    begun = tab.evaluate("performance.now()")
    field(tab).focus()
    tab.wait_for_function(READY)
    ready = tab.evaluate("literate.Translator.dates(), performance.now()") - begun
    came = [url.removeprefix(address) for url in asked if url.endswith(files)]
    sizes = [(HTML / name).stat().st_size for name in (*came, "_static/js/figures/translator.js")]
    print(f"{sum(sizes):,} bytes, ready after {ready:.0f} ms")
    assert len(came) == 3 and sum(sizes) < 2_000_000 and ready < 5000


def shown_tokens(tab):
    return tab.locator(".translator .tokens label").all_inner_texts()


def type_and_wait(tab, text):
    """Type a text, and wait for the last word of the figure."""
    field(tab).fill("")
    wait_for(tab, "Nothing to translate.")
    field(tab).fill(text)
    wait_for(tab, "tokens in")


def test_translator_shows_what_the_package_says(page):
    for text in (
        "Wednesday, June 3, 1998",
        "28 November",
        "<b>hello</b> 😀",
        "２８ November ２０２６",
    ):
        type_and_wait(page, text)
        alignment = translator().align(text)
        assert shown_tokens(page) == alignment.target
        chips = page.locator(".translator .tokens input")
        for t in (0, len(alignment.target) - 1):
            chips.nth(t).focus()
            page.keyboard.press("Space")
            for head, weights in (
                ("mean", alignment.weights.mean(dim=(0, 1))),
                ("2.3", alignment.weights[1, 2]),
            ):
                page.locator(".translator select").select_option(head)
                shares = numbers(page.locator(".translator .looks li"))
                expected = weights[t].tolist()
                assert all(abs(a - b) < 0.006 for a, b in zip(shares, expected, strict=True))
    assert page.locator(".translator b").count() == 0, "typed HTML became HTML"


def test_probabilities(page):
    text = "Wednesday, June 3, 1998"
    type_and_wait(page, text)
    tokenizer, model = translator().tokenizers[0], translator().model
    ids = [*tokenizer.encode(translator().translate([text])[0]), EOS]
    src = torch.tensor([[*tokenizer.encode(text), EOS]])
    with torch.inference_mode():
        p = log_probabilities(model(src, torch.tensor([[BOS, *ids[:-1]]]))[0]).exp()
    page.locator(".translator .tokens input").first.focus()
    for t in range(len(ids)):  # the arrow keys lead from token to token
        rows = page.locator(".translator .bars li").all_inner_texts()
        token, share = rows[0].split("\n")
        assert token == tokenizer.pieces([ids[t]])[0]
        assert abs(float(share.removesuffix(" %")) - 100 * p[t].max().item()) < 0.06
        page.keyboard.press("ArrowRight")
    whole = 100 * p.max(dim=-1).values.prod().item()
    assert f"{whole:.1f} %" in report(page, "translator").inner_text()


def going_on(text, ranks):
    """Return what the package writes after ``ranks``, and the probability of the whole.

    A rank says which of the likeliest tokens is taken; after them it is always the first.
    """
    model, (tokenizer, _) = translator().model, translator().tokenizers
    src = torch.tensor([[*tokenizer.encode(text), EOS]])
    ids, whole = [BOS], 1.0
    while ids[-1] != EOS and len(ids) <= src.size(1) + 50:
        with torch.inference_mode():
            p = log_probabilities(model(src, torch.tensor([ids]))[:, -1])[0].exp()
        rank = ranks[len(ids) - 1] if len(ids) <= len(ranks) else 0
        share, best = p.topk(rank + 1)
        whole *= share[-1].item()
        ids.append(best[-1].item())
    return tokenizer.pieces(ids[1:]), f"{100 * whole:.1f} %" if whole >= 0.0005 else "< 0.1 %"


def test_another_token_and_on_from_there(page):
    """A likely token is pressed, at a recorded example too, and the model goes on from it."""
    page.locator(".translator .examples button").nth(3).click()  # recorded, so without ids
    text, ranks = field(page).input_value(), []
    for t, rank in ((0, 1), (2, 3), (1, 2)):
        ranks = [*ranks[:t], *(t - len(ranks)) * [0], rank]
        page.locator(".translator .tokens input").nth(t).focus()
        page.keyboard.press("Space")
        page.locator(".translator .bars button").nth(rank).press("Enter")
        wait_for(page, f"{sum(map(bool, ranks))} of them your choice")
        tokens, whole = going_on(text, ranks)
        assert shown_tokens(page) == tokens
        assert f"probability of {whole}" in report(page, "translator").inner_text()
        pressed = page.locator(".translator .bars [aria-pressed=true]")
        assert pressed.inner_text().split("\n")[0] == tokens[t]
        assert pressed.evaluate("node => node === document.activeElement")
    page.locator(".translator .bars button").first.press("Enter")  # back to the likeliest
    tokens, _ = going_on(text, [1])
    page.wait_for_function(
        "tokens => [...document.querySelectorAll('.translator .tokens label')]"
        ".map(label => label.innerText).join() == tokens",
        arg=",".join(tokens),
    )


def test_examples_are_what_the_model_does(page):
    """What was recorded is what the model in the page and the package write."""
    buttons = page.locator(".translator .examples button")
    assert buttons.count() == 5
    for i in range(5):
        buttons.nth(i).click()
        text, recorded = field(page).input_value(), shown_tokens(page)
        shares = numbers(page.locator(".translator .looks li"))
        assert recorded == translator().align(text).target
        type_and_wait(page, text)
        assert shown_tokens(page) == recorded
        live = numbers(page.locator(".translator .looks li"))
        assert all(abs(a - b) < 0.011 for a, b in zip(live, shares, strict=True))


def test_odd_inputs_are_answered(page):
    for text, answer in (("", "Nothing"), ("   ", "Nothing"), ("é" * 10_000, "10,000 characters")):
        field(page).fill(text)
        wait_for(page, answer)
        assert not page.locator(".translator .tokens").is_visible()
        field(page).fill("1 May 1999")
        wait_for(page, "tokens in")
    field(page).fill("x" * 100)  # as long as may be: many tokens, and the page stays alive
    wait_for(page, "tokens in")
    written = "".join(shown_tokens(page)).removesuffix("<eos>")
    assert written == translator().translate(["x" * 100])[0]


def test_watch_it_write(page):
    type_and_wait(page, "28 November 2026")
    everything = shown_tokens(page)
    button = page.get_by_role("button", name="Watch it write")
    button.press("Enter")
    page.wait_for_function("document.querySelectorAll('.translator .tokens label').length == 3")
    page.get_by_role("button", name="Stop").press("Enter")
    button.wait_for()
    page.wait_for_timeout(400)
    assert shown_tokens(page) == everything


@pytest.mark.parametrize("missing", [True, False], ids=["model missing", "from a folder"])
def test_from_a_folder(browser, missing):
    """It works without a server; and without its files it says so, and the examples stay."""
    context = browser.new_context(viewport=NARROW)
    tab = context.new_page()
    if missing:
        tab.route("**/dates-model.js", lambda route: route.abort())
    tab.goto((HTML / PAGE).as_uri())
    field(tab).fill("1 May 1999")
    wait_for(tab, "did not answer" if missing else "tokens in")
    if missing:
        tab.locator(".translator .examples button").nth(1).click()
        assert len(shown_tokens(tab)) > 5
    else:
        assert "".join(shown_tokens(tab)) == translator().translate(["1 May 1999"])[0] + "<eos>"
        font = """document.fonts.load('1em "Noto Sans SC Dates"', "年").then(f => f.length)"""
        assert tab.evaluate(font) == 1, "its Chinese is left to the system's fonts"
    context.close()


def test_a_slow_line(browser, address):
    """While the model is on its way the figure says so, and shows no other text's translation."""
    context = browser.new_context()
    tab, held = context.new_page(), []
    tab.route("**/dates-model.js", lambda route: held.append(route))
    tab.goto(address + PAGE, wait_until="domcontentloaded")
    field(tab).focus()
    tab.wait_for_function("literate.Translator !== undefined")
    tab.locator(".translator .examples button").nth(1).click()
    assert tab.locator(".translator .tokens").is_visible()
    field(tab).fill("1 May 1999")
    wait_for(tab, "being fetched")
    assert not tab.locator(".translator .tokens").is_visible()
    held[0].continue_()
    wait_for(tab, "tokens in")
    assert "".join(shown_tokens(tab)) == translator().translate(["1 May 1999"])[0] + "<eos>"
    context.close()


def test_heads(visit, address):
    tab = visit()
    tab.goto(address + "nbs/14_inside.html")
    sentence, kind, layer, head = (tab.locator(".heads select").nth(i) for i in range(4))
    names = sentence.locator("option").all_inner_texts()
    maps = attention_maps(translator(), names)
    for i, name, n, h in (
        (0, "cross", 2, 2),
        (1, "encoder", 1, 4),
        (3, "decoder", 2, 1),
        (2, "cross", 0, 0),
    ):
        sentence.select_option(str(i))
        kind.select_option(name)
        layer.select_option(str(n) if n else "mean")
        head.select_option(str(h) if h else "mean")
        m = maps[name]
        weights = m.weights[i, n - 1, h - 1] if n else m.weights[i].mean(dim=(0, 1))
        assert tab.locator(".heads .tokens label").all_inner_texts() == m.queries[i]
        tab.locator(".heads .tokens input").first.focus()
        tab.keyboard.press("Space")
        for t in range(len(m.queries[i])):
            rows = [text.split("\n") for text in tab.locator(".heads li").all_inner_texts()]
            assert [row[0] for row in rows] == m.keys[i]
            shown = torch.tensor([float(row[-1]) for row in rows])
            torch.testing.assert_close(shown, weights[t, : len(rows)], atol=0.002, rtol=0)
            tab.keyboard.press("ArrowDown")
    tab.locator(".heads .tokens label").nth(2).hover()
    assert m.queries[i][2] in report(tab, "heads").inner_text()


def test_beam(visit, address):
    tab = visit()
    tab.goto(address + "nbs/12_decoding.html")
    script = tab.locator("script.movable").evaluate_all("all => all.map(one => one.textContent)")
    values = next(v["values"] for v in map(json.loads, script) if v["figure"] == "beam")
    k, alpha, alive = values["beam"], values["alpha"], [[]]
    slider, ended = tab.locator(".beam input[type=range]"), {}
    slider.focus()
    tab.keyboard.press("Home")
    for length, step in enumerate(values["steps"], start=1):
        if length % 2:
            tab.keyboard.press("ArrowRight")
        else:
            tab.get_by_role("button", name="Forward").click()
            slider.focus()
        rows = [row.split("\t") for row in tab.locator(".beam tbody tr").all_inner_texts()]
        assert [row[0].split() for row in rows] == [c["path"] for c in step["candidates"]]
        totals = [c["total"] for c in step["candidates"]]
        assert totals == sorted(totals, reverse=True) and len(totals) == 2 * k
        going = []
        for rank, (row, c) in enumerate(zip(rows, step["candidates"], strict=True)):
            assert c["path"][:-1] in alive, "it continues nothing that was alive"
            if math.exp(c["total"]) > 0.005:
                assert abs(float(row[1]) - math.exp(c["total"])) < 0.006
            if c["path"][-1] == "<eos>":
                assert (c["fate"] == "ended") == (rank < k)
                if c["fate"] == "ended":
                    score = c["total"] / length_penalty(length, alpha)
                    ended[" ".join(c["path"])] = score
                    assert row[2].replace("\u2212", "-") == f"has ended, score {score:.2f}"
            else:
                assert (c["fate"] in ("kept", "left")) == (len(going) < k)
                going += [c["path"]] if len(going) < k else []
        alive = going
        said = report(tab, "beam").inner_text()
        assert ("stops" in said) == (length == len(values["steps"]))
        if ended:
            best = max(ended, key=ended.get)
            assert best in said and f"{abs(ended[best]):.2f}" in said
    assert best.split() == values["answer"]
    assert tab.locator(".beam g.answer").count() == 1
    assert tab.get_by_role("button", name="Forward").is_disabled()
