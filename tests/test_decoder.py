"""The decoder: equal to PyTorch's, blind to the future, and the same one step at a time."""

from functools import partial

import torch
from hypothesis import given
from hypothesis import strategies as st
from oracles import copy_weights, future, options
from oracles import decoder as pytorch_decoder
from support import (
    close,
    configs,
    dtypes,
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


@given(configs(), seeds, sizes, sizes, sizes)
def test_the_future_has_no_influence(config, seed, t, more, s):
    """F17: neither the values of later positions nor that there are any."""
    decoder = build(config, seed)
    x, memory, *_ = inputs(config, seed, 2, t + more, s)
    changed = torch.cat([x[:, :t], -x[:, t:]], dim=1)
    close(decoder(changed, memory)[:, :t], decoder(x, memory)[:, :t])
    close(decoder(x[:, :t], memory), decoder(x, memory)[:, :t])


@given(configs(), seeds, sizes, sizes, st.lists(st.integers(1, 3), min_size=1, max_size=5))
def test_in_pieces_equals_at_once(config, seed, b, s, pieces):
    """With the cache, whether one position at a time or several."""
    decoder = build(config, seed)
    x, memory, _, src = inputs(config, seed, b, sum(pieces), s)
    cache = DecoderCache(config.n_layers)
    parts = []
    for part in x.split(pieces, dim=1):
        parts.append(decoder(part, memory, memory_mask=padding_mask(src), cache=cache))
        assert cache.length == sum(p.size(1) for p in parts)
    close(torch.cat(parts, dim=1), decoder(x, memory, memory_mask=padding_mask(src)))


@given(configs(), seeds, st.lists(st.integers(0, 2), min_size=1, max_size=5), sizes, sizes)
def test_rows_of_the_cache_can_be_selected(config, seed, rows, t, s):
    """As beam search does: go on with some rows, in another order, some of them twice."""
    decoder = build(config, seed)
    x, memory, *_ = inputs(config, seed, 3, t + 1, s)
    cache = DecoderCache(config.n_layers)
    decoder(x[:, :t], memory, cache=cache)
    cache.select(torch.tensor(rows))
    close(decoder(x[rows, t:], memory[rows], cache=cache), decoder(x[rows], memory[rows])[:, t:])


@given(configs(), seeds, sizes, sizes, sizes)
def test_padding_has_no_influence(config, seed, t, s, more):
    """F10: of the source as of the target."""
    decoder = build(config, seed)
    x, memory, *_ = inputs(config, seed, 2, t + more, s + more)
    masks = [torch.arange(n + more)[None] < n for n in (t, s)]
    padded = decoder(x, memory, *masks)
    close(padded[:, :t], decoder(x[:, :t], memory[:, :s]))


def test_layers_share_nothing():
    """F23: different objects, different values, twice the parameters."""
    one, two = (Decoder(n, 8, 2, 16) for n in (1, 2))
    assert sum(p.numel() for p in two.parameters()) == 2 * sum(p.numel() for p in one.parameters())
    first, second = (dict(layer.named_parameters()) for layer in two.layers)
    for name in first:
        assert first[name] is not second[name]
        if "norm" not in name:
            assert not first[name].equal(second[name]), f"{name} starts equal"
