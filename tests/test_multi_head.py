"""Multi-head attention: equal to PyTorch's; the cache equal to the full pass."""

from itertools import product

import pytest
import torch
from hypothesis import example, given
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
    x = random_tensor(seed, b, t, d, dtype=dtype).requires_grad_()
    memory = x if self_attention else random_tensor(seed + 1, b, s, d, dtype=dtype).requires_grad_()
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
    for ours, torchs in zip(
        torch.autograd.grad(output.square().sum(), [x, memory, *layer.parameters()]),
        torch.autograd.grad(expected.square().sum(), [x, memory, *theirs.parameters()]),
        strict=True,
    ):
        close(ours, torchs)


@given(seeds, sizes, sizes, sizes, st.integers(1, 3), st.integers(1, 4), st.booleans())
def test_loads_the_state_of_a_torch_module(seed, b, t, s, n_heads, k, bias):
    """From the other side: two names are changed, and nothing else."""
    d = n_heads * k
    theirs = randomise(nn.MultiheadAttention(d, n_heads, bias=bias, batch_first=True), seed)
    layer = MultiHeadAttention(d, n_heads, bias=bias)
    layer.load_state_dict(
        {name.replace("in_proj_", "in_proj."): w for name, w in theirs.state_dict().items()}
    )
    x, memory = random_tensor(seed + 1, b, t, d), random_tensor(seed + 2, b, s, d)
    expected, weights = theirs(x, memory, memory, average_attn_weights=False)
    with record_attention(layer):
        close(layer(x, memory), expected)
    close(layer.weights, weights)


@given(
    layers(), seeds, sizes, sizes, st.lists(st.integers(1, 3), min_size=1, max_size=5), masks_kept
)
def test_cached_self_attention_equals_the_full_pass(layer, seed, b, first, pieces, kept):
    """The positions come in pieces of any length, and the buffers double when full."""
    pieces = [first, *pieces]
    x = random_tensor(seed, b, sum(pieces), layer.d_model)
    mask = random_mask(seed, b, 1, 1, x.size(1), kept=kept)  # of padding
    cache, parts = KeyValueCache(), []
    for part in x.split(pieces, dim=1):
        end = cache.length + part.size(1)
        parts.append(layer(part, mask=mask[..., :end], causal=True, cache=cache))
    close(torch.cat(parts, dim=1), layer(x, mask=mask, causal=True))
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


def test_self_attention_calls_its_projections():
    """So that hooks, and what stands in a layer's place, take part, with a cache too."""
    layer, x, called = MultiHeadAttention(4, 2), torch.zeros(1, 3, 4), []
    layer.in_proj.register_forward_hook(lambda *_: called.append("in"))
    layer.out_proj = nn.Sequential(layer.out_proj)  # has no weight itself
    for cache in (None, KeyValueCache()):
        layer(x, cache=cache)
    assert called == ["in", "in"]


@given(layers(), seeds, sizes, sizes)
def test_what_is_put_in_place_of_a_projection(layer, seed, t, s):
    """It has no rows to cut, and gives the same, in self- and cross-attention."""
    x, memory = (random_tensor(seed + i, 2, n, layer.d_model) for i, n in enumerate((t, s)))
    expected = layer(x), layer(x, memory)
    layer.in_proj = nn.Sequential(layer.in_proj)
    close(layer(x), expected[0])
    close(layer(x, memory), expected[1])


@given(layers(), seeds, sizes, sizes, sizes)
def test_a_batch_mate_changes_nothing(layer, seed, t, s, longer):
    """F10: with the source's padding mask, a sentence is what it is alone."""
    x = random_tensor(seed, 2, t, layer.d_model)
    memory = random_tensor(seed + 1, 2, s + longer, layer.d_model)
    mask = (torch.arange(s + longer) < torch.tensor([[s], [s + longer]]))[:, None, None]
    close(layer(x, memory, mask)[:1], layer(x[:1], memory[:1, :s]))


@given(layers(), seeds, sizes, sizes, sizes, st.data())
def test_masks_stretch(layer, seed, b, t, s, data):
    """A mask of one, two or four axes, of full size or 1, is the same as when written out."""
    whole = (b, layer.n_heads, t, s)
    shape = tuple(data.draw(st.sampled_from([1, n])) for n in whole)
    shape = shape[4 - data.draw(st.sampled_from([1, 2, 4])) :]
    mask = random_mask(seed, *shape)
    x, memory = (random_tensor(seed + i, b, n, layer.d_model) for i, n in enumerate((t, s)))
    for record in (False, True):
        layer.record = record
        close(layer(x, memory, mask), layer(x, memory, mask.expand(whole)))


