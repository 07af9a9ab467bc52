"""The encoder: equal to PyTorch's, and blind to order and padding."""

from functools import partial

import torch
from hypothesis import given
from hypothesis import strategies as st
from oracles import copy_weights, options
from oracles import encoder as pytorch_encoder
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

from transformer_lit.attention import padding_mask
from transformer_lit.encoder import Encoder, EncoderLayer

pytorch_like = configs(gated=False, bias=True)
build = partial(stack, Encoder)


@given(pytorch_like, seeds, dtypes, sizes, sizes, st.booleans())
def test_layer_equals_pytorch(config, seed, dtype, b, s, training):
    """F22: in both orders of the norm, padded, in both modes."""
    layer = build(config, seed, dtype).layers[0].train(training)
    theirs = copy_weights(layer, nn.TransformerEncoderLayer(**options(config)))
    ids = padded_ids(seed, b, s, vocab_size=9)
    x = random_tensor(seed, b, s, config.d_model, dtype=dtype)
    close(layer(x, padding_mask(ids)), theirs(x, src_key_padding_mask=ids == 0))
    close(layer(x), theirs(x))


@given(pytorch_like, seeds, dtypes, sizes, sizes, st.booleans())
def test_stack_equals_pytorch(config, seed, dtype, b, s, training):
    """F22: pre-norm ends with a norm, post-norm does not."""
    encoder = build(config, seed, dtype).train(training)
    theirs = copy_weights(encoder, pytorch_encoder(config))
    ids = padded_ids(seed, b, s, vocab_size=9)
    x = random_tensor(seed, b, s, config.d_model, dtype=dtype)
    close(encoder(x, padding_mask(ids)), theirs(x, src_key_padding_mask=ids == 0))


@given(configs(), seeds, dtypes, st.permutations(range(5)))
def test_order_is_known_by_positions_alone(config, seed, dtype, order):
    """Permuting the words, and their padding with them, permutes the output."""
    encoder, x = build(config, seed, dtype), random_tensor(seed, 2, 5, config.d_model, dtype=dtype)
    mask = padding_mask(padded_ids(seed, 2, 5, vocab_size=9))
    close(encoder(x[:, order]), encoder(x)[:, order])
    close(encoder(x[:, order], mask[..., order]), encoder(x, mask)[:, order])


@given(configs(), seeds, sizes, sizes)
def test_padding_has_no_influence(config, seed, s, more):
    """F10: a sentence alone and the same filled up beside others."""
    encoder = build(config, seed)
    x = random_tensor(seed, 3, s + more, config.d_model)
    mask = torch.arange(s + more)[None] < s
    close(encoder(x, mask)[:, :s], encoder(x[:, :s]))
    garbage = torch.cat([x[:, :s], 1e3 * x[:, s:]], dim=1)
    close(encoder(garbage, mask)[:, :s], encoder(x[:, :s]))


@given(configs(), seeds, sizes)
def test_neighbours_have_no_influence(config, seed, s):
    """F10: each sentence of a batch, alone, without its padding."""
    encoder, ids = build(config, seed), padded_ids(seed, 3, s, vocab_size=9)
    x = random_tensor(seed, 3, s, config.d_model)
    for row, output in enumerate(encoder(x, padding_mask(ids))):
        words = ids[row] != 0
        close(output[None, words], encoder(x[row, words][None]))


@given(configs(d_model=12), seeds)
def test_what_flows_is_the_mask(config, seed):
    """Each word depends on all words of its own sentence, and on nothing else."""
    encoder = build(config, seed, torch.float64)
    words = padded_ids(seed, 2, 4, vocab_size=9) != 0
    x = random_tensor(seed, 2, 4, 12, dtype=torch.float64)
    moves = flow(lambda x: encoder(x, words[:, None, None]), x)
    for b in range(2):
        own = moves[b, words[b], b]
        assert own[:, words[b]].all() and not own[:, ~words[b]].any()
        assert not moves[b, :, 1 - b].any()


@given(configs(norm_first=False), seeds)
def test_post_norm_output_is_normalised(config, seed):
    """F22: mean 0 and deviation 1 for each token, as it comes from the constructor."""
    torch.manual_seed(seed)
    x = random_tensor(seed, 2, 4, 16)
    output = EncoderLayer(16, config.n_heads if 16 % config.n_heads == 0 else 1, config.d_ff)(x)
    close(output.mean(-1), torch.zeros(2, 4))
    torch.testing.assert_close(output.std(-1, correction=0), torch.ones(2, 4), atol=1e-3, rtol=0)


def test_pre_norm_output_is_not_normalised():
    """F22: the stream passes through it untouched."""
    x = 10 + random_tensor(0, 2, 4, 16)
    assert (EncoderLayer(16, 2, 32, norm_first=True)(x).mean(-1) > 5).all()


def test_layers_share_nothing():
    """F23: different objects, different values, twice the parameters, gradients of their own."""
    one, two = (Encoder(n, 8, 2, 16) for n in (1, 2))
    assert sum(p.numel() for p in two.parameters()) == 2 * sum(p.numel() for p in one.parameters())
    first, second = (dict(layer.named_parameters()) for layer in two.layers)
    for name in first:
        assert first[name] is not second[name]
        if "norm" not in name:
            assert not first[name].equal(second[name]), f"{name} starts equal"
    (two(random_tensor(0, 2, 5, 8)) @ random_tensor(1, 8)).sum().backward()
    for name in first:
        assert not first[name].grad.equal(second[name].grad), name


def test_dropout_is_off_in_evaluation():
    """F31: on the sublayers and on the attention weights."""
    for option in ("dropout", "attention_dropout"):
        encoder, x = Encoder(2, 8, 2, 16, **{option: 0.9}), random_tensor(0, 2, 5, 8)
        torch.manual_seed(0)
        assert not encoder(x).equal(encoder(x)), option
        encoder.eval()
        assert encoder(x).equal(encoder(x)), option
