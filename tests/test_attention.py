"""Attention: equal to PyTorch's, under every mask, forward and backward."""

import inspect
from itertools import product

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from support import close, dtypes, masks_kept, random_mask, random_tensor, seeds, sizes
from torch import Tensor

from transformer_lit.attention import (
    AdditiveSimilarity,
    CosineSimilarity,
    attention,
    causal_mask,
    check_mask,
    cosine,
    dot,
    fused_attention,
    masked_softmax,
    padding_mask,
    scaled_dot,
)


@st.composite
def inputs(draw: st.DrawFn, dtypes=dtypes, sizes=sizes):
    """Draw query, key, value and mask; some queries may attend to nothing."""
    seed, dtype = draw(seeds), draw(dtypes)
    b, h, t, s, k, v = (draw(sizes) for _ in range(6))
    mask_shape = draw(st.sampled_from([(b, h, t, s), (b, 1, 1, s), (t, s), (b, 1, t, s)]))
    mask = random_mask(seed, *mask_shape, kept=draw(masks_kept))
    shapes = (b, h, t, k), (b, h, s, k), (b, h, s, v)
    tensors = [random_tensor(seed + i, *x, dtype=dtype) for i, x in enumerate(shapes)]
    return *(x.requires_grad_() for x in tensors), draw(st.sampled_from([mask, None]))


def plain(*args, **options) -> Tensor:
    """Return the output of `attention` without the weights."""
    return attention(*args, **options)[0]


BOTH = (plain, fused_attention)


def column(*numbers: float) -> Tensor:
    """Return values one wide."""
    return torch.tensor(numbers, dtype=torch.float32)[:, None]


def test_true_means_may_attend():
    """F01: with the polarity turned round the first query would get 5."""
    mask = torch.tensor([[True, False], [True, True]])
    zeros = torch.zeros(2, 1)
    for attend in BOTH:
        close(attend(zeros, zeros, column(1, 5), mask), [[1.0], [3.0]])


def test_a_mask_that_is_not_boolean_is_refused():
    """F02: a mask of 0 and 1 that is added to the scores would give 2.69."""
    query, key, value = torch.zeros(1, 1), torch.zeros(2, 1), column(0, 10)
    calls = [
        (check_mask, ()),
        (masked_softmax, (query @ key.mT,)),
        (attention, (query, key, value)),
        (fused_attention, (query, key, value)),
    ]
    for dtype, (function, args) in product((torch.float32, torch.int64, torch.uint8), calls):
        mask = torch.tensor([[1, 0]], dtype=dtype)
        with pytest.raises(TypeError, match="a mask must be boolean.*may attend"):
            function(*args, mask)


def test_a_query_that_may_attend_to_nothing_gets_zero():
    """F03: and gradients that are finite."""
    for attend in BOTH:
        tensors = torch.ones(1, 1), torch.ones(2, 1), column(3, 7)
        for x in tensors:
            x.requires_grad_()
        output = attend(*tensors, torch.tensor([[False, False]]))
        assert output.item() == 0
        output.sum().backward()
        assert all(x.grad is not None and x.grad.isfinite().all() for x in tensors)


@given(inputs())
def test_equals_pytorch(case):
    """The formula written out, and the fused path, give PyTorch's output and gradients."""
    *tensors, mask = case
    expected = F.scaled_dot_product_attention(*tensors, attn_mask=mask)
    direction = random_tensor(0, *expected.shape, dtype=expected.dtype)
    gradients = torch.autograd.grad((expected * direction).sum(), tensors)
    for attend in BOTH:
        output = attend(*tensors, mask)
        close(output, expected)
        for actual, right in zip(
            torch.autograd.grad((output * direction).sum(), tensors), gradients, strict=True
        ):
            close(actual, right)


@settings(max_examples=10)
@given(inputs(dtypes=st.just(torch.float64), sizes=st.integers(1, 3)))
def test_gradients_are_those_of_finite_differences(case):
    """Also where a query may attend to nothing (F03)."""
    *tensors, mask = case
    for attend in BOTH:
        assert torch.autograd.gradcheck(lambda *x, f=attend: f(*x, mask), tensors)


