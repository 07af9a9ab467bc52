"""RNN, LSTM and additive attention: equal to PyTorch's or to loops; and a translator."""

import dataclasses
import json
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from mutants import fresh_import
from support import (
    close,
    dtypes,
    padded_ids,
    random_mask,
    random_tensor,
    randomise,
    seeds,
    sizes,
)
from torch import Tensor, nn

from transformer_lit.data import BOS, EOS, PAD, TokenBatches, Tokenizer, date_pairs
from transformer_lit.decoding import beam_search, greedy_search
from transformer_lit.gpu import Accelerator
from transformer_lit.model import TransformerConfig
from transformer_lit.recurrent import (
    LSTM,
    RNN,
    AdditiveAttention,
    RecurrentCache,
    RecurrentConfig,
    Seq2Seq,
)
from transformer_lit.training import Trainer, TrainingConfig

layers = st.sampled_from([(RNN, nn.RNN), (LSTM, nn.LSTM)])


# The layers


def copy_weights(ours: nn.Module, theirs: nn.Module, end: str = "_l0") -> None:
    """Give our layer the weights of PyTorch's, whose two biases add up."""
    w, u, b, a = (
        getattr(theirs, name + end).detach()
        for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    )
    ours.load_state_dict({"w.weight": w, "w.bias": b + a, "u.weight": u})


@given(layers, seeds, dtypes, sizes, sizes, sizes, sizes, st.booleans())
def test_equals_pytorch(kinds, seed, dtype, b, t, d_in, d, begun):
    """With the same weights: states, last state and all gradients, from any first state."""
    ours = kinds[0](d_in, d).to(dtype)
    theirs = randomise(kinds[1](d_in, d, batch_first=True), seed, dtype)
    copy_weights(ours, theirs)
    x = random_tensor(seed, b, t, d_in, dtype=dtype)
    first = [random_tensor(seed + i, b, d, dtype=dtype) for i in (1, 2)]
    found = []
    for layer, weights in (
        (ours, [ours.w.weight, ours.w.bias, ours.u.weight]),
        (theirs, [theirs.weight_ih_l0, theirs.bias_ih_l0, theirs.weight_hh_l0]),
    ):
        leaf = x.clone().requires_grad_()
        begin = [h.clone().requires_grad_() for h in first[: 2 if kinds[0] is LSTM else 1]]
        state = tuple(h[None] if layer is theirs else h for h in begin)
        states, last = layer(leaf, state if len(state) == 2 else state[0]) if begun else layer(leaf)
        last = torch.stack(last) if isinstance(last, tuple) else last
        total = states.square().sum() + last.sum()
        leaves = [leaf, *weights, *(begin if begun else [])]
        gradients = torch.autograd.grad(total, leaves, materialize_grads=True)
        found.append([states, last.view(-1, b, d), *gradients])
    for actual, expected in zip(*found, strict=True):
        close(actual, expected)


