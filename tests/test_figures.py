"""Masks in words and in pictures: they say what the mask says, and refuse what does not fit.

And the curves of a training run, which show the numbers of its log, and what a figure hands to the
page that its readers can move.
"""

import base64
import csv
import json
import math
import re

import matplotlib
import matplotlib.pyplot as plt
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support import padded_ids, random_mask, seeds, sizes

from transformer_lit.attention import causal_mask, padding_mask
from transformer_lit.decoder import decoder_mask
from transformer_lit.figures import (
    Movable,
    describe_mask,
    explore_mask,
    movable,
    plot_log,
    plot_mask,
    plot_weights,
    thousandths,
    use_style,
)

matplotlib.use("Agg")
WORDS = st.lists(st.sampled_from(["<bos>", "<pad>", "the", "cat", "猫"]), min_size=1, max_size=6)


@pytest.fixture(autouse=True)
def closed_figures():
    yield
    plt.close("all")


def places(line: str, keys: list[str]) -> list[bool]:
    """Read a line of the description back: which of the keys it names."""
    told = line.split(" may attend to: ")[1].split(" ")
    seen = [False] * len(keys)
    for word in told if told != ["nothing"] else []:
        label, place = re.fullmatch(r"(.*?)(?:\[(\d+)\])?", word).groups()
        assert (keys.count(label) > 1) == (place is not None)
        seen[int(place) if place else keys.index(label)] = True
    return seen


@given(WORDS, WORDS, seeds)
def test_the_words_say_what_the_mask_says(queries, keys, seed):
    """Read back, they are the mask again."""
    mask = random_mask(seed, len(queries), len(keys))
    lines = describe_mask(mask, queries, keys).splitlines()
    for i, (line, query) in enumerate(zip(lines, queries, strict=True)):
        assert line.startswith(f"query {i} {query!r} ")
        assert places(line, keys) == mask[i].tolist()


@given(seeds, sizes, sizes)
def test_a_batch_is_told_sentence_by_sentence(seed, b, t):
    """As the decoder gets it; numbers where there are no labels."""
    mask = decoder_mask(padded_ids(seed, b, t, vocab_size=9))
    told = describe_mask(mask)
    alone = [describe_mask(grid[0]) for grid in mask]
    assert re.split(r"\n?sentence \d+\n", told)[1:] == alone or (b == 1 and told == alone[0])
    keys = [str(i) for i in range(t)]
    if t > 1:
        assert [places(line, keys) for line in alone[0].splitlines()] == mask[0, 0].tolist()


def test_causal_mask_of_a_sentence():
    assert describe_mask(causal_mask(3), ["<bos>", "the", "cat"]).splitlines() == [
        "query 0 '<bos>' may attend to: <bos>",
        "query 1 'the'   may attend to: <bos> the",
        "query 2 'cat'   may attend to: <bos> the cat",
    ]


def test_one_row_holds_for_all_queries():
    """A padding mask has one; with labels, each query gets its line."""
    mask = padding_mask(torch.tensor([[5, 6, 0], [5, 0, 0]]))
    keys = [["es", "regnet", "<pad>"], ["ja", "<pad>", "<pad>"]]
    assert describe_mask(mask, keys=keys).splitlines() == [
        "sentence 0",
        "every query may attend to: es regnet",
        "sentence 1",
        "every query may attend to: ja",
    ]
    cross = describe_mask(mask, [["it", "rains"], ["yes", "."]], keys).splitlines()
    assert cross[2] == "query 1 'rains' may attend to: es regnet" and len(cross) == 6
    own = describe_mask(mask[:1], ["a", "b", "c"])  # as many: self-attention
    assert own.splitlines()[2] == "query 2 'c' may attend to: a b"
    assert describe_mask(mask[0, 0, 0] & False) == "every query may attend to: nothing"


