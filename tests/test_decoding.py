"""Decoding: cached equals naive, each sentence for itself, a wide beam finds the best, shares."""

import copy
import dataclasses
import inspect
import math
import pickle
import shutil
import subprocess
import sys
import warnings
from itertools import product
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support import random_model, random_tensor, randomise
from torch.profiler import ProfilerActivity, profile

from transformer_lit.data import BOS, EOS, PAD, pad
from transformer_lit.decoding import (
    Drafts,
    Hypothesis,
    PackedLinear,
    TranslationModel,
    beam_search,
    check_decoding,
    compiled,
    greedy_search,
    in_eight_bits,
    keep_top_k,
    keep_top_p,
    lay_out_by_columns,
    length_penalty,
    log_probabilities,
    packed,
    sample,
    without_end,
)
from transformer_lit.model import Transformer, TransformerConfig
from transformer_lit.multi_head import KeyValueCache, record_attention
from transformer_lit.recurrent import RecurrentConfig, Seq2Seq
from transformer_lit.training import smoothed_cross_entropy

few = settings(max_examples=15)


def build(seed: int, vocab: int, norm_first: bool = False, **changes) -> Transformer:
    """Return a small random model, in double precision so that ties do not happen."""
    shape = {"d_model": 8, "n_heads": 2, "d_ff": 8, "n_layers": 1 + seed % 2}
    config = TransformerConfig(vocab, norm_first=norm_first, **{**shape, **changes})
    return random_model(config, seed, torch.float64)


def models():
    """Draw small models: both norm orders, vocabularies with one to six tokens beside EOS."""
    return st.builds(
        build,
        seed=st.integers(0, 10_000),
        vocab=st.integers(4, 9),
        norm_first=st.booleans(),
        positions=st.sampled_from(["sinusoidal", "learned"]),
    )


def sources(vocab: int, n: int, seed: int) -> list[list[int]]:
    g = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, 6, (n,), generator=g).tolist()
    return [[*torch.randint(3, vocab, (k,), generator=g).tolist(), EOS] for k in lengths]


def recurrent(seed: int, vocab: int, attention: bool = True) -> Seq2Seq:
    """Return a small random recurrent translator, in double precision."""
    return randomise(
        Seq2Seq(RecurrentConfig(vocab, d_model=4, attention=attention)), seed, torch.float64
    ).eval()


@torch.inference_mode()
def naive(model, source: list[int], max_len: int, min_len: int = 1) -> Hypothesis:
    """Greedy search for one sentence that computes everything anew at each step."""
    ids, score = [BOS], 0.0
    while len(ids) <= max_len:
        logits = model(torch.tensor([source]), torch.tensor([ids]))[:, -1]
        log_p = log_probabilities(logits)[0]
        if len(ids) < min_len and len(log_p) > EOS + 1:
            log_p[EOS] = -math.inf
        best, token = log_p.max(dim=0)
        score += best.item()
        if token == EOS:
            break
        ids.append(token.item())
    return Hypothesis(ids[1:], score)


@torch.inference_mode()
def plain_beam(model, source, beam, alpha, max_len, n_best, min_len=1) -> list[Hypothesis]:
    """Beam search for one sentence with lists, without a cache; it never stops early."""
    alive, done = [([BOS], 0.0)], []
    for length in range(1, max_len + 1):
        longer = []
        prefixes = torch.tensor([ids for ids, _ in alive])
        logits = model(torch.tensor([source] * len(alive)), prefixes)[:, -1]
        for (ids, total), row in zip(alive, log_probabilities(logits).tolist(), strict=True):
            for t, log_p in enumerate(row):
                if log_p > -math.inf and (t != EOS or length >= min_len):
                    longer.append(([*ids, t], total + log_p))
        longer.sort(key=lambda x: -x[1])
        for ids, total in longer[:beam]:
            if ids[-1] == EOS or length == max_len:
                ids = [t for t in ids[1:] if t != EOS]
                done.append(Hypothesis(ids, total / length_penalty(length, alpha)))
        alive = [x for x in longer if x[0][-1] != EOS][:beam]
        if not alive:
            break
    done.sort(key=lambda h: -h.score)
    return done[:n_best]


@torch.inference_mode()
def total(model: Transformer, source: list[int], ids: list[int], max_len: int) -> float:
    """Return the sum of log-probabilities of a hypothesis, from one teacher-forced pass."""
    gold = ids if len(ids) == max_len else [*ids, EOS]
    logits = model(torch.tensor([source]), torch.tensor([[BOS, *gold[:-1]]]))[0]
    return log_probabilities(logits)[range(len(gold)), gold].sum().item()


def penalised(total: float, ids: list[int], max_len: int, alpha: float) -> float:
    return total / length_penalty(min(len(ids) + 1, max_len), alpha)


def agree(a: list[Hypothesis], b: list[Hypothesis]) -> None:
    assert [h.ids for h in a] == [h.ids for h in b]
    assert [h.score for h in a] == pytest.approx([h.score for h in b], abs=1e-9)


