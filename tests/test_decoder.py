"""The decoder: equal to PyTorch's, blind to the future, and the same one step at a time."""

from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from oracles import copy_weights, future, options
from oracles import decoder as pytorch_decoder
from support import (
    close,
    configs,
    dtypes,
    flow,
    padded_ids,
    random_tensor,
    seeds,
    sizes,
    stack,
)
from torch import nn

from transformer_lit.attention import causal_mask, padding_mask
from transformer_lit.decoder import Decoder, DecoderCache, decoder_mask

pytorch_like = configs(gated=False, bias=True)
build = partial(stack, Decoder)


def inputs(config, seed, b, t, s, dtype=torch.float32):
    """Return target, memory, and the ids that tell their padding."""
    x, memory = (
        random_tensor(seed + i, b, n, config.d_model, dtype=dtype) for i, n in enumerate((t, s))
    )
    return x, memory, padded_ids(seed, b, t, vocab_size=9), padded_ids(seed + 5, b, s, vocab_size=9)


def their_masks(tgt, src) -> dict:
    """Return the keywords with which PyTorch's decoder takes its masks."""
    return {
        "tgt_mask": future(tgt.size(1)),
        "tgt_key_padding_mask": tgt == 0,
        "memory_key_padding_mask": src == 0,
    }


def test_padding_is_hidden_as_a_key_only():
    """F08: the rows of padding stay as they are."""
    mask = decoder_mask(torch.tensor([[5, 9, 0]]))
    assert mask.int().tolist() == [[[[1, 0, 0], [1, 1, 0], [1, 1, 0]]]]


@given(seeds, sizes, sizes)
def test_decoder_mask_joins_both_masks(seed, b, t):
    """F08: no query is left with nothing."""
    ids = padded_ids(seed, b, t, vocab_size=9)
    mask = decoder_mask(ids)
    assert mask.equal(padding_mask(ids) & causal_mask(t))
    assert mask.any(-1).all()


@given(pytorch_like, seeds, dtypes, sizes, sizes, sizes, st.booleans())
def test_layer_equals_pytorch(config, seed, dtype, b, t, s, training):
    """F10, F22: in both orders of the norm, each attention with its own mask, in both modes."""
    layer = build(config, seed, dtype).layers[0].train(training)
    theirs = copy_weights(layer, nn.TransformerDecoderLayer(**options(config)))
    x, memory, tgt, src = inputs(config, seed, b, t, s, dtype)
    close(
        layer(x, memory, decoder_mask(tgt), padding_mask(src)),
        theirs(x, memory, **their_masks(tgt, src)),
    )


@given(pytorch_like, seeds, dtypes, sizes, sizes, sizes, st.booleans())
def test_stack_equals_pytorch(config, seed, dtype, b, t, s, training):
    """F22: the causal mask holds without being asked for."""
    decoder = build(config, seed, dtype).train(training)
    theirs = copy_weights(decoder, pytorch_decoder(config))
    x, memory, tgt, src = inputs(config, seed, b, t, s, dtype)
    close(
        decoder(x, memory, padding_mask(tgt), padding_mask(src)),
        theirs(x, memory, **their_masks(tgt, src)),
    )


@given(configs(), seeds, sizes, sizes, st.booleans())
def test_the_future_has_no_influence(config, seed, t, s, training):
    """F17: neither the value of any later position nor that there is one, in both modes."""
    decoder = build(config, seed).train(training)
    x, memory, *_ = inputs(config, seed, 2, t + 1, s)
    output = decoder(x, memory)
    for j in range(1, t + 1):
        changed = x.clone()
        changed[:, j] = 100 * random_tensor(seed + j, 2, config.d_model)
        close(decoder(changed, memory)[:, :j], output[:, :j])
        close(decoder(x[:, :j], memory), output[:, :j])


