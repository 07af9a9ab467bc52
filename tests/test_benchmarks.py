"""The benchmark: that its peers do the same work, and that its arithmetic is right."""

import json
import math
from collections.abc import Iterator

import pytest
import torch

from benchmarks import __main__ as command
from benchmarks import decoding, measure, report, training
from benchmarks.peers import PEERS, CTranslate2, Naive, Ours, TorchTransformer
from benchmarks.peers.base import Peer
from benchmarks.work import EQUAL, QUICK, Choice, Found, model_for, random_ids, ready
from transformer_lit.data import BOS, EOS, PAD, TokenBatches

CONFIG = QUICK.models["S"]
SLOW = ("worker", "compiled")  # to start
INSTALLED = [p for p in PEERS if not p.missing() and not any(word in p.name for word in SLOW)]


@pytest.fixture(scope="module")
def peers() -> Iterator[dict[type[Peer], Peer]]:
    """Return each peer that is installed, with the weights of the model that it can be."""
    made = {kind: kind(model_for(CONFIG, kind), 1) for kind in INSTALLED}
    yield made
    for peer in made.values():
        peer.close()


def padded() -> tuple[torch.Tensor, torch.Tensor]:
    """Return a source and a target, both with padding."""
    src, tgt = random_ids(CONFIG, 3, 6, 1), random_ids(CONFIG, 3, 5, 2)
    src[1, 4:], tgt[2, 3:], tgt[:, 0] = PAD, PAD, BOS
    return src, tgt


@pytest.mark.parametrize("kind", INSTALLED, ids=lambda kind: kind.name)
def test_a_peer_has_the_logits_of_the_model(peers, kind):
    """So that what is timed is the same work."""
    difference = peers[kind].difference(model_for(CONFIG, kind), *padded())
    assert difference is None or difference <= (EQUAL if kind.exact else 0.5)


@pytest.mark.parametrize("kind", INSTALLED, ids=lambda kind: kind.name)
def test_a_peer_writes_what_the_model_writes(peers, kind):
    """Greedily and with a beam, as many tokens as were asked for, from a padded source."""
    ours, (src, _) = Ours(model_for(CONFIG, kind), 1), padded()
    for method, more in (("greedy", ()), ("beam", (3,))):
        write = getattr(peers[kind], method, None)
        if write and kind.exact:
            said = write(src, 7, *more)
            assert said == getattr(ours, method)(src, 7, *more)
            assert {len(ids) for ids in said} == {7}


@pytest.mark.parametrize("kind", Choice(QUICK).able("train"), ids=lambda kind: kind.name)
def test_a_step_of_training_changes_all_weights(kind):
    """Of every peer, with the same loss at the beginning."""
    peer = kind(model_for(CONFIG, kind), 1)
    peer.prepare()
    before = [p.detach().clone() for p in peer.net.parameters()]
    numbers = Choice(QUICK).scale
    src = random_ids(CONFIG, numbers.sentences, 6, 3)
    peer.train(training.Batch(src, random_ids(CONFIG, numbers.sentences, 7, 4)))
    moved = [not p.equal(q) for p, q in zip(peer.net.parameters(), before, strict=True)]
    assert all(moved)


def test_shares_are_of_all_the_time():
    """And the kinds are told by names that PyTorch still uses."""
    found = decoding.shares(Choice(QUICK, threads=1))
    for setting in {row["setting"] for row in found.rows}:
        shares = {r["peer"]: r["median"] for r in found.rows if r["setting"] == setting}
        assert sum(shares.values()) == pytest.approx(100)
        assert all(shares[kind] > 0 for kind in decoding.KINDS), setting


def test_a_peer_that_does_other_work_is_refused():
    """Before anything is timed."""

    class Wrong(TorchTransformer):
        def logits(self, src, tgt):
            return super().logits(src, tgt) + 2 * EQUAL

    with (
        pytest.raises(AssertionError, match="nn.Transformer differs .* not the same work"),
        ready(Choice(QUICK), Found(), "S", CONFIG, [Wrong]),
    ):
        pass