class Scripted:
    """A model that looks its answers up: ``answer(source, prefix)`` is a list of logits.

    It has what the protocol asks for, and nothing else.
    """

    training = False

    def __init__(self, vocab: int, answer):
        self.config = SimpleNamespace(
            pad=PAD, bos=BOS, eos=EOS, target_size=vocab, positions="none"
        )
        self.answer, self.rows = answer, []

    def encode(self, src):
        return src, None

    def new_cache(self):
        return Prefixes()

    def decode(self, tgt, memory, memory_mask, cache):
        assert tgt.size(1) == 1 and len(tgt) % len(memory) == 0
        tgt = cache.append(tgt)
        self.rows.append(len(tgt))
        sources = memory.repeat_interleave(len(tgt) // len(memory), dim=0).tolist()
        pairs = zip(sources, tgt.tolist(), strict=True)
        logits = [self.answer(source, ids[1:]) for source, ids in pairs]
        return torch.tensor(logits, dtype=torch.double)[:, None]


class Prefixes:
    """What stands for a cache with `Scripted`: the tokens so far."""

    ids = None

    def append(self, ids):
        self.ids = ids if self.ids is None else torch.cat([self.ids, ids], dim=1)
        return self.ids

    def select(self, rows, sources):
        self.ids = self.ids[rows]


def certain(token: int, vocab: int) -> list[float]:
    return [0.0 if t == token else -math.inf for t in range(vocab)]


# From logits to a distribution


@given(
    st.integers(0, 10_000), st.integers(3, 9), st.sampled_from(["float32", "float64", "bfloat16"])
)
@few
def test_log_probabilities(seed, vocab, dtype):
    dtype = getattr(torch, dtype)
    logits = 3 * torch.randn(4, vocab, generator=torch.Generator().manual_seed(seed)).to(dtype)
    before = logits.clone()
    log_p = log_probabilities(logits)
    assert torch.equal(logits, before)
    assert log_p.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert (log_p[:, [PAD, BOS]] == -math.inf).all()
    torch.testing.assert_close(log_p.exp().sum(dim=1), torch.ones(4, dtype=log_p.dtype))
    wide = logits.to(log_p.dtype)[:, 2:]
    torch.testing.assert_close(log_p[:, 2:], wide - wide.logsumexp(dim=1, keepdim=True))


def test_log_probabilities_refuse_nan():
    """Wherever it stands in a row."""
    for bad, place in product((math.nan, math.inf), (2, 17, 39)):
        logits = torch.zeros(2, 40)
        logits[1, place] = bad
        with pytest.raises(FloatingPointError, match="NaN"):
            log_probabilities(logits)


def laid_out(model):
    """Return a copy whose matrices lie by columns."""
    model = copy.deepcopy(model)
    lay_out_by_columns(model)
    return model


def by_columns(model) -> list[bool]:
    """Tell of each linear layer whether its matrix lies by columns."""
    layers = [layer for layer in model.modules() if isinstance(layer, torch.nn.Linear)]
    return [layer.weight.stride() == (1, layer.out_features) for layer in layers]


@given(seed=st.integers(0, 10_000), tie=st.sampled_from(["all", "output", "none"]))
@few
def test_columns_change_nothing_but_the_order(seed, tie):
    """Weights, ties and tokens stay; twice, in a copy, and in another type."""
    model, src = build(seed, 7, tie=tie), pad(sources(7, 3, seed))
    columns = laid_out(model)
    own = dict(model.named_parameters())
    for other in (columns, laid_out(columns), copy.deepcopy(columns).float()):
        assert all(by_columns(other)) and not any(by_columns(model))
        named = dict(other.named_parameters())
        assert named.keys() == own.keys()  # what is tied is named once
        for name, weight in named.items():
            assert weight.requires_grad and weight.equal(own[name].to(weight.dtype))
    for search in (greedy_search, lambda *x: beam_search(*x)[0]):
        pairs = zip(search(columns, src), search(model, src), strict=True)
        assert all(a.ids == b.ids and math.isclose(a.score, b.score) for a, b in pairs)


def test_columns_are_saved_and_loaded(tmp_path):
    """As rows are; and weights can be loaded from one order into the other."""
    model = build(0, 7).float()
    columns = laid_out(model)
    for name, one in (("rows", model), ("columns", columns)):
        one.save(tmp_path / name)
    files = [tmp_path / name / "model.safetensors" for name in ("rows", "columns")]
    assert files[0].read_bytes() == files[1].read_bytes()
    other = laid_out(build(2, 7).float())
    other.load_state_dict(model.state_dict())
    assert all(by_columns(other)) and other.output.weight.equal(model.output.weight)


@pytest.mark.parametrize("fused", [False, True])
def test_training_goes_on_from_columns(fused):
    """With the weights that it would have by rows."""
    model = build(0, 7)
    src, tgt = pad(sources(7, 4, 1)), torch.tensor([[BOS, 3, 4, 5]] * 4)
    both = model, laid_out(model)
    for one in both:
        optimizer = torch.optim.Adam(one.parameters(), lr=0.01, fused=fused)
        for _ in range(5):
            optimizer.zero_grad()
            smoothed_cross_entropy(one(src, tgt), tgt).backward()
            optimizer.step()
    for a, b in zip(*(one.parameters() for one in both), strict=True):
        torch.testing.assert_close(a, b)
    assert all(by_columns(both[1]))


def made_of(model) -> set[type]:
    """Return the types of the modules of a model."""
    return {type(module) for module in model.modules()}


@given(
    seed=st.integers(0, 10_000), tie=st.sampled_from(["all", "output", "none"]), bias=st.booleans()
)
@few
def test_packed_layers_give_the_same_logits(seed, tie, bias):
    """At once, and step by step with the cache; also in copies, which have weights of their own."""
    model = build(seed, 7, tie=tie, bias=bias).float()
    fast = packed(model)
    src, tgt = torch.randint(3, 7, (2, 3, 5), generator=torch.Generator().manual_seed(seed))
    with torch.inference_mode():
        wanted = model(src, tgt)
        torch.testing.assert_close(fast(src, tgt), wanted)
        memory, mask = fast.encode(src)
        cache = fast.new_cache()
        steps = [fast.decode(t, memory, mask, cache) for t in tgt.split(1, dim=1)]
        torch.testing.assert_close(torch.cat(steps, dim=1), wanted)
    assert torch.nn.Linear in made_of(model) and torch.nn.Linear not in made_of(fast)
    one, other = (m.tgt_embedding.tokens.weight for m in (fast, model))
    assert one is not other and one.data_ptr() == other.data_ptr()  # the same numbers
    others = copy.deepcopy(fast), pickle.loads(pickle.dumps(fast))
    with torch.no_grad():
        model.output.weight.zero_()
        for other in others:
            torch.testing.assert_close(other(src, tgt), wanted)


def test_packed_layers_are_multiplied_by_onednn():
    """The queries of cross-attention alone, where they are all that is asked for."""
    model = random_model(TransformerConfig.tiny(30, d_model=32), 0)
    fast = packed(model)
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        greedy_search(fast, torch.randint(3, 30, (4, 9)), max_len=5)
    calls = {event.key for event in profiler.key_averages()}
    assert "mkldnn::_linear_pointwise" in calls and not calls & {"aten::addmm", "aten::linear"}
    layer = fast.decoder.layers[0]
    assert layer.cross_attention.in_proj._parts.keys() == {(0, 32), (32, 96)}
    assert "_packed" not in vars(layer.cross_attention.in_proj)
    assert "_packed" in vars(layer.self_attention.in_proj)


def test_a_packed_model_goes_its_own_way():
    """What is done to the one leaves the other as it is, but for the numbers of its weights."""
    model = random_model(TransformerConfig.tiny(30, d_model=32, dropout=0.5), 0)
    src, tgt = torch.randint(3, 30, (2, 4, 9))
    fast = packed(model)
    with torch.no_grad():
        before = fast(src, tgt)
        model.train()
        model.encoder.register_forward_hook(lambda *_: 0)
        assert fast(src, tgt).equal(before)
    with pytest.raises(ValueError, match="training mode"):
        packed(model)
    fast.double()
    fast.encoder.layers[0] = None
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert all(p.requires_grad for p in model.parameters())
    assert model.encoder.layers[0] is not None


def test_a_packed_model_is_neither_trained_nor_saved_nor_rounded(tmp_path):
    """It says so, whichever model it was made from."""
    src, tgt = torch.randint(3, 7, (2, 4, 9))
    for model in (build(0, 7).float(), recurrent(0, 7).float()):
        fast = packed(model)
        model.save(tmp_path / "model")
        kept = (tmp_path / "model/model.safetensors").read_bytes()
        for one in (fast, in_eight_bits(model)):
            with pytest.raises(ValueError, match="save the one it was made from"):
                one.save(tmp_path / "model")
        assert (tmp_path / "model/model.safetensors").read_bytes() == kept
        with pytest.raises(ValueError, match="save the one it was made from"):
            fast.state_dict()
        with pytest.raises(ValueError, match="round the one it was made from"):
            in_eight_bits(fast)
        with torch.no_grad():
            with pytest.raises(RuntimeError, match="train the one it was made from"):
                fast.train()(src, tgt)
            torch.testing.assert_close(fast.eval()(src, tgt), model(src, tgt))


def test_packed_layers_pass_gradients_on():
    """To what they read. And an error is that of other layers."""
    layer = torch.nn.Linear(3, 2)
    (fast,) = packed(torch.nn.Sequential(layer).eval())
    x = torch.ones(4, 3, requires_grad=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch's, where there is no gradient
        fast(x).sum().backward()
    assert x.grad is not None and torch.allclose(x.grad, layer.weight.sum(0).expand(4, 3))
    for wrong in (torch.ones(4, 2), torch.ones(4, 3).double()):
        with pytest.raises(RuntimeError, match="shapes cannot be multiplied|same dtype"):
            fast(wrong)


def test_a_layer_in_two_places_is_packed_once():
    layer = torch.nn.Linear(3, 3)
    one, _, other = packed(torch.nn.Sequential(layer, torch.nn.ReLU(), layer).eval())
    assert one is other and type(one) is PackedLinear


def test_packed_layers_follow_autocast():
    """Attention gives bfloat16 there, and the weights are in float32."""
    model = random_model(TransformerConfig.tiny(30, d_model=32), 0)
    src, tgt = torch.randint(3, 30, (2, 4, 9))
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
        assert packed(model)(src, tgt).equal(model(src, tgt))


def test_what_is_listened_to_stays_in_its_place():
    """Else a hook would never be called, and a recording would stay empty."""
    model, heard = random_model(TransformerConfig.tiny(30), 0), []
    src, tgt = torch.randint(3, 30, (2, 2, 5))
    linear = model.encoder.layers[0].feed_forward.linear1
    handle = linear.register_forward_hook(lambda *_: heard.append(1))
    with torch.inference_mode(), record_attention(model.decoder) as layers:
        packed(model)(src, tgt)
    assert heard == [1]
    assert all(layer.weights is not None for layer in layers.values())
    handle.remove()
    assert torch.nn.Linear not in made_of(packed(model))


def test_what_cannot_be_packed_is_used_as_it_is(monkeypatch):
    """Other types, and a PyTorch without the library."""
    src = pad(sources(7, 3, 0))
    for model in (build(0, 7), build(0, 7).bfloat16()):  # the first in double precision
        assert PackedLinear not in made_of(packed(model))
        assert greedy_search(packed(model), src) == greedy_search(model, src)
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    model = build(0, 7).float()
    assert packed(model) is model
    monkeypatch.undo()
    empty = torch.nn.Linear(1, 2)
    empty.weight = torch.nn.Parameter(torch.empty(2, 0))
    assert PackedLinear not in made_of(packed(torch.nn.Sequential(empty).eval()))


def test_a_recurrent_model_is_packed():
    model = recurrent(0, 7).float()
    src, tgt = torch.randint(3, 7, (2, 3, 5))
    with torch.inference_mode():
        torch.testing.assert_close(packed(model)(src, tgt), model(src, tgt))
    assert PackedLinear in made_of(packed(model))


def run_steps(case: str) -> None:
    """Run a function of ``steps.py`` in a program of its own."""
    script = Path(__file__).with_name("steps.py")
    done = subprocess.run([sys.executable, script, case], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "recompile_limit" not in done.stderr  # else PyTorch no longer compiles


def test_compiled_steps_write_the_same():
    run_steps("alike")


def test_compiled_steps_are_of_few_kinds():
    run_steps("kinds")


@pytest.mark.skipif(shutil.which("g++") is None, reason="there is no compiler g++")
def test_compiled_steps_hold_the_weights():
    run_steps("weights")


def test_only_what_can_be_compiled_is():
    """A model in training would keep its dropout; and for other devices it is not made."""
    with pytest.raises(ValueError, match="training mode"):
        compiled(build(0, 7).train())
    with pytest.raises(ValueError, match="for a CPU, and the model is on meta"):
        compiled(build(0, 7).to("meta"))
    run_steps("others")


def test_eight_bits(tmp_path):
    """Nearly the logits of the model, which stays as it is; whichever way its matrices lie."""
    model = random_model(TransformerConfig.tiny(30, d_model=32), 0)
    before = copy.deepcopy(model.state_dict())
    src, tgt = torch.randint(3, 30, (2, 4, 9), generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        logits, coarse = model(src, tgt), in_eight_bits(model)(src, tgt)
        assert in_eight_bits(laid_out(model))(src, tgt).equal(coarse)
    assert 0 < (coarse - logits).abs().max() < 0.2 * logits.std()
    rounded = in_eight_bits(model.train())
    assert model.training and not rounded.training
    after = model.state_dict()
    assert before.keys() == after.keys() and all(before[n].equal(after[n]) for n in after)
    assert not any(type(layer) is torch.nn.Linear for layer in rounded.modules())
    assert len(beam_search(rounded, src, 2)) == 4
    with pytest.raises(ValueError, match="save the one it was made from"):
        rounded.save(tmp_path / "rounded")
    assert not (tmp_path / "rounded").exists()


def test_eight_bits_need_an_engine(monkeypatch):
    """The error names what there is."""
    monkeypatch.setattr(type(torch.backends.quantized), "engine", "none")
    with pytest.raises(RuntimeError, match="is .none., of"):
        in_eight_bits(build(0, 7).float())


@pytest.mark.parametrize("kind", [torch.float64, torch.bfloat16])
def test_eight_bits_are_made_of_single_precision(kind):
    """And not found wanting at the first step of decoding."""
    model = Transformer(TransformerConfig.tiny(9, d_model=8, n_heads=2, d_ff=8, n_layers=1))
    with pytest.raises(ValueError, match=f"only float32.* not {kind}"):
        in_eight_bits(model.to(kind).eval())


def test_what_a_search_asks_of_a_model():
    for model in (build(0, 5), recurrent(0, 5), Scripted(5, None)):
        assert isinstance(model, TranslationModel)
    assert not isinstance(torch.nn.Linear(1, 1), TranslationModel)


# Greedy search


@given(
    models(),
    st.integers(1, 5),
    st.integers(1, 7),
    st.integers(1, 7),
    st.integers(0, 10_000),
)
@few
def test_greedy_equals_naive(model, n, max_len, min_len, seed):
    """Fault F14: with the cache a single query meets all earlier keys."""
    batch = sources(model.config.vocab_size, n, seed)
    max_len, min_len = max(max_len, min_len), min(max_len, min_len)
    found = greedy_search(model, pad(batch), max_len, min_len=min_len)
    agree(found, [naive(model, s, max_len, min_len) for s in batch])


@given(models(), st.integers(1, 4), st.lists(st.integers(1, 3), max_size=4), st.integers(0, 10_000))
@few
def test_cached_logits_are_those_of_the_full_pass(model, n, chunks, seed):
    """Faults F14 and F17: however the target is cut into pieces, and whatever comes later."""
    src = pad(sources(model.config.vocab_size, n, seed))
    tgt = torch.randint(3, model.config.target_size, (n, 1 + sum(chunks)))
    with torch.inference_mode():
        memory, mask = model.encode(src)
        full = model.decode(tgt, memory, mask)
        cache, start, steps = model.new_cache(), 0, []
        for size in (1, *chunks):
            steps.append(model.decode(tgt[:, start : start + size], memory, mask, cache))
            start += size
        shorter = model.decode(tgt[:, :1], memory, mask)
    torch.testing.assert_close(torch.cat(steps, dim=1), full, atol=1e-10, rtol=1e-10)
    torch.testing.assert_close(shorter, full[:, :1], atol=1e-10, rtol=1e-10)


@given(models(), st.integers(1, 4), st.integers(0, 10_000))
@few
def test_scores_are_the_loss_of_training(model, n, seed):
    """Fault F32: the input begins with BOS, the gold ends with one EOS, and all of it counts."""
    batch = sources(model.config.vocab_size, n, seed)
    blocked = model.config.target_size - 2  # of training's softmax, PAD and BOS are a part
    for source, h in zip(batch, greedy_search(model, pad(batch), 6), strict=True):
        if len(h.ids) == 6:
            continue
        with torch.inference_mode():
            logits = model(torch.tensor([source]), torch.tensor([[BOS, *h.ids]]))
            logits[..., [PAD, BOS]] = -1e9
            loss = smoothed_cross_entropy(logits, torch.tensor([[*h.ids, EOS]]))
        assert h.score == pytest.approx(-loss.item(), abs=1e-6), blocked


@given(models(), st.integers(1, 4), st.integers(1, 6), st.integers(0, 10_000), st.floats(0, 2))
@few
def test_beam_1_is_greedy(model, n, max_len, seed, alpha):
    src = pad(sources(model.config.vocab_size, n, seed))
    beams = beam_search(model, src, 1, alpha=alpha, max_len=max_len)
    assert all(len(b) == 1 for b in beams)
    for greedy, (best,) in zip(greedy_search(model, src, max_len), beams, strict=True):
        assert best.ids == greedy.ids
        score = penalised(greedy.score, greedy.ids, max_len, alpha)
        assert best.score == pytest.approx(score, abs=1e-9)


# Beam search


@given(
    models(),
    st.sampled_from([1, 2, 3, 5, 12]),
    st.sampled_from([1, 3, 6, 8]),
    st.integers(1, 3),
    st.integers(0, 10_000),
    st.sampled_from([0.0, 0.6, 1.0, 2.0]),
)
@settings(max_examples=20)
def test_beam_equals_plain(model, beam, max_len, min_len, seed, alpha):
    """The plain one never stops early, so this is also the proof that ours may."""
    batch = sources(model.config.vocab_size, 2, seed)
    min_len = min(min_len, max_len)
    for n_best in {1, beam}:
        options = {"alpha": alpha, "max_len": max_len, "n_best": n_best, "min_len": min_len}
        found = beam_search(model, pad(batch), beam, **options)
        for source, hypotheses in zip(batch, found, strict=True):
            agree(hypotheses, plain_beam(model, source, beam, **options))


@pytest.mark.parametrize("attention", [True, False])
def test_a_recurrent_model_is_searched_as_well(attention):
    for seed in range(3):
        model, batch = recurrent(seed, 8, attention), sources(8, 3, seed)
        agree(greedy_search(model, pad(batch), 5), [naive(model, s, 5) for s in batch])
        found = beam_search(model, pad(batch), 3, max_len=5, n_best=3)
        for source, hypotheses in zip(batch, found, strict=True):
            agree(hypotheses, plain_beam(model, source, 3, 0.6, 5, 3))
        for source, (h, _) in zip(batch, sample(model, pad(batch), 2, max_len=5), strict=True):
            assert h.score == pytest.approx(total(model, source, h.ids, 5), abs=1e-9)


def certain_but_late(source, prefix):
    """Say 3 and end, at once or, a little less likely, after 19 times 4, of which it is sure."""
    if not prefix:
        return [-math.inf] * 3 + [math.log(0.52), math.log(0.48)]
    return certain(EOS if prefix[0] == 3 or len(prefix) == 19 else 4, 5)


def test_a_growing_penalty_may_turn_the_tables():
    """The guess does not see it coming; the exact rule does, at the price of all the steps."""
    src = torch.tensor([[3]])
    exact, guess = Scripted(5, certain_but_late), Scripted(5, certain_but_late)
    options = {"alpha": 1.0, "max_len": 30}
    (h,) = beam_search(exact, src, 2, **options)[0]
    assert h.ids == [4] * 19 and h.score == pytest.approx(math.log(0.48) / (25 / 6))
    (h,) = beam_search(guess, src, 2, exact=False, **options)[0]
    assert h.ids == [3] and h.score == pytest.approx(math.log(0.52) / (7 / 6))
    assert (len(exact.rows), len(guess.rows)) == (20, 2)
    for exact in (True, False):  # without a penalty both are right, and stop at once
        model = Scripted(5, certain_but_late)
        (h,) = beam_search(model, src, 2, alpha=0.0, max_len=30, exact=exact)[0]
        assert h.ids == [3] and len(model.rows) == 2


def test_a_sure_model_is_soon_done():
    """All else that is alive has lost, so the search ends with the sentence."""

    def answer(source, prefix):
        right = EOS if len(prefix) == 4 else 3
        return [-math.inf] * 2 + [math.log(0.9 if t == right else 0.05) for t in range(2, 5)]

    model = Scripted(5, answer)
    (h,) = beam_search(model, torch.tensor([[3]]), 2)[0]
    assert h.ids == [3] * 4 and len(model.rows) == 5


@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0])
@pytest.mark.parametrize("n_best", [1, 3])
def test_the_search_stops_as_soon_as_it_may(alpha, n_best):
    """Not a step after the best sum alive, at the limit's penalty, has lost."""
    max_len, beam = 25, 3

    def answer(source, prefix):
        number = sum(t * 7**i for i, t in enumerate(prefix[-4:])) + 1000 * source[0] + len(prefix)
        return (2 * random_tensor(number, 7, dtype=torch.float64)).tolist()

    steps = []
    for source in range(6):
        model = Scripted(7, answer)
        found = beam_search(
            model, torch.tensor([[source]]), beam, alpha=alpha, max_len=max_len, n_best=n_best
        )[0]
        alive, done, expected = [([], 0.0)], [], 0
        while True:
            expected += 1
            longer = []
            for ids, sum_ in alive:
                log_p = log_probabilities(torch.tensor([answer([source], ids)], dtype=torch.double))
                longer += [([*ids, t], sum_ + x) for t, x in enumerate(log_p[0].tolist())]
            longer.sort(key=lambda x: -x[1])
            done += [
                x / length_penalty(expected, alpha) for ids, x in longer[:beam] if ids[-1] == EOS
            ]
            alive = [x for x in longer if x[0][-1] != EOS][:beam]
            done.sort(reverse=True)
            hope = alive[0][1] / length_penalty(max_len, alpha)
            if expected == max_len or len(done) >= n_best and hope <= done[n_best - 1]:
                break
        assert len(model.rows) == expected
        steps.append(expected)
        if expected < max_len:
            assert [h.score for h in found] == pytest.approx(done[:n_best])
    assert min(steps) < max_len


@given(models(), st.integers(1, 10), st.integers(1, 5), st.integers(0, 10_000), st.floats(0, 2))
@few
def test_scores_are_those_of_a_full_pass(model, beam, max_len, seed, alpha):
    batch = sources(model.config.vocab_size, 3, seed)
    src = pad(batch)
    greedy = greedy_search(model, src, max_len)
    found = beam_search(model, src, beam, alpha=alpha, max_len=max_len, n_best=beam)
    for source, one, many in zip(batch, greedy, found, strict=True):
        assert one.score == pytest.approx(total(model, source, one.ids, max_len), abs=1e-9)
        for h in many:
            score = penalised(total(model, source, h.ids, max_len), h.ids, max_len, alpha)
            assert h.score == pytest.approx(score, abs=1e-9)


@given(models(), st.integers(1, 10), st.integers(1, 5), st.integers(0, 10_000))
@few
def test_hypotheses_are_in_order_and_without_special_tokens(model, beam, max_len, seed):
    src = pad(sources(model.config.vocab_size, 3, seed))
    for n_best in {1, beam}:
        for hypotheses in beam_search(model, src, beam, max_len=max_len, n_best=n_best):
            assert 1 <= len(hypotheses) <= n_best
            scores = [h.score for h in hypotheses]
            assert scores == sorted(scores, reverse=True)
            assert len({tuple(h.ids) for h in hypotheses}) == len(hypotheses)
            for h in hypotheses:
                assert not {PAD, BOS, EOS} & set(h.ids)
                assert len(h.ids) <= max_len


@given(
    models(),
    st.integers(2, 4),
    st.integers(1, 3),
    st.sampled_from([4, 9, None]),
    st.integers(0, 99),
)
@settings(max_examples=6)
def test_batch_mates_do_not_matter(model, n, beam, max_len, seed):
    """Fault F10."""
    batch = sources(model.config.vocab_size, n, seed)
    greedy = greedy_search(model, pad(batch), max_len)
    beams = beam_search(model, pad(batch), beam, max_len=max_len, n_best=beam)
    for source, one, many in zip(batch, greedy, beams, strict=True):
        agree([one], greedy_search(model, pad([source]), max_len))
        agree(many, beam_search(model, pad([source]), beam, max_len=max_len, n_best=beam)[0])


@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0])
@given(
    st.integers(0, 10_000), st.integers(4, 6), st.booleans(), st.integers(1, 3), st.integers(1, 3)
)
@settings(max_examples=8)
def test_a_wide_beam_finds_the_best_of_all(alpha, seed, vocab, norm_first, max_len, min_len):
    """Everything is looked at, with and without a least length."""
    model, min_len = build(seed, vocab, norm_first), min(min_len, max_len)
    source = sources(vocab, 1, seed)[0]
    words = range(3, vocab)
    everything = [
        list(ids)
        for length in range(max_len + 1)
        for ids in product(words, repeat=length)
        if length + 1 >= min_len
    ]
    scores = [
        penalised(total(model, source, ids, max_len), ids, max_len, alpha) for ids in everything
    ]
    best = max(range(len(everything)), key=scores.__getitem__)
    wide = len(words) ** max_len + len(words) ** (max_len - 1)  # all candidates of the last step
    wide = max(wide, len(everything))
    options = {"alpha": alpha, "max_len": max_len, "min_len": min_len}
    found = beam_search(model, pad([source]), wide, n_best=wide, **options)[0]
    assert found[0].ids == everything[best]
    assert found[0].score == pytest.approx(scores[best], abs=1e-9)
    assert sorted(h.ids for h in found) == sorted(everything)
    (h,) = beam_search(model, pad([source]), wide, **options)[0]
    agree([h], found[:1])