@given(inputs())
def test_weights_are_shares_of_what_may_be_attended_to(case):
    """Each row adds up to 1, or is 0 where the query may attend to nothing (F03)."""
    query, key, value, mask = case
    _, weights = attention(query, key, value, mask)
    allowed = torch.ones_like(weights, dtype=torch.bool) if mask is None else mask
    allowed = allowed.expand_as(weights)
    assert (weights[~allowed] == 0).all()
    assert (weights >= 0).all()
    close(weights.sum(-1), allowed.any(-1).to(weights.dtype))


@given(inputs(), st.integers(0, 5))
def test_what_is_masked_has_no_influence(case, place):
    """Keys and values behind the mask may be changed at will."""
    query, key, value, mask = case
    place %= key.size(-2)
    hidden = torch.ones(query.size(-2), key.size(-2), dtype=torch.bool)
    hidden[:, place] = False
    mask = hidden if mask is None else mask & hidden
    changed = torch.zeros(key.size(-2), 1, dtype=key.dtype)
    changed[place] = 100
    for attend in BOTH:
        close(attend(query, key + changed, value + changed, mask), attend(query, key, value, mask))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_stays_finite(dtype):
    """The number that stands for a masked score fits into every type."""
    scores = random_tensor(0, 2, 3, 4, dtype=dtype)
    weights = masked_softmax(scores, random_mask(1, 3, 4, kept=0.3))
    assert weights.dtype == dtype and weights.isfinite().all()


@given(seeds, st.sampled_from([16, 64, 100]), st.booleans())
def test_half_precision_does_not_overflow(seed, width, masked):
    """The scores fit into the type even where the product before the scale would not."""
    size = 40000**0.5 / width**0.25  # scaled, the largest scores are about 40000
    assert size**2 * width > torch.finfo(torch.float16).max
    signs = [random_tensor(seed + i, 3, width).sign() for i in range(2)]
    query, key = (size * x.to(torch.float16) for x in signs)
    key[0] = query[0]  # the largest score there is
    value = random_tensor(seed, 3, 4, dtype=torch.float16)
    mask = causal_mask(3) if masked else None
    expected = F.scaled_dot_product_attention(query, key, value, attn_mask=mask)
    for attend in BOTH:
        output = attend(query, key, value, mask)
        assert output.isfinite().all()
        torch.testing.assert_close(output, expected, atol=2e-2, rtol=2e-2)


def test_what_is_not_finite_is_refused_behind_a_mask():
    """F05: 0 times infinity would be NaN, in the output or in the gradient."""
    query, mask = torch.zeros(1, 1), torch.tensor([[True, False]])
    for number in (torch.inf, -torch.inf, torch.nan):
        for key, value in ((column(0, 0), column(1, number)), (column(0, number), column(1, 1))):
            with pytest.raises(ValueError, match="inf or NaN"):
                attention(query, key, value, mask)


def test_no_forward_pass_warns(recwarn):
    """F12: a warning on standard error would end up in the page."""
    x = torch.randn(1, 3, 8, generator=torch.Generator().manual_seed(0))
    mask = causal_mask(3) & torch.tensor([[[True, True, False]]])
    for attend in BOTH:
        attend(x, x, x, mask, dropout=0.5)
    fused_attention(x, x, x, mask, causal=True)
    assert not recwarn.list


def similarities(width: int) -> dict:
    """Return all of them, by name."""
    torch.manual_seed(width)
    return {
        "dot": dot,
        "scaled": scaled_dot,
        "cosine": cosine,
        "learned": CosineSimilarity(temperature=0.3),
        "additive": AdditiveSimilarity(width, width, 3),
    }