def test_special_tokens_are_never_said():
    """So that all sentences become as long as is asked for."""
    logits = model_for(CONFIG)(*padded())
    assert logits[..., [PAD, BOS, EOS]].eq(0).all()


def test_what_is_not_installed_is_left_out(monkeypatch):
    """By name."""
    monkeypatch.setattr(CTranslate2, "package", "no-such-package")
    choice = Choice(QUICK)
    assert CTranslate2 not in choice.able("greedy")
    assert (
        command.about(choice, [])["left_out"]["CTranslate2"] == "no-such-package is not installed"
    )


def test_turns():
    """Each is called once before it counts, then in turn, and each goes first once."""
    calls = []
    subjects = {name: lambda name=name: calls.append(name) for name in "ab"}
    timings = measure.take_turns(subjects, rounds=2, quiet=1.0)
    assert [len(t.samples) for t in timings.values()] == [2, 2]
    order = [name for i, name in enumerate(calls) if i == 0 or calls[i - 1] != name]
    assert "".join(order) == "ababa"  # ab to warm up, ab, ba


def test_a_sample_under_load_is_taken_again(monkeypatch):
    """And the quietest counts."""
    loads = iter([0.0, 0.5, 0.2, 0.3, 0.0])
    seconds = iter([1.0, 9.0, 2.0, 3.0, 4.0])
    monkeypatch.setattr(measure, "sample", lambda run, calls: (next(seconds), next(loads)))
    timing = measure.take_turns({"a": lambda: None}, rounds=2, quiet=0.05, repeats=2)["a"]
    assert timing == measure.Timing([2.0, 4.0], repeated=2, load=0.2)


def test_what_takes_long_is_measured_once(monkeypatch):
    """And its first call counts."""
    monkeypatch.setattr(measure, "sample", lambda run, calls: (21.0, 0.0))
    assert measure.take_turns({"a": lambda: None})["a"].samples == [21.0]


def test_summary():
    """Speeds: the median is in the middle, and the shortest time is the most."""
    summary = measure.Timing([0.5, 1.0, 4.0], 1, 0.0123).summary(8)
    assert summary == {
        "median": 8.0,
        "min": 2.0,
        "max": 16.0,
        "samples": 3,
        "repeated": 1,
        "other_load": 0.012,
    }


def test_own_work_is_no_other_load():
    """While this process computes, the load of others is what is left."""
    load = measure.Load()
    own = measure.Load._own()
    while measure.Load._own() < own + 0.1:
        pass
    assert 0 <= load.other() <= 1


@pytest.mark.parametrize(
    "value, wanted, how, verdict",
    [
        (1.15, 1.15, {}, "met"),
        (1.14, 1.15, {}, "tie"),
        (1.03, 1.15, {}, "missed"),
        (1.14, 1.15, {"tie": False}, "missed"),
        (0.9, 1.0, {"at_least": False}, "met"),
        (1.05, 1.0, {"at_least": False}, "tie"),
        (1.2, 1.0, {"at_least": False}, "missed"),
        (0.0, 0.2, {"at_least": False, "tie": False}, "met"),
    ],
)
def test_marks(value, wanted, how, verdict):
    """Met, missed, or missed by no more than samples spread by."""
    assert measure.judge(value, wanted, **how) == verdict


def test_the_mark_of_a_comparison():
    """Is our speed over the peer's; without a peer there is none."""
    found = Found()
    found.add(
        "S", {Ours.name: measure.Timing([2.0]), Naive.name: measure.Timing([4.0])}, 8, "tokens/s"
    )
    found.compare("S", Naive, 1.5)
    found.compare("S", CTranslate2, 1.0)
    (mark,) = found.marks
    assert mark == {
        "what": "S: transformer_lit to transformer_lit, no cache",
        "wanted": "at least 1.5×",
        "value": "2×",
        "verdict": "met",
    }


def test_exponent():
    """Of a power, the power."""
    x = [16, 32, 128]
    assert math.isclose(measure.exponent(x, [3 * a**1.5 for a in x]), 1.5)