def test_beam_2_finds_what_greedy_misses():
    start = {3: 0.6, 4: 0.4}
    after = {3: {5: 0.35, 6: 0.33, 7: 0.32}, 4: {5: 0.9, 6: 0.05, 7: 0.05}}

    def answer(source, prefix):
        p = [start, after.get(prefix[0] if prefix else 0), {EOS: 1.0}][len(prefix)]
        return [math.log(p[t]) if t in p else -math.inf for t in range(8)]

    model, src = Scripted(8, answer), torch.tensor([[3]])
    assert greedy_search(model, src)[0].ids == [3, 5]
    best = beam_search(model, src, 2, alpha=0.0)[0][0]
    assert best.ids == [4, 5]
    assert best.score == pytest.approx(math.log(0.36))


def test_first_step_gives_different_hypotheses():
    """Fault F47."""
    first = [-math.inf] * 3 + [-0.2, -1.8, -5.0]
    model = Scripted(6, lambda source, prefix: certain(EOS, 6) if prefix else first)
    found = beam_search(model, torch.tensor([[3]]), 2, alpha=0.0, n_best=2)[0]
    assert [h.ids for h in found] == [[3], [4]]
    assert found[0].score - found[1].score == pytest.approx(1.6)


def test_length_penalty():
    """Fault F49. A: 2 tokens, -2.0; B: 4 tokens, -2.6."""
    assert length_penalty(1, 0.6) == 1 and length_penalty(9, 0.0) == 1
    assert length_penalty(7, 1.0) == pytest.approx(2)
    assert length_penalty(4, 0.6) == pytest.approx(1.2754, abs=1e-4)
    assert -2.0 / 2 < -2.6 / 4
    assert -2.0 / length_penalty(2, 0.6) > -2.6 / length_penalty(4, 0.6)

    a, b = math.exp(-2.0), math.exp(-2.6)

    def answer(source, prefix):
        # A is [3], B is [4, 4, 4], and what is left goes to a sentence that goes on for long
        if not prefix:
            p = {3: a, 4: b, 5: 1 - a - b}
        elif prefix[0] == 5:
            p = {t: 1 / 3 for t in (3, 4, 5)}
        else:
            p = {EOS: 1.0} if prefix in ([3], [4, 4, 4]) else {4: 1.0}
        return [math.log(p[t]) if t in p else -math.inf for t in range(6)]

    model, src = Scripted(6, answer), torch.tensor([[3]])
    for alpha, order in ((0.0, [[3], [4, 4, 4]]), (0.6, [[3], [4, 4, 4]]), (2.0, [[4, 4, 4], [3]])):
        found = beam_search(model, src, 30, alpha=alpha, max_len=8, n_best=30)[0]
        ours = [h for h in found if h.ids in order]
        assert [h.ids for h in ours] == order
        for h in ours:
            length = len(h.ids) + 1
            raw = {2: -2.0, 4: -2.6}[length]
            assert h.score == pytest.approx(raw / length_penalty(length, alpha))