SQUARE = torch.ones(2, 2, dtype=torch.bool)
BATCH = torch.ones(3, 1, 2, 2, dtype=torch.bool)
REFUSED = [
    ((SQUARE.float(),), TypeError, "mask.bool()"),
    ((BATCH[0],), ValueError, "write mask[:, None]"),
    ((BATCH[None],), ValueError, "(1, 3, 1, 2, 2)"),
    ((SQUARE[:0],), ValueError, "no axis of length 0"),
    ((BATCH.transpose(0, 1),), ValueError, "3 heads"),
    ((SQUARE, "ab"), TypeError, "queries must be a list of labels, not one text"),
    ((SQUARE, torch.arange(2)), TypeError, "not of type Tensor"),
    ((SQUARE, ["a", ["b"]]), TypeError, "not both"),
    ((SQUARE, ["a"]), ValueError, "queries has 1 labels in sentence 0, and the mask has 2"),
    ((SQUARE, None, ["a"]), ValueError, "keys has 1 labels"),
    ((SQUARE, ["a", "b", "c"]), ValueError, "queries has 3 labels"),
    ((SQUARE[:1], []), ValueError, "queries has 0 labels"),
    ((BATCH, ["a", "b"]), ValueError, "labels for 1 sentences, and the mask is for 3"),
    ((BATCH, 3 * [["a", "b"]], [["a", "b"], ["a", "b"], ["a"]]), ValueError, "in sentence 2"),
]


def test_what_does_not_fit_is_refused():
    """The error names what is wrong, and nothing is drawn."""
    before = plt.get_fignums()
    for arguments, error, words in REFUSED:
        for function in (describe_mask, explore_mask):
            with pytest.raises(error, match=re.escape(words)):
                function(*arguments)
    assert plt.get_fignums() == before


def test_it_is_printed_and_drawn(capsys):
    """A picture for each sentence, whose cells are the mask and whose labels are the words."""
    for b in (1, 2, 4):
        mask = decoder_mask(padded_ids(b, b, 4, vocab_size=9))
        queries = [[f"word{i}", "b", "c", "d"] for i in range(b)]
        labels = queries if b > 1 else queries[0]
        explore_mask(mask, labels)
        assert capsys.readouterr().out == describe_mask(mask, labels) + "\n"
        axes = [ax for ax in plt.gcf().axes if ax.images]
        assert len(axes) == b
        for i, ax in enumerate(axes):
            assert (ax.images[0].get_array() > 0.5).tolist() == mask[i, 0].tolist()
            for axis in (ax.get_xticklabels(), ax.get_yticklabels()):
                assert [label.get_text() for label in axis] == queries[i]
            titles = ax.get_title(loc="left") + ax.get_title(loc="center")  # the style says where
            assert titles == (f"sentence {i}" if b > 1 else "")
        plt.gcf().canvas.draw()


def test_only_a_boolean_mask_is_drawn():
    with pytest.raises(TypeError, match="boolean"):
        plot_mask(SQUARE.float())
    assert not plt.get_fignums() or not plt.gca().images


def test_weights_are_drawn_where_they_belong():
    """A row for each query; the labels at its ends; the numbers in the cells, if asked for."""
    _, (left, right) = plt.subplots(1, 2)  # the current axes are the right ones
    weights = torch.tensor([[0.25, 0.75, 0.0], [1.0, 0.0, 0.0]], requires_grad=True)
    assert plot_weights(weights, ["q0", "q1"], ["k0", "k1", "k2"], left, "a title") is left
    assert not right.images, "the axes that were given, not the current ones"
    titles = left.get_title(loc="left") + left.get_title(loc="center")  # the style says where
    assert titles == "a title" and not left.texts
    assert torch.equal(torch.tensor(left.images[0].get_array()), weights.detach())
    assert [label.get_text() for label in left.get_yticklabels()] == ["q0", "q1"]
    assert [label.get_text() for label in left.get_xticklabels()] == ["k0", "k1", "k2"]
    assert plot_weights(weights, numbers=True) is right
    told = {text.get_position(): text.get_text() for text in right.texts}
    assert told[1, 0] == "0.75" and told[0, 1] == "1.00" and len(told) == 6
    assert [label.get_text() for label in right.get_xticklabels()] == ["0", "1", "2"]


@pytest.mark.parametrize(
    "weights, queries, keys, message",
    [
        (torch.ones(3), None, None, r"must have shape \(t, s\), not \(3,\)"),
        (torch.ones(2, 3), ["a"], None, "1 labels for 2 queries"),
        (torch.ones(2, 3), None, ["a", "b"], "2 labels for 3 keys"),
    ],
)
def test_weights_that_cannot_be_drawn_are_refused(weights, queries, keys, message):
    with pytest.raises(ValueError, match=message):
        plot_weights(weights, queries, keys)
    with pytest.raises(ValueError, match=message):
        plot_mask(weights.bool(), queries, keys)


SCORES = st.one_of(st.just(math.nan), st.floats(0, 9))