@given(configs(d_model=12), seeds, st.booleans())
def test_what_flows_is_the_mask(config, seed, training):
    """F17: each place depends on all places up to itself, and on no other: a test that can fail."""
    decoder = build(config, seed, torch.float64).train(training)
    x, memory, tgt, _ = inputs(config, seed, 2, 5, 3, torch.float64)
    for mask, expected in (
        (None, causal_mask(5).expand(2, 5, 5)),
        (padding_mask(tgt), decoder_mask(tgt)[:, 0]),
    ):
        moves = flow(lambda x, mask=mask: decoder(x, memory, mask), x)
        # through its residual a place of padding, masked as a key, still depends on itself
        assert moves[0, :, 0].equal(expected[0] | torch.eye(5, dtype=torch.bool))
        assert moves[1, :, 1].equal(expected[1] | torch.eye(5, dtype=torch.bool))
        assert not moves[0, :, 1].any() and not moves[1, :, 0].any()


@given(configs(d_model=12), seeds)
def test_what_flows_across_is_the_source(config, seed):
    """F10: each place depends on all words of its own source, and not on their padding."""
    decoder = build(config, seed, torch.float64)
    x, memory, _, src = inputs(config, seed, 2, 3, 4, torch.float64)
    moves = flow(lambda m: decoder(x, m, memory_mask=padding_mask(src)), memory)
    for b in range(2):
        assert moves[b, :, b].equal((src[b] != 0).expand(3, 4))
        assert not moves[b, :, 1 - b].any()


@given(configs(n_layers=2), seeds, sizes, sizes)
def test_keys_and_values_come_from_the_memory(config, seed, t, s):
    """Of cross-attention, in every layer; its queries come from the decoder."""
    decoder = build(config, seed)
    x, memory, *_ = inputs(config, seed, 2, t, s)
    d = config.d_model
    for target in (x, -x):  # whatever the target is
        cache = DecoderCache(2)
        decoder(target, memory, cache=cache)
        for layer, kept in zip(decoder.layers, cache.layers, strict=True):
            projected = layer.cross_attention.in_proj(memory)
            for i, part in enumerate((kept.cross_attention.key, kept.cross_attention.value), 1):
                close(part.transpose(1, 2).flatten(2), projected[..., i * d : (i + 1) * d])
    assert not decoder(x, memory).equal(decoder(-x, memory))


@given(configs(), seeds, sizes, sizes, st.lists(st.integers(1, 3), min_size=1, max_size=5))
def test_in_pieces_equals_at_once(config, seed, b, s, pieces):
    """With the cache, whether one position at a time or several, with padding and without.

    In double precision: a norm over two numbers that are nearly equal makes much of rounding.
    """
    decoder = build(config, seed).double()
    x, memory, tgt, src = inputs(config, seed, b, sum(pieces), s, torch.float64)
    source = padding_mask(src)
    for mask in (None, padding_mask(tgt)):
        cache, parts = DecoderCache(config.n_layers), []
        for part in x.split(pieces, dim=1):
            known = None if mask is None else mask[..., : cache.length + part.size(1)]
            parts.append(decoder(part, memory, known, source, cache))
            assert cache.length == sum(p.size(1) for p in parts)
        close(torch.cat(parts, dim=1), decoder(x, memory, mask, source))


def test_a_refused_step_leaves_the_cache_as_it_was():
    """In no layer is anything kept of it, so that the step can be made once more."""
    decoder, cache = Decoder(2, 4, 2, 8).eval(), DecoderCache(2)
    x, memory = random_tensor(0, 1, 3, 4), random_tensor(1, 1, 5, 4)
    mask = torch.tensor([True, True, True, True, False])
    with torch.no_grad():
        decoder(x[:, :2], memory, memory_mask=mask, cache=cache)
        for wrong, hidden in ((memory, mask[:3]), (memory[:, :3], mask[:3])):
            with pytest.raises(ValueError, match="does not fit|this one has 3"):
                decoder(x[:, 2:], wrong, memory_mask=hidden, cache=cache)
        assert [layer.self_attention.length for layer in cache.layers] == [2, 2]
        last = decoder(x[:, 2:], memory, memory_mask=mask, cache=cache)
        close(last, decoder(x, memory, memory_mask=mask)[:, 2:])


def test_a_cache_of_another_depth_is_refused():
    """The error says how to make the right one."""
    decoder, x = Decoder(2, 8, 2, 16), random_tensor(0, 1, 2, 8)
    for n in (1, 3):
        with pytest.raises(ValueError, match=rf"for {n} layers.*DecoderCache\(2\)"):
            decoder(x, x, cache=DecoderCache(n))