@pytest.mark.parametrize("beam", [1, 2, 4, 8])
@pytest.mark.parametrize("alpha", [0.0, 0.6])
def test_early_ends_do_not_stop_the_search(beam, alpha):
    """A model nearly sure of a long sentence: ends with a tiny share must not fill the beam."""

    def answer(source, prefix):
        end, word, other = (0.97, 0.01, 0.01) if len(prefix) == 9 else (0.02, 0.97, 0.005)
        return [-math.inf] * 2 + [math.log(p) for p in (end, word, other, other)]

    best = beam_search(Scripted(6, answer), torch.tensor([[3]]), beam, alpha=alpha)[0][0]
    assert best.ids == [3] * 9
    assert best.score == pytest.approx(10 * math.log(0.97) / length_penalty(10, alpha))


# The end


def lengths_as_told(source, prefix):
    """Say token 3 as often as the first source id tells, then EOS."""
    return certain(EOS if len(prefix) == source[0] else 3, 5)


def test_finished_sentences_leave_the_batch():
    src = torch.tensor([[2], [0], [4], [2]])
    model = Scripted(5, lengths_as_told)
    found = greedy_search(model, src)
    assert [h.ids for h in found] == [[3] * n for n in (2, 0, 4, 2)]
    assert [h.score for h in found] == [0.0] * 4  # nothing is added after the end
    assert model.rows == [4, 3, 3, 1, 1]

    model = Scripted(5, lengths_as_told)  # certain, so that there is but one hypothesis
    found = beam_search(model, src, 3, n_best=3)
    assert [[h.ids for h in hs] for hs in found] == [[[3] * n] for n in (2, 0, 4, 2)]
    assert model.rows == [12, 9, 9, 3, 3]