def test_a_mask_of_three_axes_is_refused():
    """With two sentences and two heads PyTorch would take one for the other."""
    layer, x = MultiHeadAttention(4, 2), torch.zeros(2, 3, 4)
    for layer.record, shape in product((False, True), [(2, 3, 3), (1, 1, 3), (2, 1, 3)]):
        with pytest.raises(ValueError, match=r"three axes.*mask\[:, None\].*mask\[None\]"):
            layer(x, mask=torch.ones(shape, dtype=torch.bool))


def test_a_mask_that_does_not_fit_is_refused():
    """While recording, one sentence with a mask for three would become three."""
    layer, x, memory = MultiHeadAttention(4, 2), torch.zeros(1, 1, 4), torch.zeros(1, 3, 4)
    shapes = [(3, 1, 1, 3), (1, 3, 1, 3), (1, 1, 2, 3), (1, 1, 1, 2), (2, 3), (4,), (), (1,) * 5]
    for layer.record, shape in product((True, False), shapes):
        with pytest.raises(ValueError, match="1 sentences, 2 heads, 1 queries and 3 keys"):
            layer(x, memory, torch.ones(shape, dtype=torch.bool))


def test_causal_attention_needs_a_key_for_each_query():
    """On the fused path and while recording."""
    layer, x = MultiHeadAttention(4, 2), torch.zeros(1, 5, 4)
    for layer.record in (False, True):
        with pytest.raises(ValueError, match="5 queries for 3 keys"):
            layer(x, x[:, :3], causal=True)


def test_other_widths_are_refused():
    """Of the input and of the memory; the message tells the one that fits."""
    layer, x = MultiHeadAttention(4, 2), torch.zeros(1, 2, 6)
    for arguments in ((x,), (x, x)):
        with pytest.raises(ValueError, match=r"x must .*d_model=4\), not \(1, 2, 6\)"):
            layer(*arguments)


def test_a_cache_of_another_source_is_refused():
    """By its length, or by the number of its sentences, as far as they tell."""
    layer, x, cache = MultiHeadAttention(4, 2), torch.zeros(3, 2, 4), KeyValueCache()
    layer(x[:1], torch.zeros(1, 5, 4), cache=cache)
    with pytest.raises(ValueError, match="memory of 5 positions, and this one has 6"):
        layer(x[:1], torch.zeros(1, 6, 4), cache=cache)
    with pytest.raises(ValueError, match="x has 3 sentences, and there are keys for 1"):
        layer(x, torch.zeros(3, 5, 4), cache=cache)


def test_a_refused_call_leaves_the_cache_as_it_was():
    """Whatever is wrong: the same call, put right, gives what it would have given at once."""
    layer, x = MultiHeadAttention(4, 2).eval(), random_tensor(0, 1, 3, 4)
    own, cross = KeyValueCache(), KeyValueCache()
    with torch.no_grad():
        layer(x[:, :2], causal=True, cache=own)
        for wrong, error in ((torch.ones(3), TypeError), (torch.ones(4).bool(), ValueError)):
            with pytest.raises(error):
                layer(x[:, 2:], mask=wrong, cache=own)
        assert own.length == 2
        close(layer(x[:, 2:], mask=torch.ones(3).bool(), cache=own), layer(x, causal=True)[:, 2:])
        with pytest.raises(ValueError, match="3 queries and 3 keys"):
            layer(x, x, torch.ones(2).bool(), cache=cross)
        assert cross.length == 0
        close(layer(x, x, cache=cross), layer(x, x))


def test_the_cache_refuses_what_it_would_stretch():
    """One sentence would be written into the rows of all three, and float64 be rounded."""
    cache, key = KeyValueCache(), torch.zeros(3, 2, 1, 4)
    cache.append(key, key)
    pairs = [(other, other) for other in (key[:1], key[:, :1], key[..., :1], key.double())]
    for new_key, new_value in [*pairs, (key, key.double())]:
        with pytest.raises(ValueError, match=r"\(3, 2, 4\) in torch.float32 .* of its own"):
            cache.append(new_key, new_value)
    assert cache.length == 1


@given(seeds, st.lists(st.integers(1, 3), min_size=1, max_size=6), st.data())
def test_the_cache_holds_what_was_appended(seed, pieces, data):
    """Also after rows were selected, repeated or brought into another order."""
    cache, rows = KeyValueCache(data.draw(st.integers(0, 12))), 3
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