@given(layers, seeds, sizes, st.integers(2, 6))
def test_reading_may_be_interrupted(kinds, seed, b, t):
    """A sentence read in two parts, the state handed on, is the sentence read at once."""
    layer = randomise(kinds[0](3, 4), seed)
    x = random_tensor(seed, b, t, 3)
    states, _ = layer(x)
    first, state = layer(x[:, : t // 2])
    second, _ = layer(x[:, t // 2 :], state)
    close(torch.cat([first, second], dim=1), states)


def test_a_step_of_an_lstm_with_pencil_and_paper():
    """Gates 1/2, 3/4, news 0.6 and 1: the cell becomes 3/4 * 2 + 1/2 * 0.6 = 1.8."""
    layer, cell = LSTM(1, 1), torch.tensor([[2.0]])
    with torch.no_grad():
        layer.w.weight.zero_()
        layer.u.weight.zero_()
        layer.w.bias.copy_(torch.tensor([0.0, math.log(3), math.atanh(0.6), 100.0]))
    states, (state, cell) = layer(torch.ones(1, 1, 1), (torch.ones(1, 1), cell))
    close(cell, [[1.8]])
    close(state, [[math.tanh(1.8)]])
    close(states[0], state)


# Additive attention


@st.composite
def attending(draw: st.DrawFn):
    """Draw a layer, queries, memory and mask; some queries may attend to nothing."""
    seed, dtype = draw(seeds), draw(dtypes)
    b, t, s, q, m, d = (draw(sizes) for _ in range(6))
    layer = randomise(AdditiveAttention(q, m, d), seed, dtype)
    mask = random_mask(seed, *draw(st.sampled_from([(b, t, s), (b, 1, s), (t, s), (s,)])))
    query, memory = (
        random_tensor(seed + i, *shape, dtype=dtype)
        for i, shape in enumerate([(b, t, q), (b, s, m)])
    )
    return layer, query, memory, draw(st.sampled_from([mask, None]))


@given(attending())
def test_additive_attention_follows_its_formula(case):
    """Bahdanau et al. (2015), appendix A.1.2, pair by pair."""
    layer, query, memory, mask = case
    context, weights = layer(query, memory, mask)
    allowed = torch.ones_like(weights, dtype=torch.bool) if mask is None else mask
    allowed = allowed.expand_as(weights)
    for row in range(query.size(0)):
        for i, q in enumerate(query[row]):
            exponentials = []
            for j, k in enumerate(memory[row]):
                hidden = torch.tanh(layer.w_query.weight @ q + layer.w_key.weight @ k)
                exponentials.append((layer.v.weight[0] @ hidden).exp() * allowed[row, i, j])
            total = sum(exponentials)
            w = torch.stack(exponentials) / (total if total > 0 else 1)
            close(weights[row, i], w)
            close(context[row, i], w @ memory[row])


@given(attending(), st.integers(0, 5))
def test_what_is_masked_has_no_influence(case, place):
    """The memory behind the mask may be changed at will; gradients stay finite."""
    layer, query, memory, mask = case
    place %= memory.size(1)
    hidden = torch.ones(memory.size(1), dtype=torch.bool)
    hidden[place] = False
    mask = hidden if mask is None else mask & hidden
    changed = memory.clone()
    changed[:, place] += 100
    context, _ = layer(query.requires_grad_(), memory, mask)
    close(layer(query, changed, mask)[0], context)
    context.sum().backward()
    assert query.grad is not None and query.grad.isfinite().all()


def test_additive_attention_refuses_a_mask_of_numbers():
    x = torch.zeros(1, 2, 3)
    with pytest.raises(TypeError, match="a mask must be boolean"):
        AdditiveAttention(3, 3, 3)(x, x, torch.ones(2, 2))


# The configuration


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"vocab_size": 0}, "vocab_size must be a whole number of at least 1, not 0"),
        ({"vocab_size": 9.0}, "vocab_size must be a whole number"),
        ({"d_model": True}, "d_model must be a whole number"),
        ({"d_model": "8"}, "d_model must be a whole number of at least 1, not '8'"),
        ({"dropout": 1.0}, "dropout must be at least 0 and below 1, not 1.0"),
        ({"dropout": -0.1}, "dropout must be at least 0 and below 1, not -0.1"),
    ],
)
def test_a_configuration_out_of_range(options, message):
    with fresh_import():  # without the checker of annotations, which would come first
        from transformer_lit.recurrent import RecurrentConfig

        with pytest.raises(ValueError, match=message):
            RecurrentConfig(**({"vocab_size": 9} | options))


# The translator


@st.composite
def translators(draw: st.DrawFn):
    """Draw a small model in double precision, with attention or without, and padded ids."""
    seed, v = draw(seeds), draw(st.integers(8, 12))
    config = RecurrentConfig(v, d_model=draw(sizes), dropout=0.0, attention=draw(st.booleans()))
    model = randomise(Seq2Seq(config), seed, torch.float64).eval()
    b, s, t = (draw(sizes) for _ in range(3))
    src = padded_ids(seed, b, s, v)
    tgt = padded_ids(seed + 2, b, t, v)
    tgt[:, 0] = BOS
    return model, src, tgt