def test_peak_memory_is_that_of_the_process():
    """More than PyTorch, less than the machine; and a process of its own begins anew."""
    ballast = torch.ones(50_000_000)
    own = measure.peak_memory()
    code = "from benchmarks.measure import peak_memory; print(peak_memory())"
    assert own > 200e6 and int(measure.fresh("-c", code)) < own
    del ballast


def test_real_lengths():
    """Are spread as they are said to be, and fill sorted batches better than random ones."""
    pairs = training.multi30k_like(CONFIG, 2000)
    data = TokenBatches(pairs, training.Numbers(), 2048)
    logs = [math.log(len(ids)) for ids in data.src]
    mean = sum(logs) / len(logs)
    assert abs(mean - 2.69) < 0.05
    assert abs(math.sqrt(sum((x - mean) ** 2 for x in logs) / len(logs)) - 0.30) < 0.05
    mixed = training.in_any_order(data, 2048)
    assert sorted(i for batch in mixed for i in batch) == list(range(2000))
    assert training.filled(data, mixed) < 0.6 < 0.85 < training.filled(data, data.plan(0))
    assert training.filled(data, data.plan(0)) == pytest.approx(1 - data.padding())


def test_sentences_end_where_they_shall():
    """And those that stay say the same up to there."""
    lengths = torch.tensor([3, 1, 5])
    src, _ = padded()
    model = decoding.Ending(model_for(CONFIG), lengths)
    found = [h.ids for h in decoding.greedy_search(model, src, max_len=9)]
    assert [len(ids) for ids in found] == lengths.tolist()
    stayed = decoding.stay(decoding.Ending(model_for(CONFIG), lengths), src, 6).tolist()
    assert all(row[1 : n + 1] == ids for row, n, ids in zip(stayed, lengths, found, strict=True))


def test_the_command_from_end_to_end(tmp_path, monkeypatch, capsys):
    """A trial writes a file for each work, the tables and the picture."""
    monkeypatch.setattr(measure, "SHORTEST", 0.01)
    names = ["--peers", "Ours", "TorchTransformer"]
    works = ["training", "real_lengths", "leaving", "beam", "rows", "growth"]
    options = ["--quick", "--rounds", "1", "--threads", "1", "--out", str(tmp_path)]
    command.main([*works, *names, *options])
    for work in works:
        record = json.loads((tmp_path / f"{work}.json").read_text())
        assert record["quick"] and record["rows"] and record["threads"] == 1
        assert all(row["min"] <= row["median"] <= row["max"] for row in record["rows"])
    text = capsys.readouterr().out
    assert "a trial with tiny models" in text and "| not recorded yet |" in text
    assert (tmp_path / "picture.svg").read_text().startswith("<?xml")
    assert "nn.Transformer: no cache while decoding" in (tmp_path / "table.md").read_text()


def test_unknown_work(capsys):
    """Is refused with the names there are."""
    with pytest.raises(SystemExit):
        command.parse(["sleep"])
    assert "there is no work sleep; there are training" in capsys.readouterr().err


def test_report_of_a_stored_result(tmp_path):
    """Multiples of the reference, with what was measured in brackets."""
    row = {"setting": "S", "unit": "tokens/s", "samples": 5, "min": 90.0, "max": 330.0}
    rows = [
        row | {"peer": "transformer_lit", "median": 300.0},
        row | {"peer": "CTranslate2", "median": 200.0},
        row | {"peer": "other", "setting": "B", "median": 0.5, "samples": 1},
    ]
    table = report.table({"work": "greedy", "rows": rows}).splitlines()
    assert table[0] == "| | S | B |"
    assert table[2] == "| transformer_lit | 1.50 (300 tokens/s, 90 to 330) |  |"
    assert table[4] == "| other |  | 0.5 tokens/s |"
    ((setting, bars),) = report.multiples({"work": "greedy", "rows": rows})
    assert setting == "S" and bars["transformer_lit"] == (1.5, 0.45, 1.65)
    assert report.load(tmp_path) == {} and report.picture({}) is None
