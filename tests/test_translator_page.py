"""The date model in the page, the walk, heads, beam: each number against the package's."""
# ruff: noqa: F811  (fixtures come by import, and are arguments of the same name)

import base64
import json
import math
import random
from functools import cache

import pytest
import torch
from test_browser import AXE, HTML, NARROW, SIDEWAYS, address, browser, visit  # noqa: F401

from transformer_lit.data import BOS, EOS, date_pairs, normal_form
from transformer_lit.decoding import keep_top_k, length_penalty, log_probabilities
from transformer_lit.embedding import sinusoidal_positions
from transformer_lit.inside import attention_maps
from transformer_lit.multi_head import record_attention
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
SILENCING = "٢٨ نوفمبر ٢٠٢٦"  # to this the model answers with the end alone


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
    field(page).fill("👨" * 100)  # a hundred characters, and four tokens for each
    wait_for(page, "400 tokens, and the figure takes 100")
    field(page).fill("x" * 100)  # as long as may be: many tokens, and the page stays alive
    wait_for(page, "tokens in")
    written = "".join(shown_tokens(page)).removesuffix("<eos>")
    assert written == translator().translate(["x" * 100])[0]
    field(page).fill("28\x07 Nov")  # what leaves no mark is shown by a picture of it
    wait_for(page, "tokens in")
    assert "\N{SYMBOL FOR BELL}" in page.locator(".translator .looks").inner_text()
    assert translator().translate([SILENCING]) == [""]
    field(page).fill(SILENCING)
    wait_for(page, "Nothing: 1 token in")


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
        lists = tab.locator(".heads :is(.tokens, ol)")
        languages = lists.evaluate_all("all => all.map(node => node.lang)")
        chinese = {"encoder": (), "cross": (0,), "decoder": (0, 1)}[name]  # who asks, what is asked
        assert languages == ["zh-Hans" if k in chinese else "en" for k in (0, 1)]
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


def test_what_is_chosen_is_seen_in_the_readers_own_colours(browser, address):
    """Where the system's colours take the place of the page's, as for contrast."""
    context = browser.new_context(forced_colors="active")
    tab = context.new_page()
    tab.goto(address + PAGE)
    script = "all => all.map(node => getComputedStyle(node).backgroundColor)"
    chosen, *others = tab.locator(".translator .tokens span").evaluate_all(script)
    assert len(others) > 5 and chosen not in others
    tab.goto(address + WALK)
    load_walk(tab)
    chosen, *others = tab.locator(".walk .steps label").evaluate_all(script)
    assert len(others) == 19 and chosen not in others
    context.close()


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
    back, forward = (tab.get_by_role("button", name=name) for name in ("Back", "Forward"))
    assert forward.is_disabled()
    back.click()
    forward.focus()
    tab.keyboard.press("Enter")
    assert forward.is_disabled()
    assert back.evaluate("node => node === document.activeElement"), "the focus is lost"


# ---------------------------------------------------------------- The walk of chapter 8

WALK = "nbs/08_transformer.html"


def load_walk(tab):
    """Press the figure's button, and wait for the first step."""
    tab.get_by_role("button", name="Load the trained model").press("Enter")
    walk_says(tab, "is token")


@pytest.fixture(scope="module")
def walk(browser, address):
    context = browser.new_context()
    tab = context.new_page()
    tab.goto(address + WALK)
    load_walk(tab)
    yield tab
    context.close()


def walk_says(tab, text):
    tab.locator(".walk .stage .report", has_text=text).first.wait_for()


def walk_reads(tab, text):
    """Wait until the tokens of a text are those of the walk."""
    tokenizer = translator().tokenizers[0]
    tab.wait_for_function(
        "names => [...document.querySelector('.walk .tokens').children]"
        ".map(label => label.textContent).join() == names",
        arg=",".join(tokenizer.pieces([*tokenizer.encode(normal_form(text)), EOS])),
    )


def go_to(tab, step):
    """Choose a step of the list, counted from 1."""
    tab.locator(".walk .steps input").nth(step - 1).check(force=True)


def choose(tab, legend, number):
    """Choose a token, a layer or a head, counted from 0."""
    group = tab.locator(".walk fieldset", has=tab.locator("legend", has_text=legend))
    group.locator("input").nth(number).check(force=True)