def real(ids: Tensor) -> int:
    """Return the number of tokens that are not padding."""
    return int((ids != PAD).sum())


@given(translators())
def test_the_encoder_reads_each_sentence_alone_in_both_directions(case):
    """As our own LSTM does, without a batch and without padding."""
    model, src, _ = case
    d = model.config.d_model
    ahead, back = LSTM(d, d).double(), LSTM(d, d).double()
    copy_weights(ahead, model.encoder)
    copy_weights(back, model.encoder, "_l0_reverse")
    memory, mask = model.encode(src)
    for row, ids in enumerate(src):
        x = model.src_embedding(ids[None, : real(ids)])
        there, (there_last, _) = ahead(x)
        again, (back_last, _) = back(x.flip(1))
        if model.attention is None:
            close(memory[row], torch.cat([there_last, back_last], dim=-1))
            assert mask[row].item() is True
        else:
            expected = torch.cat([there, again.flip(1)], dim=-1)
            close(memory[row, : real(ids)], expected[0])
            assert torch.equal(mask[row, 0], ids != PAD)


@given(translators())
def test_forward_is_the_formula(case):
    """Sentence by sentence and step by step, without a batch, a mask or a cache."""
    model, src, tgt = case
    d = model.config.d_model
    logits = model(src, tgt)
    for row, ids in enumerate(src):
        memory, _ = model.encode(ids[None, : real(ids)])
        s = torch.tanh(model.first_state(memory[0, 0, d:]))
        cell = torch.zeros_like(s)
        for i, token in enumerate(tgt[row]):
            z = (
                memory[0, 0]
                if model.attention is None
                else model.attention(s[None, None], memory)[0][0, 0]
            )
            read = torch.cat([model.tgt_embedding(token), z])
            s, cell = (x[0] for x in model.decoder(read[None], (s[None], cell[None])))
            close(logits[row, i], model.output(torch.cat([s, z])))


@given(translators())
def test_a_batch_mate_changes_nothing(case):
    """F10: nor does the padding that a longer one brings, nor more of it."""
    model, src, tgt = case
    logits = model(src, tgt)
    close(model(nn.functional.pad(src, (0, 2), value=PAD), tgt), logits)
    for row, ids in enumerate(src):
        close(model(ids[None, : real(ids)], tgt[None, row])[0], logits[row])


@given(translators(), st.integers(0, 5))
def test_no_target_is_read_before_its_time(case, place):
    """F17: a token changes the logits at its place and after, and none before."""
    model, src, tgt = case
    place %= tgt.size(1)
    changed = tgt.clone()
    changed[:, place] = 3 + (tgt[:, place] == 3)
    before, after = model(src, tgt), model(src, changed)
    close(after[:, :place], before[:, :place])
    assert not torch.allclose(after[:, place], before[:, place], atol=1e-12)


@given(translators())
def test_step_by_step_equals_teacher_forced(case):
    """Also when rows are chosen on the way, as a search does."""
    model, src, tgt = case
    memory, mask = model.encode(src)
    cache = model.new_cache()
    rows = torch.arange(len(src)).flip(0)
    expected = model(src, tgt)
    for i in range(tgt.size(1)):
        close(model.decode(tgt[:, i : i + 1], memory, mask, cache)[:, 0], expected[:, i])
        cache.select(rows)
        memory, mask, tgt, expected = (x[rows] for x in (memory, mask, tgt, expected))