@given(inputs(sizes=st.integers(1, 4)))
def test_similarities_follow_their_formulas(case):
    """For each pair of a query and a key, in both precisions."""
    query, key, *_ = case
    q, k = query[..., :, None, :], key[..., None, :, :]
    ways = similarities(query.size(-1))
    for way in ways.values():
        if isinstance(way, torch.nn.Module):
            way.to(query.dtype)
    a, b, u = (layer.weight for layer in ways["additive"].children())
    products = (q * k).sum(-1)
    angles = F.cosine_similarity(*torch.broadcast_tensors(q, k), dim=-1)
    formulas = {
        "dot": products,
        "scaled": products / query.size(-1) ** 0.5,
        "cosine": angles,
        "learned": angles / 0.3,
        "additive": (torch.tanh(q @ a.T + k @ b.T) * u[0]).sum(-1),
    }
    for name, expected in formulas.items():
        torch.testing.assert_close(ways[name](query, key), expected, atol=1e-5, rtol=1e-5)


@given(inputs(sizes=st.integers(1, 4)))
def test_attention_by_another_similarity(case):
    """The weights are the masked softmax of its scores, and gradients reach its parameters."""
    query, key, value, mask = case
    for way in similarities(query.size(-1)).values():
        if isinstance(way, torch.nn.Module):
            way.to(query.dtype)
        output, weights = attention(query, key, value, mask, similarity=way)
        close(weights, masked_softmax(way(query, key), mask))
        close(output, weights @ value)
        if isinstance(way, torch.nn.Module):
            output.square().sum().backward()
            assert all(p.grad is not None and p.grad.isfinite().all() for p in way.parameters())


@given(seeds, st.floats(0.1, 10))
def test_a_cosine_knows_directions_alone(seed, factor):
    """Longer queries and keys do not change it; without a direction it is 0, in every type."""
    query, key = random_tensor(seed, 3, 4), random_tensor(seed + 1, 5, 4)
    close(cosine(factor * query, key / factor), cosine(query, key))
    close(cosine(query, key, 0.5), 2 * cosine(query, key))
    assert cosine(query, query).diagonal().min() > 0.99
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        nowhere = torch.zeros(2, 4, dtype=dtype, requires_grad=True)
        scores = cosine(nowhere, key.to(dtype))
        scores.sum().backward()
        assert (scores == 0).all() and nowhere.grad.isfinite().all()


def test_additive_similarity_takes_queries_and_keys_of_different_widths():
    """As in its paper, where the encoder's states are twice as wide as the decoder's."""
    query, key = random_tensor(0, 2, 3, 4), random_tensor(1, 2, 5, 8)
    value = random_tensor(2, 2, 5, 6)
    way = AdditiveSimilarity(d_query=4, d_key=8, d_hidden=7)
    assert [tuple(p.shape) for p in way.parameters()] == [(7, 4), (7, 8), (1, 7)]
    output, weights = attention(query, key, value, similarity=way)
    assert output.shape == (2, 3, 6) and weights.shape == (2, 3, 5)


def test_widths_that_do_not_fit_are_named():
    """A user has no import hook; what he sees is our own message."""
    query, key = torch.zeros(2, 3), torch.zeros(2, 4)
    for way in (dot, scaled_dot, cosine):
        with pytest.raises((TypeError, ValueError), match="width 3.*width 4|key"):
            way(query, key)
    with pytest.raises(ValueError, match="width 3.*width 4.*AdditiveSimilarity"):
        inspect.unwrap(dot)(query, key)


def test_a_temperature_is_positive():
    """Its logarithm is what is learned."""
    for temperature in (-1.0, 0.0, torch.nan):
        with pytest.raises(ValueError, match=f"must be positive, not {temperature}"):
            CosineSimilarity(temperature)


def test_a_mask_may_have_one_axis():
    """It broadcasts to (*b, t, s), as the docstring asks, so that both must take it."""
    query, key, value = (
        x[None, None] for x in (torch.zeros(1, 1), torch.zeros(2, 1), column(1, 5))
    )
    for attend in BOTH:
        close(attend(query, key, value, torch.tensor([True, False])), [[[[1.0]]]])