@given(configs(), seeds, st.lists(st.integers(0, 2), min_size=1, max_size=5), sizes, sizes)
def test_rows_of_the_cache_can_be_selected(config, seed, rows, t, s):
    """As beam search does: go on with some rows, in another order, some of them twice."""
    decoder = build(config, seed)
    x, memory, *_ = inputs(config, seed, 3, t + 1, s)
    cache = DecoderCache(config.n_layers)
    decoder(x[:, :t], memory, cache=cache)
    cache.select(torch.tensor(rows))
    close(decoder(x[rows, t:], memory[rows], cache=cache), decoder(x[rows], memory[rows])[:, t:])


@given(configs(), seeds, st.integers(1, 3), st.integers(1, 3), sizes, sizes)
def test_targets_may_share_a_source(config, seed, b, each, t, s):
    """It equals a copy of the source for each, also where sentences leave between two steps."""
    decoder = build(config, seed)
    x, memory, _, src = inputs(config, seed, b, t + 1, s)
    x = random_tensor(seed + 7, b * each, t + 1, config.d_model)
    mask = padding_mask(src)
    copies = (y.repeat_interleave(each, dim=0) for y in (memory, mask))
    expected = decoder(x, next(copies), None, next(copies))
    close(decoder(x, memory, None, mask), expected)
    cache = DecoderCache(config.n_layers)
    decoder(x[:, :t], memory, None, mask, cache)
    stay = torch.arange(b).flip(0)[: max(1, b - 1)]
    rows = (each * stay[:, None] + torch.arange(each).flip(0)).flatten()
    cache.select(rows, stay)
    step = decoder(x[rows, t:], memory[stay], None, mask[stay], cache)
    close(step, expected[rows, t:])


def test_targets_that_no_source_is_left_for_are_refused():
    """Else they would be cut anew, across sentences."""
    decoder = Decoder(1, 8, 2, 16)
    for targets, sources in ((3, 2), (2, 4), (2, 0)):
        with pytest.raises(ValueError, match=f"{targets} targets.*{sources} sources"):
            decoder(torch.zeros(targets, 2, 8), torch.zeros(sources, 2, 8))
    assert decoder(torch.zeros(0, 2, 8), torch.zeros(0, 2, 8)).shape == (0, 2, 8)


@given(configs(), seeds, sizes, sizes, sizes)
def test_padding_has_no_influence(config, seed, t, s, more):
    """F10: of the source as of the target."""
    decoder = build(config, seed)
    x, memory, *_ = inputs(config, seed, 2, t + more, s + more)
    masks = [torch.arange(n + more)[None] < n for n in (t, s)]
    alone = decoder(x[:, :t], memory[:, :s])
    close(decoder(x, memory, *masks)[:, :t], alone)
    x[:, t:], memory[:, s:] = 1e3 * x[:, t:], 1e3 * memory[:, s:]
    close(decoder(x, memory, *masks)[:, :t], alone)


@given(configs(), seeds, sizes, sizes)
def test_neighbours_have_no_influence(config, seed, t, s):
    """F10: each sentence of a batch, alone, without its padding and its source's."""
    decoder = build(config, seed)
    x, memory, tgt, src = inputs(config, seed, 3, t, s)
    output = decoder(x, memory, padding_mask(tgt), padding_mask(src))
    for row in range(3):
        words, source = tgt[row] != 0, src[row] != 0
        alone = decoder(x[row, words][None], memory[row, source][None])
        close(output[row, words][None], alone)


def test_layers_share_nothing():
    """F23: different objects, different values, twice the parameters."""
    one, two = (Decoder(n, 8, 2, 16) for n in (1, 2))
    assert sum(p.numel() for p in two.parameters()) == 2 * sum(p.numel() for p in one.parameters())
    first, second = (dict(layer.named_parameters()) for layer in two.layers)
    for name in first:
        assert first[name] is not second[name]
        if "norm" not in name:
            assert not first[name].equal(second[name]), f"{name} starts equal"