@given(translators(), st.integers(1, 3))
def test_targets_may_share_a_source(case, each):
    """It equals a copy of the source for each, also where a sentence leaves between two steps."""
    model, src, tgt = case
    tgt = tgt.repeat_interleave(each, dim=0)
    tgt = torch.cat([tgt, 3 + torch.arange(len(tgt))[:, None] % 2], dim=1).roll(1, dims=1)
    expected = model(src.repeat_interleave(each, dim=0), tgt)
    memory, mask = model.encode(src)
    close(model.decode(tgt, memory, mask), expected)
    cache = model.new_cache()
    model.decode(tgt[:, :1], memory, mask, cache)
    stay = torch.arange(len(src)).flip(0)[: max(1, len(src) - 1)]
    rows = (each * stay[:, None] + torch.arange(each).flip(0)).flatten()
    cache.select(rows, stay)
    step = model.decode(tgt[rows, 1:], memory[stay], mask[stay], cache)
    close(step, expected[rows, 1:])


def test_a_cache_keeps_the_rows_that_are_chosen():
    cache = RecurrentCache()
    cache.select(torch.tensor([0]))  # an empty one has none
    cache.tensors = torch.tensor([[1.0], [2.0], [3.0]]), torch.tensor([[4.0], [5.0], [6.0]])
    cache.select(torch.tensor([2, 0, 0]))
    assert [x.flatten().tolist() for x in cache.tensors] == [[3, 1, 1], [6, 4, 4]]


@given(translators())
def test_alignments_are_shares_of_the_source(case):
    """Each row adds up to 1, and nothing lies on padding."""
    model, src, tgt = case
    if model.attention is None:
        with pytest.raises(ValueError, match="attention=False"):
            model.align(src, tgt)
        return
    weights = model.align(src, tgt)
    assert weights.shape == (*tgt.shape, src.size(1))
    close(weights.sum(dim=-1), torch.ones_like(weights[..., 0]))
    assert (weights.mT[src == PAD] == 0).all()


def alone(model: Seq2Seq, ids: Tensor, max_len: int) -> list[int]:
    """Return the likeliest tokens of one sentence, read anew from the start at each step."""
    written: list[int] = []
    while len(written) < max_len:
        logits = model(ids[None], torch.tensor([[BOS, *written]]))[0, -1]
        logits[[PAD, BOS]] = -torch.inf
        token = int(logits.argmax())
        if token == EOS:
            break
        written.append(token)
    return written


def test_greedy_search_takes_the_likeliest_and_stops():
    """No batch-mate matters; PAD and BOS are never said; nothing follows EOS."""
    lengths = set()
    for seed in range(12):
        config = RecurrentConfig(12, d_model=6, attention=seed % 2 == 0)
        model = randomise(Seq2Seq(config), seed, torch.float64).eval()
        with torch.inference_mode():  # so that some end, and some would say what they must not
            for parameter in model.parameters():
                parameter.mul_(5)
            model.output.bias[[PAD, BOS]] += 1.0
            model.output.bias[EOS] += seed // 2 % 4
            src = padded_ids(seed, 6, 5, 12)
            found = [h.ids for h in greedy_search(model, src, 8)]
            assert found == [alone(model, ids[: real(ids)], 8) for ids in src]
        lengths |= {len(ids) for ids in found}
    assert len(lengths) > 3 and max(lengths) == 8


def test_dropout_is_for_training_only():
    """F31: on the embeddings, and on what the output reads."""
    torch.manual_seed(0)
    model = Seq2Seq(RecurrentConfig(9, d_model=16, dropout=0.5))
    src, tgt = torch.tensor([[5, 6, EOS]]), torch.tensor([[BOS, 7]])
    assert not torch.equal(model.encode(src)[0], model.encode(src)[0])
    with torch.no_grad():  # nothing is left of the embeddings to be dropped
        model.src_embedding.weight.zero_()
        model.tgt_embedding.weight.zero_()
    assert not torch.equal(model(src, tgt), model(src, tgt))
    model = Seq2Seq(RecurrentConfig(9, d_model=16, dropout=0.5)).eval()
    assert torch.equal(model(src, tgt), model(src, tgt))


