"""Decoding: cached equals naive, a sentence is its own affair, and a wide beam finds the best."""

import math
from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support import random_model

from transformer_lit.data import BOS, EOS, PAD, pad
from transformer_lit.decoding import (
    Hypothesis,
    beam_search,
    greedy_search,
    length_penalty,
    log_probabilities,
)
from transformer_lit.model import Transformer, TransformerConfig

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


@torch.inference_mode()
def naive(model: Transformer, source: list[int], max_len: int) -> Hypothesis:
    """Greedy search for one sentence that computes everything anew at each step."""
    ids, score = [BOS], 0.0
    while len(ids) <= max_len:
        logits = model(torch.tensor([source]), torch.tensor([ids]))[:, -1]
        best, token = log_probabilities(logits)[0].max(dim=0)
        score += best.item()
        if token == EOS:
            break
        ids.append(token.item())
    return Hypothesis(ids[1:], score)


@torch.inference_mode()
def plain_beam(model, source, beam, alpha, max_len, n_best) -> list[Hypothesis]:
    """Beam search for one sentence with lists, without a cache."""
    alive, done = [([BOS], 0.0)], []
    for length in range(1, max_len + 1):
        longer = []
        prefixes = torch.tensor([ids for ids, _ in alive])
        logits = model(torch.tensor([source] * len(alive)), prefixes)[:, -1]
        for (ids, total), row in zip(alive, log_probabilities(logits).tolist(), strict=True):
            for t, log_p in enumerate(row):
                if log_p > -math.inf:
                    longer.append(([*ids, t], total + log_p))
        longer.sort(key=lambda x: -x[1])
        for ids, total in longer[:beam]:
            if ids[-1] == EOS or length == max_len:
                ids = [t for t in ids[1:] if t != EOS]
                done.append(Hypothesis(ids, total / length_penalty(length, alpha)))
        alive = [x for x in longer if x[0][-1] != EOS][:beam]
        done.sort(key=lambda h: -h.score)
        if not alive:
            break
        hope = alive[0][1] / length_penalty(length, alpha)
        if len(done) >= beam and hope <= done[n_best - 1].score:
            break
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


class Scripted(Transformer):
    """A model that looks its answers up: ``answer(source, prefix)`` is a list of logits."""

    def __init__(self, vocab: int, answer):
        shape = {"d_model": 1, "n_heads": 1, "d_ff": 1, "n_layers": 1}
        super().__init__(TransformerConfig(vocab, **shape))
        self.answer, self.rows = answer, []
        self.eval()

    def encode(self, src):
        return src[..., None].double(), None

    def new_cache(self):
        return Prefixes()

    def decode(self, tgt, memory, memory_mask=None, cache=None):
        assert len(tgt) == len(memory)
        tgt = tgt if cache is None else cache.append(tgt)
        self.rows.append(len(tgt))
        sources = memory[..., 0].int().tolist()
        pairs = zip(sources, tgt.tolist(), strict=True)
        logits = [self.answer(source, ids[1:]) for source, ids in pairs]
        return torch.tensor(logits, dtype=torch.double)[:, None]


class Prefixes:
    """What stands for a cache with `Scripted`: the tokens so far."""

    ids = None

    def append(self, ids):
        self.ids = ids if self.ids is None else torch.cat([self.ids, ids], dim=1)
        return self.ids

    def select(self, rows):
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


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_log_probabilities_refuse_nan(bad):
    logits = torch.zeros(2, 5)
    logits[1, 3] = bad
    with pytest.raises(FloatingPointError, match="NaN"):
        log_probabilities(logits)


# Greedy search


@given(models(), st.integers(1, 5), st.integers(1, 7), st.integers(0, 10_000))
@few
def test_greedy_equals_naive(model, n, max_len, seed):
    batch = sources(model.config.vocab_size, n, seed)
    agree(greedy_search(model, pad(batch), max_len), [naive(model, s, max_len) for s in batch])


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


@given(models(), st.integers(1, 12), st.integers(1, 5), st.integers(0, 10_000), st.floats(0, 2))
@few
def test_beam_equals_plain(model, beam, max_len, seed, alpha):
    batch = sources(model.config.vocab_size, 2, seed)
    for n_best in {1, beam}:
        found = beam_search(model, pad(batch), beam, alpha=alpha, max_len=max_len, n_best=n_best)
        for source, hypotheses in zip(batch, found, strict=True):
            agree(hypotheses, plain_beam(model, source, beam, alpha, max_len, n_best))


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
@settings(max_examples=8)
def test_batch_mates_do_not_matter(model, n, beam, max_len, seed):
    """Fault F10."""
    batch = sources(model.config.vocab_size, n, seed)
    greedy = greedy_search(model, pad(batch), max_len)
    beams = beam_search(model, pad(batch), beam, max_len=max_len, n_best=beam)
    for source, one, many in zip(batch, greedy, beams, strict=True):
        agree([one], greedy_search(model, pad([source]), max_len))
        agree(many, beam_search(model, pad([source]), beam, max_len=max_len, n_best=beam)[0])