@cache
def inside(text, given=()):
    """Return what the package's model computes in one pass over a text and its translation.

    ``given`` are the ids that it has to write first. With the ids of both sides, a dict: name of a
    module -> its positional arguments and its output, and of an attention its weights.
    """
    model, (tokenizer, _) = translator().model, translator().tokenizers
    src = [*tokenizer.encode(normal_form(text)), EOS]
    tgt, seen = [BOS, *given], {}
    with torch.inference_mode():
        while tgt[-1] != EOS and len(tgt) <= len(src) + 50:
            logits = model(torch.tensor([src]), torch.tensor([tgt]))[:, -1]
            tgt.append(log_probabilities(logits).argmax().item())

        def note(name):
            return lambda module, args, output: seen.update({name: (args, output[0])})

        hooks = [m.register_forward_hook(note(n)) for n, m in model.named_modules() if n]
        with record_attention(model) as layers:
            model(torch.tensor([src]), torch.tensor([tgt[:-1]]))
    for hook in hooks:
        hook.remove()
    weights = {f"{name}.weights": layer.weights[0] for name, layer in layers.items()}
    return src, tgt, seen | weights


def expected_view(text, i, t, n, h, given=()):
    """Return what `look` of the page must find, by the package's model."""
    model, (src, tgt, seen) = translator().model, inside(text, given)
    d, k = model.config.d_model, model.config.d_model // model.config.n_heads
    table = model.src_embedding.tokens.weight.detach()

    def entry(id_, place):
        token, position = d**0.5 * table[id_], sinusoidal_positions(place + 1, d)[place]
        return {"id": id_, "token": token, "position": position, "x": token + position}

    def residual(name, sublayer, r):
        (x, *_), output = seen[name]
        y = seen[sublayer][1]
        x = x[0]
        return {"x": x[r], "y": y[r], "sum": x[r] + y[r], "output": output[r]}

    def attention(name, norm, r, s, memory=None):
        """Row r, of which the first s keys are seen."""
        layer = model.get_submodule(name)
        x = seen[norm][0][0]
        with torch.inference_mode():
            query = layer._project(x, 0, 1)[0][0]
            key, value = (y[0] for y in layer._project(x if memory is None else memory, 1, 3))
        joined, weights = seen[f"{name}.out_proj"][0][0][0, r], seen[f"{name}.weights"]
        return {
            "query": query[h, r],
            "key": key[h, :s],
            "value": value[h, :s],
            "scores": key[h, :s] @ query[h, r] / k**0.5,
            "weights": weights[h, r, :s],
            "output": joined[h * k : (h + 1) * k],
            "joined": joined,
            "maps": weights,
            "residual": residual(norm, name, r),
        }

    def network(name, norm, r):
        wide = seen[f"{name}.linear1"][1][r]
        return {"wide": wide, "inner": wide.relu(), "residual": residual(norm, name, r)}

    e, w, last = f"encoder.layers.{n}", f"decoder.layers.{n}", model.config.n_layers - 1
    memory = seen[f"encoder.layers.{last}.residual2"][1]
    encoder = attention(f"{e}.self_attention", f"{e}.residual1", i, len(src))
    return {
        "source": entry(src[i], i),
        "entering": seen["encoder.layers.0.residual1"][0][0][0],
        "encoder": encoder,
        "encoderNetwork": network(f"{e}.feed_forward", f"{e}.residual2", i),
        "memory": memory,
        "target": entry(tgt[t], t),
        "decoder": attention(f"{w}.self_attention", f"{w}.residual1", t, t + 1),
        "cross": attention(f"{w}.cross_attention", f"{w}.residual2", t, len(src), memory[None]),
        "decoderNetwork": network(f"{w}.feed_forward", f"{w}.residual3", t),
        "last": seen[f"decoder.layers.{last}.residual3"][1][t],
        "logits": seen["output"][1][t],
    }


def difference(ours, expected, path=""):
    """Return the largest difference of two trees of numbers, and where it is."""
    if isinstance(expected, dict):
        return max(
            difference(ours[name], part, f"{path}.{name}") for name, part in expected.items()
        )
    if path.endswith(".maps"):  # in the decoder a row has no more weights than it has keys
        size = expected.size(-1)
        ours = [[[*row, *[0] * (size - len(row))] for row in head] for head in ours]
    found = torch.tensor(ours, dtype=torch.float32)
    assert found.shape == torch.as_tensor(expected).shape, path
    return (found - expected).abs().max().item(), path


