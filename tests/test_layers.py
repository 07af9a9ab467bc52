"""Feed-forward network, layer normalisation and residual."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from oracles import ACTIVATIONS
from support import close, dtypes, random_tensor, randomise, seeds, sizes

from transformer_lit.layers import Dropout, FeedForward, Residual, layer_norm


@given(seeds, dtypes, sizes, st.integers(1, 9), st.sampled_from([1e-5, 1e-2, 1.0]), st.booleans())
def test_layer_norm_equals_pytorch(seed, dtype, b, d, eps, affine):
    """F21: the large values of eps tell whether it stands under the root."""
    x = 3 + random_tensor(seed, b, 2, d, dtype=dtype)
    scale = [random_tensor(seed + i, d, dtype=dtype) for i in (1, 2)] if affine else []
    close(layer_norm(x, *scale, eps=eps), F.layer_norm(x, (d,), *scale, eps=eps))


@given(
    seeds,
    st.sampled_from([torch.float16, torch.bfloat16]),
    st.integers(2, 64),
    st.sampled_from([0.1, 1.0, 1000.0]),  # of the entries; 1000² is too much for float16
    st.booleans(),
)
def test_layer_norm_in_half_precision(seed, dtype, d, size, affine):
    """Its sums are more exact than its type: output and gradients are the true ones, rounded."""
    x = (size * random_tensor(seed, 3, d)).to(dtype)
    scale = [random_tensor(seed + i, d).to(dtype) for i in (1, 2)] if affine else []
    above = random_tensor(seed + 3, 3, d).to(dtype)

    def forward_and_backward(norm, *tensors):
        leaves = [t.clone().requires_grad_() for t in tensors]
        y = norm(*leaves)
        return [y, *torch.autograd.grad(y, leaves, above.to(y.dtype))]

    ours = forward_and_backward(layer_norm, x, *scale)
    true = forward_and_backward(
        lambda x, *scale: F.layer_norm(x, (d,), *scale), x.double(), *[t.double() for t in scale]
    )
    step = torch.finfo(dtype).eps
    for actual, expected in zip(ours, true, strict=True):
        assert actual.dtype == dtype
        torch.testing.assert_close(actual.double(), expected, atol=step, rtol=step)


def test_layer_norm_divides_by_d():
    """F21: the unbiased deviation would give 1.5."""
    assert layer_norm(torch.tensor([1.0, 0, 0, 0]))[0].item() == pytest.approx(1.732, abs=1e-3)


@given(
    seeds,
    dtypes,
    st.integers(1, 6),
    st.integers(1, 9),
    st.sampled_from(list(ACTIVATIONS)),
    st.booleans(),
    st.booleans(),
)
def test_feed_forward_follows_its_formula(seed, dtype, d, f, activation, gated, bias):
    """Equation 2 of the paper; gated, the activation is on the gate (Shazeer, 2020)."""
    network = FeedForward(d, f, activation=activation, gated=gated, bias=bias)
    randomise(network, seed, dtype)
    x = random_tensor(seed, 2, 3, d, dtype=dtype)

    def affine(layer, y):
        product = y @ layer.weight.mT
        return product + layer.bias if bias else product

    inner, act = affine(network.linear1, x), ACTIVATIONS[activation]
    inner = act(affine(network.gate, x)) * inner if gated else act(inner)
    close(network(x), affine(network.linear2, inner))
    assert (network.linear1.bias is not None) == bias


@given(seeds, st.permutations(range(5)))
def test_feed_forward_treats_each_position_alone(seed, order):
    """Permuting the positions permutes the output."""
    network, x = FeedForward(4, 7), random_tensor(seed, 1, 5, 4)
    close(network(x[:, order]), network(x)[:, order])


def test_an_unknown_activation_is_refused():
    """The message names those that there are."""
    with pytest.raises(ValueError, match="relu, gelu, gelu_tanh, silu, not 'tanh'"):
        FeedForward(4, 8, activation="tanh")


@given(seeds, dtypes, sizes, st.integers(1, 6))
def test_residual_follows_its_formula(seed, dtype, t, d):
    """F22: post-norm is norm(x + f(x)), pre-norm x + f(norm(x))."""
    x = random_tensor(seed, 2, t, d, dtype=dtype)
    post, pre = (
        randomise(Residual(d, norm_first=norm_first), seed, dtype) for norm_first in (False, True)
    )
    close(post(x, torch.sin), post.norm(x + torch.sin(x)))
    close(pre(x, torch.sin), x + torch.sin(pre.norm(x)))
    close(post.norm(x), layer_norm(x, post.norm.weight, post.norm.bias))


@given(seeds, dtypes, st.sampled_from([1e-4, 0.1, 0.3, 0.5, 0.9]))
def test_dropout_drops_as_often_as_told(seed, dtype, p):
    """Section 5.4: and what stays is made larger, so that the mean stays; the same backwards."""
    torch.manual_seed(seed)
    x = torch.full((333, 301), 2.0, dtype=dtype, requires_grad=True)
    y = Dropout(p)(x)
    y.sum().backward()
    dropped = y == 0
    spread = (p * (1 - p) / x.numel()) ** 0.5
    assert abs(dropped.double().mean() - p) < 5 * spread + 2**-17
    torch.testing.assert_close(y[~dropped], (x / (1 - p))[~dropped], atol=0, rtol=2e-4)
    assert x.grad.equal((y / 2).detach())


def test_dropout_decides_for_each_entry_alone():
    """Not for neighbours together, though they share a random number; nor twice the same."""
    torch.manual_seed(0)
    dropped = (Dropout(0.5)(torch.ones(2, 40_000)) == 0).double()
    for shift in range(1, 9):
        assert abs(torch.corrcoef(torch.stack([dropped[0], dropped[0].roll(shift)]))[0, 1]) < 0.02
    for quarter in dropped[0].view(4, -1), dropped[0].view(-1, 4).mT, dropped:
        assert torch.corrcoef(quarter).fill_diagonal_(0).abs().max() < 0.03


@given(seeds, sizes, sizes, st.sampled_from([0.0, 1e-6, 1 - 1e-6, 1.0]))
def test_dropout_at_its_ends(seed, b, t, p):
    """Nothing or everything; of any shape, empty ones included; and nothing in evaluation."""
    x = random_tensor(seed, b, t) + 10
    torch.testing.assert_close(Dropout(p)(x), x if p < 0.5 else torch.zeros_like(x))
    assert Dropout(0.5)(x[:0]).shape == (0, t)
    assert Dropout(0.5)(x[0, 0]).shape == ()
    assert Dropout(0.5)(x.mT).shape == (t, b)
    assert Dropout(0.5).eval()(x).equal(x)


def test_residual_drops_out_what_the_sublayer_adds():
    """Section 5.4: the stream itself stays whole."""
    residual = Residual(1000, dropout=0.5, norm_first=True)
    x = torch.full((1, 1, 1000), 5.0)
    assert set(residual(x, torch.ones_like).unique().tolist()) == {5, 7}
    residual.eval()
    assert set(residual(x, torch.ones_like).unique().tolist()) == {6}