def test_forget_gates_begin_open():
    model = Seq2Seq(RecurrentConfig(9, d_model=4))
    for name, parameter in model.named_parameters():
        if "bias_" in name:  # two for each gate, which add up to 1
            assert (parameter[4:8] == 0.5).all(), name
            assert (parameter[:4] != 0.5).all() and (parameter[8:] != 0.5).all(), name


def test_a_row_of_padding_alone_stays_finite():
    """No word to read: nothing sensible comes out, but nothing spreads either."""
    src, tgt = torch.tensor([[PAD, PAD], [5, EOS]]), torch.tensor([[BOS, 4]] * 2)
    for attention in (True, False):
        model = Seq2Seq(RecurrentConfig(9, d_model=4, dropout=0.0, attention=attention))
        logits = model(src, tgt)
        logits.sum().backward()
        assert logits.isfinite().all()
        assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)


def test_the_shared_tools_work_with_it():
    """`Trainer`, greedy and beam search ask of a model no more than this one offers."""
    for attention in (True, False):
        torch.manual_seed(0)
        batches = TokenBatches(date_pairs(20), Tokenizer.train([], 260), max_tokens=150)
        model = Seq2Seq(RecurrentConfig(260, d_model=16, dropout=0.0, attention=attention))
        config = TrainingConfig(steps=40, warmup=20, factor=0.5, clip=1.0, log_every=10)
        log = Trainer(model, batches, config).train(progress=False)
        assert log[-1]["loss"] < 0.8 * log[0]["loss"]
        src = batches.make([0, 1, 2]).src
        greedy = [h.ids for h in greedy_search(model.eval(), src, 9)]
        assert greedy == [h[0].ids for h in beam_search(model, src, 1, max_len=9)]
        assert len(beam_search(model, src, 3, max_len=9, n_best=2)[0]) == 2


def test_a_configuration_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        RecurrentConfig(9).d_model = 3


def test_attention_is_there_unless_it_is_left_out():
    """With it, a memory of all states and weights over them; without it, one vector."""
    src, tgt = torch.tensor([[5, 6, 7, EOS], [8, EOS, PAD, PAD]]), torch.tensor([[BOS, 5]] * 2)
    model = Seq2Seq(RecurrentConfig(9, d_model=4)).eval()
    memory, mask = model.encode(src)
    assert memory.shape == (2, 4, 8) and mask.tolist() == [
        [[True] * 4],
        [[True, True, False, False]],
    ]
    weights = model.align(src, tgt)
    assert weights.shape == (2, 2, 4) and (weights[1, :, 2:] == 0).all()
    close(weights.sum(-1), torch.ones(2, 2))
    first = torch.tanh(model.first_state(memory[:, 0, 4:]))[:, None]
    close(weights[:, :1], model.attention(first, memory, mask)[1])
    names = {name for name, _ in model.attention.named_parameters()}
    assert names == {"w_query.weight", "w_key.weight", "v.weight"}, "the formula has no biases"

    plain = Seq2Seq(RecurrentConfig(9, d_model=4, attention=False)).eval()
    memory, mask = plain.encode(src)
    assert plain.attention is None and memory.shape == (2, 1, 8) and mask.shape == (2, 1, 1)
    with pytest.raises(ValueError, match="attention=False"):
        plain.align(src, tgt)


def test_keys_that_are_known_are_not_computed_anew():
    layer = AdditiveAttention(3, 5, 4)
    query, memory, key = (random_tensor(n, 2, n, w) for n, w in ((3, 3), (6, 5), (6, 4)))
    context, weights = layer(query, memory, key=key)
    hidden = torch.tanh(layer.w_query(query)[:, :, None] + key[:, None])
    close(weights, layer.v(hidden).squeeze(-1).softmax(-1))
    close(context, weights @ memory)


def test_forget_gates_alone_begin_open():
    torch.manual_seed(0)
    model = Seq2Seq(RecurrentConfig(9, d_model=4))
    for name, parameter in model.named_parameters():
        begun = parameter.flatten() == 0.5
        if ".bias_" in name:
            assert begun.nonzero().flatten().tolist() == [4, 5, 6, 7], name
        else:
            assert not begun.any(), name


