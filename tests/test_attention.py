"""Attention: equal to PyTorch's, under every mask, forward and backward."""

from itertools import product

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from support import close, dtypes, masks_kept, random_mask, random_tensor, seeds, sizes
from torch import Tensor

from transformer_lit.attention import (
    attention,
    causal_mask,
    check_mask,
    fused_attention,
    masked_softmax,
    padding_mask,
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


def test_a_value_that_is_not_finite_is_refused_behind_a_mask():
    """F05: 0 times infinity would be NaN."""
    zeros = torch.zeros(1, 1), torch.zeros(2, 1)
    with pytest.raises(ValueError, match="inf or NaN"):
        attention(*zeros, column(1, torch.inf), torch.tensor([[True, False]]))


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
