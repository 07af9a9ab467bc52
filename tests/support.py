"""Small helpers of the tests: strategies, random tensors, closeness."""

import math

import torch
from hypothesis import strategies as st
from torch import Tensor, nn

from transformer_lit.data import BOS, PAD, UNK
from transformer_lit.model import Transformer, TransformerConfig

TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-10}

seeds = st.integers(0, 2**32 - 1)
sizes = st.integers(1, 6)
dtypes = st.sampled_from(list(TOLERANCE))
masks_kept = st.sampled_from([0.2, 0.5, 0.9, 1.0])  # share of the places that may be attended to


def close(actual: Tensor, expected: Tensor | list | float) -> None:
    """Assert that two tensors are equal up to the rounding of their type."""
    if not isinstance(expected, Tensor):
        expected = torch.tensor(expected, dtype=actual.dtype)
    tolerance = TOLERANCE[actual.dtype]
    torch.testing.assert_close(actual, expected, atol=tolerance, rtol=tolerance)


def generator(seed: int) -> torch.Generator:
    """Return a source of random numbers of its own."""
    return torch.Generator().manual_seed(seed)


def random_tensor(seed: int, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return normal numbers that the seed determines."""
    return torch.randn(shape, generator=generator(seed), dtype=torch.float64).to(dtype)


def random_mask(seed: int, *shape: int, kept: float = 0.5, first: bool = False) -> Tensor:
    """Return a boolean mask; with ``first``, every query may attend at least to key 0."""
    mask = torch.rand(shape, generator=generator(seed)) < kept
    if first:
        mask[..., 0] = True
    return mask


def random_ids(seed: int, *shape: int, vocab_size: int) -> Tensor:
    """Return ids of ordinary tokens, above the special ones."""
    return torch.randint(UNK + 1, vocab_size, shape, generator=generator(seed))


def padded_ids(seed: int, b: int, t: int, vocab_size: int) -> Tensor:
    """Return rows of random length from 1 to ``t``, filled up with padding."""
    lengths = torch.randint(1, t + 1, (b, 1), generator=generator(seed + 1))
    ids = random_ids(seed, b, t, vocab_size=vocab_size)
    return ids.masked_fill(torch.arange(t) >= lengths, PAD)


def randomise(module: nn.Module, seed: int, dtype: torch.dtype = torch.float32) -> nn.Module:
    """Give every parameter, biases and norms too, a random value of moderate size."""
    numbers = generator(seed)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            noise = torch.randn(parameter.shape, generator=numbers)
            if parameter.dim() > 1:
                parameter.copy_(noise / math.sqrt(parameter.size(-1)))
            else:
                parameter.copy_(0.3 * noise + ("norm" in name and name.endswith("weight")))
    return module.to(dtype)


@st.composite
def configs(draw: st.DrawFn, **fixed) -> TransformerConfig:
    """Draw the configuration of a small model without dropout."""
    n_heads = draw(st.integers(1, 3))
    options = {
        "vocab_size": draw(st.integers(8, 20)),
        "n_heads": n_heads,
        "d_model": 2 * n_heads * draw(st.integers(1, 3)),
        "d_ff": draw(st.integers(1, 12)),
        "n_layers": draw(st.integers(1, 3)),
        "dropout": 0.0,
        "activation": draw(st.sampled_from(["relu", "gelu", "silu"])),
        "gated": draw(st.booleans()),
        "norm_first": draw(st.booleans()),
        "bias": draw(st.booleans()),
        "positions": draw(st.sampled_from(["sinusoidal", "learned"])),
        "max_len": draw(st.integers(8, 16)),
        "tie": draw(st.sampled_from(["all", "output", "none"])),
        "output_bias": draw(st.booleans()),
    }
    if options["tie"] != "all":
        options["tgt_vocab_size"] = draw(st.none() | st.integers(8, 20))
    return TransformerConfig(**(options | fixed))


def stack(
    kind: type[nn.Module],
    config: TransformerConfig,
    seed: int | None = None,
    dtype: torch.dtype = torch.float32,
) -> nn.Module:
    """Return the encoder or decoder of a configuration; with a seed, all of it random."""
    module = kind(
        config.n_layers,
        config.d_model,
        config.n_heads,
        config.d_ff,
        activation=config.activation,
        gated=config.gated,
        norm_first=config.norm_first,
        bias=config.bias,
    )
    return module if seed is None else randomise(module, seed, dtype)


def flow(function, x: Tensor, seed: int = 0) -> Tensor:
    """Return a boolean (b, t, c, s): whether output i of sentence b depends on input j of c.

    By gradients, of a random mixture of each output's numbers, since their plain sum is constant
    behind a norm.
    """
    x = x.clone().requires_grad_()
    output = function(x)
    mixed = output @ random_tensor(seed, output.size(-1), dtype=x.dtype)
    rows = [torch.autograd.grad(y, x, retain_graph=True)[0].abs().amax(-1) for y in mixed.flatten()]
    return torch.stack(rows).unflatten(0, mixed.shape) > 0


def random_model(
    config: TransformerConfig, seed: int, dtype: torch.dtype = torch.float32
) -> Transformer:
    """Return a model in evaluation mode, all of whose parameters are random."""
    return randomise(Transformer(config), seed, dtype).eval()


def source_and_target(config: TransformerConfig, seed: int, b: int, s: int, t: int):
    """Return padded source and target ids; the target begins with BOS."""
    src = padded_ids(seed, b, s, config.vocab_size)
    tgt = padded_ids(seed + 2, b, t, config.target_size)
    tgt[:, 0] = BOS
    return src, tgt