# Kept in a folder


recurrent_configs = st.builds(
    RecurrentConfig,
    st.integers(4, 30),
    st.integers(1, 6),
    st.sampled_from([0, 0.0, 0.3]),
    st.booleans(),
)


@given(recurrent_configs)
def test_a_configuration_is_read_as_written(config):
    """And says that it is no Transformer's."""
    text = config.to_json()
    assert json.loads(text).get("kind") == "recurrent"
    assert RecurrentConfig.from_json(text) == config
    with pytest.raises(ValueError, match="kind 'recurrent'"):
        TransformerConfig.from_json(text)


def test_kinds_do_not_mix():
    """A configuration of one kind is none of the other, though its names would fit."""
    with pytest.raises(ValueError, match="kind 'recurrent', not ''"):
        TransformerConfig.from_json('{"kind": "recurrent", "vocab_size": 9, "d_model": 8}')
    with pytest.raises(ValueError, match="kind '', not 'recurrent'"):
        RecurrentConfig.from_json('{"vocab_size": 9, "d_model": 8}')


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"kind": "other"}, "kind 'other'"),
        ({"kind": ["recurrent"]}, "kind"),
        ({"d_model": 2.0}, "d_model"),
        ({"d_model": True}, "d_model"),
        ({"dropout": "0.1"}, "dropout"),
        ({"dropout": math.nan}, "dropout"),
        ({"attention": "no"}, "attention"),
        ({"attention": 1}, "attention"),
        ({"n_heads": 1}, "unknown: n_heads"),
    ],
)
def test_a_configuration_that_does_not_fit_is_refused(change, says):
    with fresh_import():
        from transformer_lit.recurrent import RecurrentConfig

        values = json.loads(RecurrentConfig(9, d_model=2).to_json()) | change
        with pytest.raises(ValueError, match=says):
            RecurrentConfig.from_json(json.dumps(values))


@settings(max_examples=10)
@given(recurrent_configs, seeds)
def test_a_loaded_recurrent_model_is_the_saved_one(tmp_path_factory, config, seed):
    """To the last bit, in evaluation mode."""
    folder = tmp_path_factory.mktemp("model")
    model = randomise(Seq2Seq(config), seed)
    model.save(folder)
    loaded = Seq2Seq.load(folder)
    assert loaded.config == config and not loaded.training
    for one, other in zip(model.parameters(), loaded.parameters(), strict=True):
        assert one.equal(other)


def test_weights_that_do_not_fit_are_refused_before_a_model_is_built(tmp_path, monkeypatch):
    """Which might not fit into memory."""
    Seq2Seq(RecurrentConfig(9, d_model=2)).save(tmp_path)
    saved = json.loads((tmp_path / "config.json").read_text())

    def never(*given):
        pytest.fail("it was built")

    monkeypatch.setattr(Seq2Seq, "__init__", never)
    for change in ({"d_model": 10**9}, {"vocab_size": 10**12}, {"d_model": 3}):
        (tmp_path / "config.json").write_text(json.dumps(saved | change))
        with pytest.raises(ValueError, match="src_embedding.weight is .* and should be"):
            Seq2Seq.load(tmp_path)


def test_attention_that_was_left_out_is_missed(tmp_path):
    Seq2Seq(RecurrentConfig(9, d_model=2, attention=False)).save(tmp_path)
    text = (tmp_path / "config.json").read_text()
    (tmp_path / "config.json").write_text(text.replace("false", "true"))
    with pytest.raises(ValueError, match="attention.*is missing"):
        Seq2Seq.load(tmp_path)


def test_only_a_transformer_is_sharded():
    engine = Accelerator("cpu", "float32")
    engine.sharded = True
    with pytest.raises(ValueError, match="not a Seq2Seq"):
        engine.prepare(Seq2Seq(RecurrentConfig(9, d_model=2)))