def test_one_query_and_four_keys():
    """F14: the one query is the last position, which sees all keys."""
    arguments = torch.zeros(1, 1), torch.zeros(4, 1), column(1, 2, 3, 4)
    close(plain(*arguments, causal_mask(1, 4)), [[2.5]])
    close(fused_attention(*arguments, causal=True), [[2.5]])


@given(sizes, st.integers(0, 5))
def test_causal_mask_ends_at_the_last_key(t, more):
    """F14: query i of t may attend to key j of s if j <= i + s - t."""
    expected = [[j <= i + more for j in range(t + more)] for i in range(t)]
    assert causal_mask(t, t + more).tolist() == expected
    assert causal_mask(t).tolist() == [[j <= i for j in range(t)] for i in range(t)]


@given(inputs())
def test_fused_causal_equals_the_mask(case):
    """F14: with more keys than queries, and joined with another mask."""
    query, key, value, mask = case
    t, s = query.size(-2), key.size(-2)
    if t > s:
        with pytest.raises(ValueError, match=f"{t} queries for {s} keys"):
            causal_mask(t, s)
        with pytest.raises(ValueError, match=f"{t} queries for {s} keys"):
            fused_attention(query, key, value, mask, causal=True)
        return
    joined = causal_mask(t, s) if mask is None else mask & causal_mask(t, s)
    close(fused_attention(query, key, value, mask, causal=True), plain(query, key, value, joined))


def test_padding_mask():
    """One row of the mask for each sentence, for all its heads and queries."""
    mask = padding_mask(torch.tensor([[5, 9, 0], [7, 0, 0]]))
    assert mask.tolist() == [[[[True, True, False]]], [[[True, False, False]]]]
    assert padding_mask(torch.tensor([[5, 9, 0]]), pad=9).tolist() == [[[[True, False, True]]]]


@given(seeds, st.sampled_from([0.1, 0.5, 0.9]))
def test_dropout_leaves_out_weights_and_enlarges_the_others(seed, dropout):
    """With the unit matrix as value, the output is the weights that were used."""
    torch.manual_seed(seed)
    query, key = random_tensor(seed, 50, 4), random_tensor(seed + 1, 50, 4)
    weights = attention(query, key, torch.eye(50))[1]
    for attend in BOTH:
        used = attend(query, key, torch.eye(50), dropout=dropout)
        kept = used != 0
        close(used[kept], (weights / (1 - dropout))[kept])
        assert abs(kept.float().mean() - (1 - dropout)) < 0.05


def test_annotations_are_checked():
    """The tests run with jaxtyping's import hook, so that a wrong shape fails at the door."""
    with pytest.raises(TypeError, match="ids"):
        padding_mask(torch.tensor([5, 9, 0]))


def test_masks_are_made_on_the_device_of_what_they_mask():
    """Else a model on a GPU fails; the meta device tells the same without one."""
    from transformer_lit.decoder import decoder_mask

    assert causal_mask(2, 3, device="meta").is_meta
    assert decoder_mask(torch.ones(2, 3, dtype=torch.int64, device="meta")).is_meta
    q, k = torch.randn(2, 1, 2, 4, device="meta"), torch.randn(2, 1, 5, 4, device="meta")
    assert fused_attention(q, k, k, causal=True).is_meta


def test_a_mask_larger_than_the_scores_is_refused():
    """With an axis too many, each sentence would be attended to under the mask of each."""
    x = random_tensor(0, 3, 5, 8)
    mask = padding_mask(torch.tensor([[3, 4, 0, 0, 0], [3, 4, 5, 6, 7], [3, 0, 0, 0, 0]]))
    with pytest.raises(
        ValueError, match=r"\(3, 1, 1, 5\) does not fit scores of shape \(3, 5, 5\)"
    ):
        attention(x, x, x, mask)
    assert attention(x, x, x, mask[:, 0])[0].shape == (3, 5, 8)