def test_walk_computes_what_the_package_computes(walk):
    """Every number of every step, for several inputs, places, layers and heads."""
    worst = 0.0, ""
    for text, given in (
        ("28 November 2026", ()),
        ("Wed, 3 June 1998", (20, 20, 262)),
        ("<b>שלום</b> 😀", ()),
    ):
        src, tgt, _ = inside(text, given)
        choices = [(0, 0, 0, 0), (len(src) - 1, len(tgt) - 2, 1, 3), (2, 3, 0, 2), (1, 4, 1, 1)]
        found = walk.evaluate(
            """async ([text, given, choices]) => {
              const { translator, src } = await literate.readText(text, 100);
              const ways = [...literate.walk.travel(translator, src, given)];
              const plain = (_, x) => (x instanceof Float32Array ? [...x] : x);
              return choices.map(([i, t, n, h]) =>
                JSON.stringify(literate.walk.look(ways.at(-1), { i, t, n, h }), plain));
            }""",
            [text, list(given), choices],
        )
        for choice, ours in zip(choices, found, strict=True):
            expected = expected_view(text, *choice, given)
            worst = max(worst, difference(json.loads(ours), expected, f"{text} {choice}: "))
    print(f"all numbers of the walk within {worst[0]:.1e}, at {worst[1]}")
    assert worst[0] < 1e-4


def figure_in(text):
    """Return the number at the end of what is told of a strip."""
    return float(text.split(": ")[-1].replace("\u2212", "-"))


DRAWN = """() => {
  // The heading of the step; and of its strips, by name, the bars and what is told of the first
  const strips = [...document.querySelectorAll(".walk .picture .strip")].map(strip => {
    const path = strip.querySelector(".bars").getAttribute("d");
    const bars = path.match(/v-?[0-9.]+/g).map(v => -Number(v.slice(1)));
    return [strip.getAttribute("aria-label"), [bars, strip.getAttribute("aria-valuetext")]];
  });
  return [document.querySelector(".walk .stage .head").innerText, Object.fromEntries(strips)];
}"""