def test_cache_follows_the_rows(monkeypatch):
    model = build(1, 6)
    caches = []
    new_cache = model.new_cache
    monkeypatch.setattr(model, "new_cache", lambda: caches.append(new_cache()) or caches[-1])
    seen = []
    decode = model.decode

    def spy(tgt, memory, memory_mask=None, cache=None):
        assert tgt.size(1) == 1  # the newest token alone
        if cache.length:
            assert len(cache.layers[0].self_attention.key) == len(tgt)
            assert len(cache.layers[0].cross_attention.key) == len(memory)
        seen.append(len(tgt))
        return decode(tgt, memory, memory_mask, cache)

    monkeypatch.setattr(model, "decode", spy)
    src = pad(sources(6, 6, 1))
    greedy_search(model, src, 20)
    assert seen[0] == 6 and min(seen) < 6
    seen.clear()
    beam_search(model, src, 2, max_len=20)
    assert seen[0] == 12 and min(seen) < 12


@given(
    st.integers(1, 4),
    st.lists(st.tuples(st.integers(1, 3), st.lists(st.integers(0, 99), max_size=5)), max_size=5),
    st.integers(0, 10_000),
)
def test_selected_rows_of_a_cache_are_those_of_index_select(b, steps, seed):
    """Fewer or more rows, repeated ones, in any order; and what is appended later fits."""
    cache, keys, values = KeyValueCache(), None, None
    for i, (t, rows) in enumerate([(1, [0]), *steps] if b == 1 else steps):
        n = b if keys is None else len(keys)
        if not n:
            break
        new = random_tensor(seed + i, 2, n, 2, t, 3)
        cache.append(*new)
        keys = new[0] if keys is None else torch.cat([keys, new[0]], dim=2)
        values = new[1] if values is None else torch.cat([values, new[1]], dim=2)
        rows = torch.tensor([row % n for row in rows], dtype=torch.long)
        given = rows.clone()
        cache.select(rows)
        keys, values = keys.index_select(0, rows), values.index_select(0, rows)
        assert torch.equal(cache.key, keys) and torch.equal(cache.value, values)
        assert torch.equal(rows, given)