@given(st.lists(st.tuples(st.floats(0, 9), SCORES), min_size=1, max_size=30))
def test_a_log_is_drawn_from_its_rows_and_from_its_file(tmp_path_factory, numbers):
    """Each loss is on the curve; where a score is missing, the curve has no point."""
    rows = [{"step": 5 * i, "loss": x, "validation": y} for i, (x, y) in enumerate(numbers, 1)]
    path = tmp_path_factory.mktemp("run") / "log.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, ("step", "loss", "validation"))
        writer.writeheader()
        writer.writerows(rows)
    scored = [row for row in rows if not math.isnan(row["validation"])]
    for log in (rows, path, str(path)):
        plt.close("all")
        _, (left, right) = plt.subplots(1, 2)  # the current axes are the right ones
        assert plot_log(log, left) is left and not right.lines
        assert plot_log(log) is right
        assert [line.get_label() for line in right.lines] == ["training", "validation"][
            : 1 + bool(scored)
        ]
        for line, column, drawn in zip(
            right.lines, ("loss", "validation"), (rows, scored), strict=False
        ):
            assert line.get_xdata().tolist() == [row["step"] for row in drawn]
            assert line.get_ydata().tolist() == [row[column] for row in drawn]
            assert (line.get_marker() == "o") == (len(drawn) < 20), "a single point can be seen"


def test_what_is_no_log_is_refused(tmp_path):
    path = tmp_path / "log.csv"
    with pytest.raises(FileNotFoundError):
        plot_log(path)
    for text, message in (
        ("", "has no row yet"),
        ("step,loss,validation\n", "has no row yet"),
        ("en,de\none,eins\n", "is not that of a training run: KeyError 'step'"),
        ("step,loss,validation\n5,much,nan\n", "could not convert"),
        ("step,loss,validation\n5,1.0\n", "TypeError"),
    ):
        path.write_text(text)
        with pytest.raises(ValueError, match=f"{re.escape(str(path))}.*{message}"):
            plot_log(path)
    with pytest.raises(ValueError, match="the log has no row yet"):
        plot_log([])
    assert not plt.get_fignums()


def test_the_style_can_draw_a_date():
    """The font of the package is found; otherwise Matplotlib warns of missing signs."""
    use_style()
    plt.title("2026年11月28日星期六")
    plt.gcf().canvas.draw()


def test_weights_in_thousandths():
    """A row is one text; what is around it stays."""
    assert thousandths(torch.tensor([0.25, 0.7496, 0.0004])) == "250 750 0"
    assert thousandths(torch.eye(2).expand(2, 1, 2, 2)) == [[["1000 0", "0 1000"]]] * 2
    assert thousandths(torch.zeros(0)) == ""


def test_a_movable_figure_is_handed_to_the_page():
    """Its output has the picture and the values, rounded, as JSON; nothing is left open."""
    values = {
        "tensor": torch.tensor([[1 / 3, -2 / 3], [1e-9, 5.0]], dtype=torch.float64),
        "mixed": [(0.123456789, None), {"a": True, 7: "é<b>"}, range(2)],
        "whole": 10**15,
    }
    figure, _ = plt.subplots()
    other = plt.figure()  # which is the current one
    example = movable("name", values, figure, digits=3)
    assert isinstance(example, Movable) and "name" in repr(example)
    assert not plt.fignum_exists(figure.number), "it would be shown a second time"
    assert plt.fignum_exists(other.number)
    bundle = example._repr_mimebundle_()
    picture, (kind, handed) = bundle.pop("image/png"), *bundle.items()
    assert base64.b64decode(picture).startswith(b"\x89PNG")
    assert kind.startswith("application/vnd.") and kind.endswith("+json")
    assert json.loads(json.dumps(handed, allow_nan=False)) == {
        "figure": "name",
        "values": {
            "tensor": [[0.333, -0.667], [0.0, 5.0]],
            "mixed": [[0.123, None], {"a": True, "7": "é<b>"}, [0, 1]],
            "whole": 10**15,
        },
    }


def test_the_current_figure_is_the_still_one():
    figure = plt.figure()
    assert movable("name", {}).values == {} and not plt.fignum_exists(figure.number)


@pytest.mark.parametrize(
    "value, error, message",
    [
        (math.nan, ValueError, "nan"),
        (torch.tensor([0.0, -math.inf]), ValueError, "-inf"),
        ({"a": [object]}, TypeError, "class 'object'"),
        (1j, TypeError, "1j"),
    ],
)
def test_a_page_is_not_handed_what_it_cannot_read(value, error, message):
    figure = plt.figure()
    with pytest.raises(error, match=message):
        movable("name", {"value": value}, figure)
    assert plt.fignum_exists(figure.number), "nothing has happened"