def test_walk_draws_and_tells_these_numbers(walk):
    """Next leads through both layers; each step draws its vectors, and tells their numbers."""
    tab = walk
    go_to(tab, 1)
    text, i, t, h = "28 November 2026", 2, 5, 3
    choose(tab, "Head", h)
    view = [expected_view(text, i, t, n, h) for n in (0, 1)]
    own, written = "“␣November”", "“年”"

    def attention(part, asks, key):
        return [
            (f"query of {asks}", lambda v: v[part]["query"]),
            (f"key of {key}", lambda v: v[part]["key"][i if part != "decoder" else t]),
            (
                f"weight times value of {key}",
                lambda v: (
                    v[part]["weights"][i if part != "decoder" else t]
                    * v[part]["value"][i if part != "decoder" else t]
                ),
            ),
            ("normed", lambda v: v[part]["residual"]["output"]),
        ]

    def network(part):
        return ("inner units before the cut", lambda v: v[part]["wide"])

    reader = [*attention("encoder", own, own), network("encoderNetwork")]
    writer = [
        *attention("decoder", written, written),
        *attention("cross", written, own),
        network("decoderNetwork"),
    ]
    stops = [
        (1, 0, None),
        (2, 0, ("= x", lambda v: v["source"]["x"])),
        *((3 + j, n, part) for n in (0, 1) for j, part in enumerate(reader)),
        (8, 1, (f"memory, {own}", lambda v: v["memory"][i])),
        (9, 1, ("= x", lambda v: v["target"]["x"])),
        *((10 + j, n, part) for n in (0, 1) for j, part in enumerate(writer)),
        (19, 1, ("last x", lambda v: v["last"])),
        (20, 1, None),
    ]
    next_, back = (tab.get_by_role("button", name=name) for name in ("Next", "Back"))
    assert back.is_disabled()
    next_.focus()
    for number, (step, n, part) in enumerate(stops):
        if number:
            tab.keyboard.press("ArrowRight" if number % 2 else "Enter")
        head, strips = tab.evaluate(DRAWN)
        assert head.startswith(f"{step} of 20"), (number, head)
        if 3 <= step <= 7 or 10 <= step <= 18:
            assert f"layer {n + 1} of 2" in head
        if part:
            vector, (bars, told) = part[1](view[n]), strips[part[0]]
            bars, most = torch.tensor(bars), vector.abs().argmax()
            scale = vector[most] / bars[most]
            assert scale > 0, (step, part[0])  # up is positive
            assert (bars * scale - vector).abs().max() < 0.002 * scale, (step, part[0])
            assert abs(figure_in(told) - vector[0].item()) < 1e-4, (step, part[0])
    assert next_.is_disabled() and back.evaluate("node => node === document.activeElement")
    heads = back.evaluate(
        """button => Array.from({ length: 33 }, () => {
          button.click();
          return button.nextSibling.innerText.split(" ")[0];
        })"""
    )
    assert heads == [str(step) for step, *_ in reversed(stops[:-1])] and back.is_disabled()
    # the keys go from number to number and from strip to strip, and the pointer tells too
    go_to(tab, 3)
    keys = expected_view(text, i, t, 0, h)["encoder"]["key"]
    strip = tab.locator(f".walk .strip[aria-label='key of {own}']")
    strip.focus()
    for key, (row, entry) in {
        "End": (i, -1),
        "ArrowLeft": (i, -2),
        "ArrowUp": (i - 1, 0),
        "ArrowRight": (i - 1, 1),
        "ArrowDown": (i, -2),
        "Home": (i, 0),
    }.items():
        tab.keyboard.press(key)
        told = tab.evaluate("document.activeElement.getAttribute('aria-valuetext')")
        assert abs(figure_in(told) - keys[row, entry].item()) < 1e-4, key
        assert tab.locator(".walk .readout").inner_text().endswith(told)
    box = strip.bounding_box()
    tab.mouse.move(box["x"] + box["width"] * 5.5 / 32, box["y"] + 5)
    assert abs(figure_in(tab.locator(".walk .readout").inner_text()) - keys[i, 5].item()) < 1e-4
    # looking across: another token, layer and head keep the step
    go_to(tab, 15)
    for t, n, h in ((0, 0, 1), (7, 1, 2)):
        for legend, number in (("Chinese", t), ("Layer", n), ("Head", h)):
            choose(tab, legend, number)
        weights = expected_view(text, i, t, n, h)["cross"]["weights"]
        shown = tab.locator(".walk .picture td .share").all_inner_texts()
        torch.testing.assert_close(torch.tensor([*map(float, shown)]), weights, atol=6e-4, rtol=0)
        assert f"{weights.max():.3f}" in tab.locator(".walk .stage .report").first.inner_text()
    tab.locator(".walk .maps button").nth(3).press("Enter")
    assert tab.locator(".walk .maps [aria-pressed=true]").evaluate(
        "node => node === document.activeElement && node.innerText.includes('head 4')"
    )


def rule(logits, temperature, k):
    """Return the probabilities by which the package's `sample` draws."""
    log_p = log_probabilities(logits[None]).double()
    return keep_top_k(log_p / temperature, k or log_p.size(1)).softmax(dim=-1)[0]