def never_ending(token: int, vocab: int, **changes) -> Transformer:
    """Return a model that says ``token`` for ever: its last norm forgets what it is given."""
    model = build(0, vocab, **changes)
    norm = model.decoder.layers[-1].residual3.norm
    with torch.no_grad():
        norm.weight.zero_()
        model.output.weight[EOS] = -model.output.weight[token]
        norm.bias.copy_(10 * model.output.weight[token])
    return model


def test_default_max_len_is_each_source_plus_50():
    """The limit must not hang on the padding, that is on batch-mates."""
    model = never_ending(3, 5)
    src = pad([[3, EOS], [3, 4, 3, 4, 3, EOS]])
    beams = [h for (h,) in beam_search(model, src, 3)]
    drawn = [h for (h,) in sample(model, src, top_k=1)]
    for found in (greedy_search(model, src), beams, drawn):
        assert [h.ids for h in found] == [[3] * 52, [3] * 56]


def test_learned_positions_end_a_sentence():
    model = never_ending(4, 6, positions="learned", max_len=7)
    src = torch.tensor([[3, 4, 5, EOS]])
    assert greedy_search(model, src)[0].ids == [4] * 7
    assert beam_search(model, src)[0][0].ids == [4] * 7
    for search in (greedy_search, beam_search, sample):
        with pytest.raises(ValueError, match="at most 7"):
            search(model, src, max_len=8)
        with pytest.raises(ValueError, match="min_len must be at least 1 and at most 7"):
            search(model, src, min_len=8)


def test_max_len_cuts():
    model = Scripted(5, lambda source, prefix: certain(3, 5))
    src = torch.tensor([[3], [4]])
    assert greedy_search(model, src, 1) == [Hypothesis([3], 0.0)] * 2
    assert beam_search(model, src, 4, max_len=3, n_best=4) == [[Hypothesis([3, 3, 3], 0.0)]] * 2


@given(models(), st.integers(1, 3), st.integers(1, 6), st.integers(0, 10_000))
@settings(max_examples=10)
def test_min_len(model, n, min_len, seed):
    """EOS is counted; nothing else changes, and the scores are the model's own."""
    batch = sources(model.config.vocab_size, n, seed)
    src, options = pad(batch), {"min_len": min_len, "max_len": 6}
    greedy = greedy_search(model, src, 6, min_len=min_len)
    beams = beam_search(model, src, 3, n_best=3, alpha=0.0, **options)
    drawn = sample(model, src, 3, **options)
    for source, one, many, few_ in zip(batch, greedy, beams, drawn, strict=True):
        for h in (one, *many, *few_):
            assert min_len - 1 <= len(h.ids) <= 6
            assert h.score == pytest.approx(total(model, source, h.ids, 6), abs=1e-9)


def test_a_least_length_beyond_the_default_limit():
    model = never_ending(3, 5)
    src = torch.tensor([[3, EOS]])
    for h in (greedy_search(model, src, min_len=60)[0], beam_search(model, src, min_len=60)[0][0]):
        assert h.ids == [3] * 60


def test_where_nothing_else_can_be_said_a_sentence_ends_before_min_len():
    src = torch.tensor([[1], [3]])
    for search in (greedy_search, beam_search, sample):
        found = search(Scripted(5, lengths_as_told), src, min_len=3)
        found = [h if isinstance(h, Hypothesis) else h[0] for h in found]
        assert [h.ids for h in found] == [[3], [3, 3, 3]]
    assert greedy_search(build(0, 3), src[:1], min_len=3) == [Hypothesis([], 0.0)]
    log_p = torch.tensor([[-math.inf] * 2 + [-0.1, -2.0], [-math.inf] * 2 + [0.0, -math.inf]])
    before = log_p.clone()
    assert without_end(log_p, EOS).tolist() == [
        [-math.inf] * 3 + [-2.0],
        [-math.inf] * 2 + [0.0, -math.inf],
    ]
    assert torch.equal(log_p, before)


# Ids of other vocabularies


def renumbered(model: Transformer, new: list[int]) -> Transformer:
    """Return the same model, in whose vocabulary token ``i`` has the id ``new[i]``."""
    config = dataclasses.replace(model.config, pad=new[PAD], bos=new[BOS], eos=new[EOS])
    other = Transformer(config).double().eval()
    weights = dict(model.named_parameters())
    with torch.no_grad():
        for name, parameter in other.named_parameters():
            if name.endswith("tokens.weight"):
                parameter[new] = weights[name]
            else:
                parameter.copy_(weights[name])
    return other


@few
@given(models(), st.integers(0, 10_000), st.randoms(use_true_random=False))
def test_special_tokens_may_have_any_ids(model, seed, shuffle):
    """The ids of PAD, BOS and EOS are the configuration's: as those of published models are."""
    new = list(range(model.config.vocab_size))
    shuffle.shuffle(new)
    other = renumbered(model, new)
    batch = sources(model.config.vocab_size, 3, seed)
    src, src_other = pad(batch), pad([[new[i] for i in ids] for ids in batch], new[PAD])
    for search in (
        lambda model, src: greedy_search(model, src, max_len=6, min_len=2),
        lambda model, src: [h[0] for h in beam_search(model, src, 2, max_len=6, min_len=2)],
    ):
        expected = [Hypothesis([new[i] for i in h.ids], h.score) for h in search(model, src)]
        agree(search(other, src_other), expected)
    assert not {new[PAD], new[BOS], new[EOS]} & set(sample(other, src_other, 1)[0][0].ids)


