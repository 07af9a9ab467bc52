"""Multi-head attention: equal to PyTorch's; the cache equal to the full pass."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from oracles import attention_mask, copy_weights
from support import (
    TOLERANCE,
    close,
    masks_kept,
    random_mask,
    random_tensor,
    randomise,
    seeds,
    sizes,
)
from torch import nn

from transformer_lit.attention import causal_mask
from transformer_lit.multi_head import (
    KeyValueCache,
    MultiHeadAttention,
    merge_heads,
    record_attention,
    split_heads,
)


@st.composite
def layers(draw: st.DrawFn, dtypes=(torch.float32,)) -> MultiHeadAttention:
    """Draw a layer with random weights, in evaluation mode."""
    n_heads = draw(st.integers(1, 3))
    layer = MultiHeadAttention(n_heads * draw(st.integers(1, 4)), n_heads, bias=draw(st.booleans()))
    return randomise(layer, draw(seeds), draw(st.sampled_from(dtypes))).eval()


def test_heads_are_slices_of_each_vector():
    """F18: a view without the transpose would give head 0 the whole first position."""
    heads = split_heads(torch.arange(8.0).view(1, 2, 4), 2)
    assert heads[0, 0].tolist() == [[0, 1], [4, 5]]
    assert heads[0, 1].tolist() == [[2, 3], [6, 7]]


@given(seeds, sizes, sizes, st.integers(1, 4), st.integers(1, 4))
def test_merging_reverses_splitting(seed, b, t, n_heads, k):
    """F18: and each head is a slice of the width."""
    x = random_tensor(seed, b, t, n_heads * k)
    heads = split_heads(x, n_heads)
    for i in range(n_heads):
        assert heads[:, i].equal(x[:, :, i * k : (i + 1) * k])
    assert merge_heads(heads).equal(x)


@given(layers(tuple(TOLERANCE)), seeds, sizes, sizes, sizes, masks_kept, st.booleans())
def test_equals_pytorch(layer, seed, b, t, s, kept, self_attention):
    """Output, weights and gradients, in self- and cross-attention, under any mask (F01, F18)."""
    dtype, d = layer.in_proj.weight.dtype, layer.d_model
    theirs = copy_weights(
        layer,
        nn.MultiheadAttention(
            d, layer.n_heads, bias=layer.in_proj.bias is not None, batch_first=True
        ),
    )
    x = random_tensor(seed, b, t, d, dtype=dtype)
    memory = x if self_attention else random_tensor(seed + 1, b, s, d, dtype=dtype)
    mask = random_mask(seed, b, 1, t, memory.size(1), kept=kept, first=True)
    expected, weights = theirs(
        x,
        memory,
        memory,
        attn_mask=attention_mask(mask, layer.n_heads),
        average_attn_weights=False,
    )
    output = layer(x, None if self_attention else memory, mask)
    close(output, expected)
    with record_attention(layer):
        close(layer(x, None if self_attention else memory, mask), expected)
    close(layer.weights, weights)
    output.square().sum().backward()
    expected.square().sum().backward()
    close(layer.in_proj.weight.grad, theirs.in_proj_weight.grad)
    close(layer.out_proj.weight.grad, theirs.out_proj.weight.grad)


@given(layers(), seeds, sizes, sizes, st.lists(st.integers(1, 3), min_size=1, max_size=5))
def test_cached_self_attention_equals_the_full_pass(layer, seed, b, first, pieces):
    """The positions come in pieces of any length, and the buffers double when full."""
    pieces = [first, *pieces]
    x = random_tensor(seed, b, sum(pieces), layer.d_model)
    cache = KeyValueCache()
    parts = [layer(part, causal=True, cache=cache) for part in x.split(pieces, dim=1)]
    close(torch.cat(parts, dim=1), layer(x, causal=True))
    assert cache.length == x.size(1)


@given(layers(), seeds, sizes, sizes)
def test_cached_cross_attention_reads_the_memory_once(layer, seed, t, s):
    """The keys and values of the first call are used from then on."""
    x, memory = (random_tensor(seed + i, 2, n, layer.d_model) for i, n in enumerate((t, s)))
    cache = KeyValueCache()
    for _ in range(2):
        close(layer(x, memory, cache=cache), layer(x, memory))
        assert cache.length == s
    close(layer(x, torch.zeros_like(memory), cache=cache), layer(x, memory))


@given(seeds, st.lists(st.integers(1, 3), min_size=1, max_size=6), st.data())
def test_the_cache_holds_what_was_appended(seed, pieces, data):
    """Also after rows were selected, repeated or brought into another order."""
    cache, rows = KeyValueCache(), 3
    key, value = torch.empty(rows, 2, 0, 4), torch.empty(rows, 2, 0, 4)
    for i, t in enumerate(pieces):
        new_key, new_value = (random_tensor(seed + 2 * i + j, rows, 2, t, 4) for j in range(2))
        cache.append(new_key, new_value)
        key, value = torch.cat([key, new_key], dim=2), torch.cat([value, new_value], dim=2)
        if data.draw(st.booleans()):
            chosen = data.draw(st.lists(st.integers(0, rows - 1), min_size=1, max_size=4))
            cache.select(torch.tensor(chosen))
            key, value, rows = key[chosen], value[chosen], len(chosen)
        assert cache.length == key.size(2)
        assert cache.key.equal(key) and cache.value.equal(value)


@given(layers(), seeds, sizes, st.booleans())
def test_recording_changes_nothing(layer, seed, t, causal):
    """The weights are kept while it is asked for, with the causal mask in them."""
    x = random_tensor(seed, 2, t, layer.d_model)
    with record_attention(layer) as recorded:
        recorded_output = layer(x, causal=causal)
    assert list(recorded.values()) == [layer]
    close(recorded_output, layer(x, causal=causal))
    close(layer.weights.sum(-1), torch.ones(2, layer.n_heads, t))
    if causal:
        assert (layer.weights[:, :, ~causal_mask(t)] == 0).all()


def test_recording_ends_with_an_error_too():
    """The switch does not stay on."""
    layer = MultiHeadAttention(4, 2)
    with pytest.raises(KeyError), record_attention(layer):
        raise KeyError
    assert not layer.record


def test_attention_dropout_is_off_in_evaluation():
    """F31: p = .9, twice, equal; while training they differ."""
    layer = MultiHeadAttention(8, 2, dropout=0.9)
    x = random_tensor(0, 2, 5, 8)
    torch.manual_seed(0)
    assert not layer(x).equal(layer(x))
    layer.eval()
    assert layer(x).equal(layer(x))
    without = MultiHeadAttention(8, 2)
    without.load_state_dict(layer.state_dict())
    close(layer(x), without(x))


@pytest.mark.parametrize(("d_model", "n_heads"), [(5, 2), (4, 8), (4, 0)])
def test_the_width_must_be_a_multiple_of_the_heads(d_model, n_heads):
    """The message names both."""
    with pytest.raises(ValueError, match=f"d_model={d_model}.*n_heads={n_heads}"):
        MultiHeadAttention(d_model, n_heads)


def test_a_float_mask_is_refused():
    """F02: on the fused path and while recording."""
    layer, x, mask = MultiHeadAttention(4, 2), torch.zeros(1, 2, 4), torch.ones(2, 2)
    with pytest.raises(TypeError, match="boolean"):
        layer(x, mask=mask)
    with record_attention(layer), pytest.raises(TypeError, match="boolean"):
        layer(x, mask=mask)


def test_the_cache_may_begin_with_nothing():
    """An empty first call must not leave the buffers unwritten."""
    cache, key = KeyValueCache(), random_tensor(0, 1, 1, 3, 2)
    cache.append(key[:, :, :0], key[:, :, :0])
    cache.append(key, -key)
    close(cache.key, key)
    close(cache.value, -key)