def test_walk_next_token(walk):
    """Temperature and top-k as the package's; a token is taken or drawn, and the model goes on."""
    tab, text, tokenizer = walk, "hello", translator().tokenizers[0]
    tab.locator(".walk input[type=text]").fill(text)
    tab.locator(".walk .tokens label", has_text="h").first.wait_for()
    go_to(tab, 20)
    sliders, buttons = tab.locator(".walk input[type=range]"), tab.locator(".walk .buttons button")
    given, result = (), tab.locator(".walk .stage .report").first
    # temperature, top-k (0 for all), and where the number falls that is drawn; None: the likeliest
    for t, (temperature, k, u) in enumerate(
        [
            (1.0, 0, 0.6),
            (3.0, 0, 0.93),
            (0.1, 0, 0.999),
            (2.5, 3, 0.7),
            (1.0, 1, 0.5),
            (1.0, 0, None),
        ]
    ):
        src, tgt, seen = inside(text, given)
        t = min(t, len(tgt) - 2)  # a token that was drawn may have ended it early
        choose(tab, "Chinese", t)
        sliders.nth(0).fill(str(temperature))
        sliders.nth(1).fill(str(k or 21))
        p = rule(seen["output"][1][t], temperature, k)
        logits = seen["output"][1][t].tolist()
        theirs = tab.evaluate(
            "([x, ...more]) => [...literate.nextProbabilities(Float32Array.from(x), ...more)]",
            [logits, temperature, k or len(logits)],
        )
        assert (torch.tensor(theirs, dtype=torch.double) - p).abs().max() < 1e-4
        best = log_probabilities(seen["output"][1][t][None])[0].topk(8).indices.tolist()
        rows = [row.split("\t") for row in tab.locator(".walk .picture tbody tr").all_inner_texts()]
        assert [row[0].strip() for row in rows] == tokenizer.pieces(best)
        for row, token in zip(rows, best, strict=True):
            assert abs(float(row[1].replace("\u2212", "-")) - logits[token]) < 0.006
            said = row[3].strip()
            share = f"{100 * p[token]:.1f} %" if p[token] >= 0.0005 else "< 0.1 %"
            assert said == (share if p[token] else ""), (t, row)
        if u is None:
            token = p.argmax().item()
            buttons.nth(0).press("Enter")
        else:
            token = torch.searchsorted(
                p.cumsum(0) / p.sum(), torch.tensor([u]).double(), right=True
            ).item()
            tab.evaluate("u => (Math.random = () => u)", u)
            buttons.nth(1).press("Enter")
        given = (*tgt[1 : t + 1], token)
        _, tgt, _ = inside(text, given)
        assert tab.locator(".walk .tokens[lang] label").all_inner_texts() == tokenizer.pieces(
            tgt[:-1]
        )
        assert tokenizer.decode(tgt[1:]) in result.inner_text()
        assert tokenizer.pieces([token])[0] in result.inner_text().split(". ")[0]
    tab.locator(".walk .picture tbody button").nth(4).press("Enter")
    assert tab.evaluate("document.activeElement.closest('.walk tbody') !== null")
    buttons.nth(1).focus()
    for u in (0.123, 0.456):  # the focus stays, so that one can draw again
        tab.evaluate("u => (Math.random = () => u)", u)
        tab.keyboard.press("Enter")
        walk_says(tab, f"{u} was drawn")
    tab.locator(".walk input[type=text]").fill("1 May 1999")
    walk_reads(tab, "1 May 1999")
    assert "drawn" not in result.inner_text(), "nothing of this text was drawn"


def test_walk_by_arrow_keys(walk):
    """Also from a part that goes away with its step."""
    tab = walk
    go_to(tab, 20)
    for part in (".walk .buttons button", ".walk .stage a"):
        tab.locator(part).first.focus()
        step = tab.locator(".walk .steps input:checked").evaluate(PLACE)
        for by in (1, 2):
            tab.keyboard.press("ArrowLeft")
            assert tab.locator(".walk .steps input:checked").evaluate(PLACE) == step - by


PLACE = "node => [...document.querySelectorAll('.walk .steps input')].indexOf(node)"


CHANGES = """step => {
  // Go to a step, and choose four other things there
  const sets = [...document.querySelectorAll(".walk fieldset")];
  const inputs = (legend) =>
    sets.find(set => set.firstChild.textContent.includes(legend)).querySelectorAll("input");
  const choices = ["English", "Chinese", "Layer", "Head"];
  const changed = [inputs("Steps")[step - 1]];
  changed.push(...choices.map(name => inputs(name)[step % 2])); // another one each time
  for (const input of changed) {
    input.click();
    document.body.getBoundingClientRect(); // so that the layout is part of it
  }
  return changed.length;
}"""


def quick(tab, steps):
    """Assert that a change takes under 60 ms: of the processor, whatever else the machine does."""
    session = tab.context.new_cdp_session(tab)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})

    def busy():
        metrics = session.send("Performance.getMetrics")["metrics"]
        return next(1000 * m["value"] for m in metrics if m["name"] == "TaskDuration")

    times = []
    for step in steps:
        begun = busy()
        changes = tab.evaluate(CHANGES, step)
        times.append((busy() - begun) / changes)
    print(
        f"a change takes {sum(times) / len(times):.0f} ms, at the slowest step {max(times):.0f} ms"
    )
    assert max(times) < 60