@few
@given(models(), st.integers(0, 10_000))
def test_a_target_may_open_with_the_padding_token(model, seed):
    """As in Marian's models: it works as a token BOS with the same vector."""
    table = model.tgt_embedding.tokens.weight.data
    table[BOS] = table[PAD]
    opens_with_pad = Transformer(dataclasses.replace(model.config, bos=PAD)).double().eval()
    opens_with_pad.load_state_dict(model.state_dict())
    src = pad(sources(model.config.vocab_size, 3, seed))
    tgt = pad([[BOS, 3, EOS], [BOS, EOS], [BOS, 3, 3, EOS]])
    opened = tgt.where(tgt != BOS, PAD)
    expected, got = model(src, tgt), opens_with_pad(src, opened)
    real = tgt != PAD
    assert torch.allclose(got[real], expected[real])
    drafts, longest = Drafts(opens_with_pad, src), opened[2:].expand(3, -1)
    for i in range(4):
        logits = opens_with_pad(src, longest[:, : i + 1])[:, -1]
        log_p = log_probabilities(logits, (PAD, PAD))
        assert torch.allclose(drafts.step(longest[:, i : i + 1]), log_p)


# Sampling


def probabilities(p: dict[int, float], vocab: int) -> list[float]:
    return [math.log(p[t]) if t in p else -math.inf for t in range(vocab)]


SHARES = {2: 0.1, 3: 0.4, 4: 0.25, 5: 0.15, 6: 0.06, 7: 0.04}


def one_word(source, prefix):
    return certain(EOS, 8) if prefix else probabilities(SHARES, 8)


def check_shares(expected: dict[int, float], **options):
    """Draw 4000 first words; compare with ``expected`` by chi-square, with a wide margin."""
    n, count = 4000, dict.fromkeys(expected, 0)
    for h in sample(Scripted(8, one_word), torch.tensor([[3]]), n, **options)[0]:
        token = h.ids[0] if h.ids else EOS
        assert token in expected, "this should have been cut"
        count[token] += 1
        assert h.score == pytest.approx(math.log(SHARES[token])), "the score is the model's own"
    whole = sum(expected.values())
    chi = sum((count[t] - n * p / whole) ** 2 / (n * p / whole) for t, p in expected.items())
    freedom = len(expected) - 1
    assert chi < freedom + 6 * math.sqrt(2 * freedom)


def test_samples_come_as_often_as_they_should():
    check_shares(SHARES)
    check_shares({t: p for t, p in SHARES.items() if t != EOS}, min_len=2)


def test_shares_by_temperature():
    check_shares({t: p**2 for t, p in SHARES.items()}, temperature=0.5)
    check_shares({t: p ** (1 / 3) for t, p in SHARES.items()}, temperature=3.0)


def test_shares_of_what_is_not_cut():
    """First the temperature, then top-k, then top-p."""
    check_shares({3: 0.4, 4: 0.25}, top_k=2)
    check_shares({3: 0.4, 4: 0.25, 5: 0.15}, top_p=0.7)
    check_shares({3: 0.4, 4: 0.25}, top_k=3, top_p=0.7)  # which are 81 % of the three
    check_shares({3: 0.4**0.5, 4: 0.25**0.5, 5: 0.15**0.5}, temperature=2.0, top_p=0.5)
    check_shares(SHARES, top_k=99, top_p=1.0)


def test_shares_of_whole_samples():
    """A sentence is drawn as often as its probability says, from a real model."""
    model, source, n = build(2, 5), [3, 4, EOS], 4000
    sentences = [list(ids) for k in range(3) for ids in product((3, 4), repeat=k)]
    p = [math.exp(total(model, source, ids, 2)) for ids in sentences]
    assert sum(p) == pytest.approx(1)
    found = [h.ids for h in sample(model, torch.tensor([source]), n, max_len=2)[0]]
    pairs = zip(sentences, p, strict=True)
    chi = sum((found.count(ids) - n * q) ** 2 / (n * q) for ids, q in pairs)
    assert chi < len(p) - 1 + 6 * math.sqrt(2 * (len(p) - 1))


@given(models(), st.integers(1, 4), st.integers(1, 4), st.integers(0, 10_000))
@settings(max_examples=6)
def test_samples_hang_on_seed_and_number_alone(model, n, seed, data):
    """Not on batch-mates, nor on how many are drawn; and another seed gives others."""
    batch = sources(model.config.vocab_size, n, data)
    options = {"max_len": 9, "temperature": 1.5, "seed": seed}
    together = sample(model, pad(batch), 3, **options)
    assert [len(found) for found in together] == [3] * n
    for i, (source, found) in enumerate(zip(batch, together, strict=True)):
        for h in found:
            assert h.score == pytest.approx(total(model, source, h.ids, 9), abs=1e-9)
            assert not {PAD, BOS, EOS} & set(h.ids)
        company = [[3, EOS]] * i + [source, [3, 3, 3, EOS]]
        agree(sample(model, pad(company), 3, **options)[i], found)
        agree(sample(model, pad(company), 1, **options)[i], found[:1])


def test_seeds_and_rows_and_samples_differ():
    model = Scripted(1000, lambda source, prefix: [0.0] * 1000)
    src = torch.tensor([[3], [3]])
    drawn = [sample(model, src, 2, seed=seed, max_len=4) for seed in (0, 0, 1)]
    assert drawn[0] == drawn[1]
    ids = {tuple(h.ids) for found in (drawn[0], drawn[2]) for row in found for h in row}
    assert len(ids) == 8


@pytest.mark.parametrize(
    "options",
    [{"top_k": 1}, {"top_p": 1e-12}, {"temperature": 1e-3}, {"temperature": 1e-300, "top_k": 3}],
)
@given(models(), st.integers(1, 4), st.integers(0, 10_000))
@settings(max_examples=8)
def test_samples_of_the_likeliest_are_greedy(options, model, n, seed):
    src = pad(sources(model.config.vocab_size, n, seed))
    greedy = greedy_search(model, src, 7)
    for found, h in zip(
        sample(model, src, 2, max_len=7, seed=seed, **options), greedy, strict=True
    ):
        agree(found, [h, h])


@given(
    st.integers(0, 10_000), st.integers(1, 9), st.integers(1, 12), st.floats(0.01, 1), st.booleans()
)
def test_cuts_keep_what_they_should(seed, v, k, p, ties):
    """Against sorting by hand. Of equal ones, those that come first are kept."""
    logits = 2 * random_tensor(seed, 3, v, dtype=torch.float64)
    logits = logits.round() if ties else logits
    before = logits.clone()
    by_k, by_p = keep_top_k(logits, k), keep_top_p(logits, p)
    assert torch.equal(logits, before)
    for row, kept_k, kept_p in zip(logits.tolist(), by_k.tolist(), by_p.tolist(), strict=True):
        order = sorted(range(v), key=lambda j: (-row[j], j))
        norm = sum(math.exp(x) for x in row)
        share, nucleus = 0.0, []
        for j in order:
            if nucleus and share >= p - 1e-12:
                break
            nucleus.append(j)
            share += math.exp(row[j]) / norm
        for kept, right in ((kept_k, order[:k]), (kept_p, nucleus)):
            assert kept == [x if j in right else -math.inf for j, x in enumerate(row)]