@given(st.integers(0, 10_000), st.integers(4, 6), st.booleans(), st.integers(1, 3), st.floats(0, 2))
@few
def test_a_wide_beam_finds_the_best_of_all(seed, vocab, norm_first, max_len, alpha):
    model = build(seed, vocab, norm_first)
    source = sources(vocab, 1, seed)[0]
    words = range(3, vocab)
    everything = [
        list(ids) for length in range(max_len + 1) for ids in product(words, repeat=length)
    ]
    scores = [
        penalised(total(model, source, ids, max_len), ids, max_len, alpha) for ids in everything
    ]
    best = max(range(len(everything)), key=scores.__getitem__)
    wide = len(words) ** max_len + len(words) ** (max_len - 1)  # all candidates of the last step
    wide = max(wide, len(everything))  # and it must not be done before that step
    found = beam_search(model, pad([source]), wide, alpha=alpha, max_len=max_len, n_best=wide)[0]
    assert found[0].ids == everything[best]
    assert found[0].score == pytest.approx(scores[best], abs=1e-9)
    assert sorted(h.ids for h in found) == sorted(everything)


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
    model = build(3, 6)
    caches = []
    new_cache = model.new_cache
    monkeypatch.setattr(model, "new_cache", lambda: caches.append(new_cache()) or caches[-1])
    seen = []
    decode = model.decode

    def spy(tgt, memory, memory_mask=None, cache=None):
        assert tgt.size(1) == 1  # the newest token alone
        if cache.length:
            assert len(cache.layers[0].self_attention.key) == len(tgt)
            assert len(cache.layers[0].cross_attention.key) == len(tgt)
        seen.append(len(tgt))
        return decode(tgt, memory, memory_mask, cache)

    monkeypatch.setattr(model, "decode", spy)
    src = pad(sources(6, 6, 1))
    greedy_search(model, src, 20)
    beam_search(model, src, 2, max_len=20)
    assert seen[0] == 6 and min(seen) < 6 and max(seen) == 12


def never_ending(token: int, vocab: int, **changes) -> Transformer:
    """Return a model that says ``token`` for ever: its last norm forgets what it is given."""
    model = build(0, vocab, **changes)
    norm = model.decoder.layers[-1].residual3.norm
    with torch.no_grad():
        norm.weight.zero_()
        model.output.weight[EOS] = -model.output.weight[token]
        norm.bias.copy_(10 * model.output.weight[token])
    return model


@pytest.mark.parametrize("beam", [0, 3])
def test_default_max_len_is_each_source_plus_50(beam):
    """The limit must not hang on the padding, that is on batch-mates."""
    model = never_ending(3, 5)
    src = pad([[3, EOS], [3, 4, 3, 4, 3, EOS]])
    best = [h[0] for h in beam_search(model, src, beam)] if beam else greedy_search(model, src)
    assert [h.ids for h in best] == [[3] * 52, [3] * 56]


def test_learned_positions_end_a_sentence():
    model = never_ending(4, 6, positions="learned", max_len=7)
    src = torch.tensor([[3, 4, 5, EOS]])
    assert greedy_search(model, src)[0].ids == [4] * 7
    assert beam_search(model, src)[0][0].ids == [4] * 7
    for search in (greedy_search, beam_search):
        with pytest.raises(ValueError, match="at most 7"):
            search(model, src, max_len=8)


def test_max_len_cuts():
    model = Scripted(5, lambda source, prefix: certain(3, 5))
    src = torch.tensor([[3], [4]])
    assert greedy_search(model, src, 1) == [Hypothesis([3], 0.0)] * 2
    assert beam_search(model, src, 4, max_len=3, n_best=4) == [[Hypothesis([3, 3, 3], 0.0)]] * 2


# The edges


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
    model = build(2, 7)
    src = torch.zeros(0, 3, dtype=torch.long)
    assert greedy_search(model, src) == []
    assert beam_search(model, src) == []


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
    ],
)
def test_numbers_out_of_range(options, message):
    with pytest.raises(ValueError, match=message):
        beam_search(build(0, 5), torch.tensor([[3, EOS]]), **options)


def test_what_a_search_cannot_start_from():
    src = torch.tensor([[3, EOS]])
    model = build(0, 5)
    with pytest.raises(ValueError, match="max_len must be at least 1"):
        greedy_search(model, src, 0)
    for search in (greedy_search, beam_search):
        with pytest.raises(ValueError, match=r"call model\.eval"):
            search(model.train(), src)
        with pytest.raises(ValueError, match="has no EOS"):
            search(build(0, 5, tgt_vocab_size=2, tie="none"), src)
    with torch.no_grad():
        model.eval().output.weight[4, 0] = math.nan
    for search in (greedy_search, beam_search):
        with pytest.raises(FloatingPointError, match="NaN"):
            search(model, src)