FAULTS = """async () => {
  const options = { preload: false, resultTypes: ["violations"] };
  const found = await axe.run({ include: [[".walk"]] }, options);
  return found.violations.map(v => [v.id, v.nodes.length, v.nodes[0].html.slice(0, 200)]);
}"""


def test_walk_on_a_phone(visit, address):
    """Nothing sideways, nothing that axe finds, in light and dark; and what a change takes."""
    tab = visit(NARROW, has_touch=True)
    tab.goto(address + WALK)
    load_walk(tab)
    tab.evaluate(AXE)
    tab.get_by_role("button", name="Next").tap()
    for step in (1, 2, 3, 4, 9, 11, 19, 20):
        go_to(tab, step)
        assert tab.evaluate(SIDEWAYS) == 0, step
        chosen = tab.locator(".walk .steps label:has(:checked)").bounding_box()
        assert chosen["x"] >= 0 and chosen["x"] + chosen["width"] <= NARROW["width"], step
    quick(tab, range(1, 21))
    tab.evaluate("document.body.replaceChildren(document.querySelector('.walk'))")  # for axe
    for step, scheme in ((4, "dark"), (11, "light"), (20, "dark")):
        tab.emulate_media(color_scheme=scheme)
        tab.locator(f"html[data-theme={scheme}]").wait_for(state="attached")
        go_to(tab, step)
        assert not tab.evaluate(FAULTS), (step, scheme)


def test_walk_takes_odd_inputs(walk):
    tab = walk
    go_to(tab, 4)
    field, report = tab.locator(".walk input[type=text]"), tab.locator(".walk .stage .report").first
    for text, answer in (("", "Nothing to translate"), ("é" * 300, "300 characters")):
        field.fill(text)
        walk_says(tab, answer)
        assert not tab.locator(".walk .picture").is_visible()
        assert not tab.locator(".walk .steps").is_visible()
        tab.wait_for_function(
            "text => [...document.querySelectorAll('.walk .stage [role=status]')]"
            ".some(node => node.checkVisibility() && node.textContent.includes(text))",
            arg=answer,
        )  # it is said, too
    for text in ("😀👨\u200d👩\u200d👧", "שלום مرحبا", "<img src=x onerror=alert(1)>", "1" * 100):
        field.fill(text)
        walk_reads(tab, text)
        assert "looks most at" in report.inner_text()
        assert tab.evaluate(SIDEWAYS) == 0
    assert tab.locator(".walk img").count() == 0, "typed HTML became HTML"
    quick(tab, (3, 4, 15))  # as long as a text may be: 101 tokens


def test_walk_before_and_without_the_model(browser):
    """Nothing is fetched unasked; a load that fails says so, and the picture stays."""
    context = browser.new_context()
    tab, asked = context.new_page(), []
    tab.on("request", lambda request: asked.append(request.url))
    tab.route("**/dates-model.js", lambda route: route.abort())
    tab.goto((HTML / WALK).as_uri())  # from a folder
    picture, button = (
        tab.locator("#fig-walk img"),
        tab.get_by_role("button", name="Load the trained"),
    )
    late = (
        "js/tokenizer.js",
        "js/model.js",
        "dates-model.js",
        "js/walk/look.js",
        "js/walk/steps.js",
    )
    assert picture.is_visible() and not [url for url in asked if url.endswith(late)]
    size = (HTML / "_static/dates-model.js").stat().st_size
    assert f"{size / 1e6:.1f} MB" in button.inner_text()
    button.click()
    tab.locator(".walk .report", has_text="did not come").wait_for()
    assert picture.is_visible()
    tab.emulate_media(media="print")
    assert picture.is_visible() and not tab.locator(".walk").is_visible()
    tab.emulate_media(media="screen")
    tab.unroute("**/dates-model.js")
    load_walk(tab)  # it can be tried again
    assert not picture.is_visible()
    for href in tab.evaluate("literate.walk.steps.map(step => step.chapter[0])"):
        page, _, anchor = href.partition("#")
        content = (HTML / "nbs" / (page or "08_transformer.html")).read_text(encoding="utf-8")
        assert f'id="{anchor}"' in content, href
    context.close()
    context = browser.new_context(java_script_enabled=False)
    tab = context.new_page()
    tab.goto((HTML / WALK).as_uri())
    assert tab.locator("#fig-walk img").is_visible() and tab.locator(".walk").count() == 0
    context.close()