def test_the_edges_of_the_cuts():
    logits = torch.tensor([[0.0, 30.0, 0.0, -40.0], [1.0, 1.0, 1.0, 1.0]])
    assert torch.equal(keep_top_p(logits, 1.0), logits), "1 keeps all, however small"
    assert torch.equal(keep_top_k(logits, 4), logits) and torch.equal(
        keep_top_k(logits, 99), logits
    )
    for kind in (torch.float16, torch.bfloat16, torch.float32):
        assert keep_top_p(logits.to(kind), 1e-50).isfinite().sum() == 2, "one in each row"
    for kept in (keep_top_p(logits, 1e-30), keep_top_k(logits, 1)):
        assert kept.isfinite().nonzero().tolist() == [[0, 1], [1, 0]]
    assert keep_top_p(torch.tensor([[0.5, 0.25, 0.25]]).log(), 0.5).isfinite().tolist() == [
        [True, False, False]
    ]
    impossible = torch.tensor([[-math.inf, 0.0, -math.inf]])
    for kept in (
        keep_top_p(impossible, 1.0),
        keep_top_p(impossible, 0.5),
        keep_top_k(impossible, 2),
    ):
        assert torch.equal(kept, impossible)
    for k in (0, -1):
        with pytest.raises(ValueError, match="top_k must be at least 1"):
            keep_top_k(logits, k)
    for p in (0.0, -0.1, 1.1, math.nan):
        with pytest.raises(ValueError, match="top_p must be above 0 and at most 1"):
            keep_top_p(logits, p)


# The edges


@pytest.mark.parametrize("size", [1, 500])
def test_sources_of_one_and_of_500_tokens(size):
    for model in (build(1, 9), build(2, 9, True), recurrent(1, 9)):
        source = [3 + i % 6 for i in range(size - 1)] + [EOS]
        src = pad([source, [5, EOS]])
        agree(greedy_search(model, src, 4)[:1], [naive(model, source, 4)])
        agree(beam_search(model, src, 3, max_len=4)[0], plain_beam(model, source, 3, 0.6, 4, 1))
        (h,) = sample(model, src, max_len=4)[0]
        assert h.score == pytest.approx(total(model, source, h.ids, 4), abs=1e-9)


@pytest.mark.parametrize("norm_first", [False, True])
def test_a_row_of_padding_harms_nobody(norm_first):
    model = build(2, 7, norm_first)
    batch = [[3, 4, EOS], [PAD, PAD, PAD], [5, EOS]]
    for search in (greedy_search, lambda *x: [h[0] for h in beam_search(*x, 3)]):
        found = search(model, pad(batch))
        assert all(math.isfinite(h.score) for h in found)
        for i in (0, 2):
            agree([found[i]], search(model, pad([batch[i]])))


def test_an_empty_batch():
    src = torch.zeros(0, 3, dtype=torch.long)
    for model in (build(2, 7), recurrent(2, 7)):
        assert greedy_search(model, src) == []
        assert beam_search(model, src) == []
        assert sample(model, src, 3) == []


def test_only_the_end_can_be_said():
    model = build(0, 3)
    src = torch.tensor([[EOS, EOS]])
    assert greedy_search(model, src) == [Hypothesis([], 0.0)]
    assert beam_search(model, src, 4, n_best=4) == [[Hypothesis([], 0.0)]]


def test_training_goes_on_after_decoding():
    """Searching past the table of positions leaves nothing that a gradient stumbles over."""
    model = build(5, 6)
    src = torch.tensor([[3, 4, EOS]])
    model.tgt_embedding.positions.table = model.tgt_embedding.positions.table[:2]
    model.src_embedding.positions.table = model.src_embedding.positions.table[:2]
    greedy_search(model, src, 12)
    model.train()
    model(src, torch.tensor([[BOS, 3, 4]])).sum().backward()
    assert model.output.weight.grad.isfinite().all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_len": 0}, "max_len must be at least 1"),
        ({"beam": 0}, "beam must be at least 1"),
        ({"n_best": 0}, "n_best must be from 1 to beam=4"),
        ({"n_best": 5}, "n_best must be from 1 to beam=4"),
        ({"alpha": -0.1}, "alpha must be from 0 to 10, not -0.1"),
        ({"alpha": math.nan}, "alpha must be from 0 to 10"),
        ({"alpha": math.inf}, "alpha must be from 0 to 10"),
        ({"min_len": 0}, "min_len must be at least 1, not 0"),
        ({"min_len": 4, "max_len": 3}, "min_len must be at least 1 and at most 3"),
        ({"n": 0}, "n must be at least 1"),
        ({"temperature": 0.0}, "temperature must be above 0 and finite, not 0.0; .* greedy_search"),
        ({"temperature": math.inf}, "temperature must be above 0"),
        ({"temperature": math.nan}, "temperature must be above 0"),
        ({"top_k": 0}, "top_k must be at least 1"),
        ({"top_p": 0.0}, "top_p must be above 0"),
    ],
)
def test_numbers_out_of_range(options, message):
    search = sample if {"n", "temperature", "top_k", "top_p"} & options.keys() else beam_search
    with pytest.raises(ValueError, match=message):
        search(build(0, 5), torch.tensor([[3, EOS]]), **options)


def test_lengths_are_whole_numbers():
    """Half a token would be a limit that no sentence meets, and the search would find nothing."""
    unchecked = inspect.unwrap(check_decoding)  # in the tests, the annotation would refuse it first
    for name, number in product(("max_len", "min_len"), (2.5, math.inf, math.nan)):
        options = {"max_len": None, "min_len": 1, name: number}
        with pytest.raises(ValueError, match=f"{name} must be a whole number, not {number}"):
            unchecked(build(0, 5), torch.tensor([[3, EOS]]), **options)


def test_the_largest_alpha():
    """Scores are tiny, and still in the right order; much beyond, the penalty is no number."""
    model = build(3, 6)
    source = [3, 4, 5, EOS]
    found = beam_search(model, torch.tensor([source]), 3, alpha=10, max_len=6, n_best=3)[0]
    expected = plain_beam(model, source, 3, 10, 6, 3)
    assert [h.ids for h in found] == [h.ids for h in expected]
    assert [h.score for h in found] == pytest.approx([h.score for h in expected], rel=1e-9)
    with pytest.raises(ValueError, match="alpha must be from 0 to 10, not 1000"):
        beam_search(model, torch.tensor([source]), alpha=1000, max_len=2)


def test_minus_infinity_is_a_logit_and_all_of_them_are_none():
    log_p = log_probabilities(torch.tensor([[0.0, 0.0, -math.inf, 0.0]]))
    assert log_p.tolist() == [[-math.inf] * 3 + [0.0]]
    with pytest.raises(FloatingPointError, match="NaN"):
        log_probabilities(torch.full((1, 4), -math.inf))


def test_what_a_search_cannot_start_from():
    src = torch.tensor([[3, EOS]])
    model = build(0, 5)
    with pytest.raises(ValueError, match="max_len must be at least 1"):
        greedy_search(model, src, 0)
    for search in (greedy_search, beam_search, sample):
        with pytest.raises(ValueError, match=r"call model\.eval"):
            search(model.train(), src)
        with pytest.raises(ValueError, match="has no EOS"):
            search(build(0, 5, tgt_vocab_size=2, tie="none"), src)
    with torch.no_grad():
        model.eval().output.weight[4, 0] = math.nan
    for search in (greedy_search, beam_search, sample):
        with pytest.raises(FloatingPointError, match="NaN"):
            search(model, src)