@given(st.lists(st.integers(1, 5), min_size=1, max_size=30), st.integers(0, 60))
@example([4, 4], 8)  # just full
def test_the_buffer_doubles_when_full(pieces, asked):
    """It moves only when it has to, and so seldom that a position costs no more than itself."""
    cache, room, address = KeyValueCache(asked), max(pieces[0], asked), None
    for t in pieces:
        new = torch.zeros(1, 1, t, 1)
        cache.append(new, new)
        if cache.length > room:
            room = max(32, 2 * cache.length)
            assert cache.key.data_ptr() != address
        elif address is not None:
            assert cache.key.data_ptr() == address
        address = cache.key.data_ptr()
        assert cache.key.untyped_storage().nbytes() == 2 * room * new.element_size()


def test_an_empty_cache():
    """There is nothing to select or to read, and the first call decides on the batch."""
    cache, key = KeyValueCache(), random_tensor(0, 3, 2, 4, 5)
    cache.select(torch.tensor([1, 0]))
    assert cache.length == 0
    for name in ("key", "value"):
        with pytest.raises(ValueError, match="empty"):
            getattr(cache, name)
    cache.append(key, -key)
    assert cache.key.equal(key) and cache.value.equal(-key)


def test_the_cache_shares_nothing_with_what_it_is_given():
    """Neither does a later change reach it, nor does it keep more than keys and values alive."""
    cache, key = KeyValueCache(), torch.ones(1, 1, 2, 3)
    cache.append(key, key)
    key.zero_()
    assert cache.key.all() and cache.value.all()


@given(layers(), seeds, sizes, sizes)
def test_recording_follows_the_cache(layer, seed, first, t):
    """F14: with fewer queries than keys, they are the last positions."""
    x, cache = random_tensor(seed, 2, first + t, layer.d_model), KeyValueCache()
    with record_attention(layer):
        whole, weights = layer(x, causal=True), layer.weights
        layer(x[:, :first], causal=True, cache=cache)
        close(layer(x[:, first:], causal=True, cache=cache), whole[:, first:])
    close(layer.weights, weights[:, :, first:])


@given(layers(), seeds, sizes, st.booleans(), masks_kept)
def test_recording_changes_nothing(layer, seed, t, causal, kept):
    """The weights are kept while it is asked for, with both masks in them."""
    x = random_tensor(seed, 2, t, layer.d_model)
    mask = random_mask(seed, 2, 1, t, t, kept=kept, first=True)
    with record_attention(layer) as recorded:
        recorded_output = layer(x, mask=mask, causal=causal)
    assert list(recorded.values()) == [layer]
    close(recorded_output, layer(x, mask=mask, causal=causal))
    close(layer.weights.sum(-1), torch.ones(2, layer.n_heads, t))
    hidden = ~(mask & causal_mask(t)) if causal else ~mask
    assert (layer.weights[hidden.expand_as(layer.weights)] == 0).all()


def test_recording_ends_with_an_error_too():
    """The switch does not stay on."""
    layer = MultiHeadAttention(4, 2)
    with pytest.raises(KeyError), record_attention(layer):
        raise KeyError
    assert not layer.record


def test_recordings_may_be_nested():
    """The outer one goes on after the inner one."""
    layer = MultiHeadAttention(4, 2)
    with record_attention(layer):
        with record_attention(nn.Sequential(layer)):
            assert layer.record
        assert layer.record
    assert not layer.record


def test_attention_dropout_is_off_in_evaluation():
    """F31: p = .9, twice, equal; while training they differ, and the weights kept do not."""
    layer = MultiHeadAttention(8, 2, dropout=0.9)
    without = MultiHeadAttention(8, 2)
    without.load_state_dict(layer.state_dict())
    x = random_tensor(0, 2, 5, 8)
    torch.manual_seed(0)
    for layer.record in (False, True):
        layer.train()
        assert not layer(x).equal(layer(x))
        layer.eval()
        assert layer(x).equal(layer(x))
        close(layer(x), without(x))
    layer.train()
    layer(x)
    close(layer.weights.sum(dim=-1), torch.ones(2, 2, 5))


@pytest.mark.parametrize("dropout", [-0.1, 1.0, 2])
def test_dropout_must_be_a_probability_below_one(dropout):
    """The message gives the number."""
    with pytest.raises(ValueError, match=f"not {dropout}"):
        MultiHeadAttention(4, 2, dropout=dropout)


@pytest.mark.parametrize(("d_model", "n_heads"), [(5, 2), (4, 8), (4, 0), (0, 2), (-4, 2)])
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
