"""Every option of a configuration reaches every layer, and its default is the paper's."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support import configs, padded_ids
from torch import nn

from transformer_lit.decoder import Decoder, DecoderLayer
from transformer_lit.embedding import Embedding
from transformer_lit.encoder import Encoder, EncoderLayer
from transformer_lit.layers import FeedForward, Residual
from transformer_lit.model import Transformer
from transformer_lit.multi_head import MultiHeadAttention

rates = st.sampled_from([0.0, 0.1, 0.25, 0.5])


def parts(model: nn.Module, kind: type[nn.Module]) -> list[nn.Module]:
    return [module for module in model.modules() if isinstance(module, kind)]


def check_layers(model: nn.Module, config, n_layers: int) -> None:
    """Check all sublayers in ``model``, which has ``n_layers`` encoder and decoder layers."""
    attentions, networks = parts(model, MultiHeadAttention), parts(model, FeedForward)
    residuals = parts(model, Residual)
    encoder_layers, decoder_layers = parts(model, EncoderLayer), parts(model, DecoderLayer)
    assert len(encoder_layers) + len(decoder_layers) == len(networks) == n_layers
    assert len(attentions) == len(encoder_layers) + 2 * len(decoder_layers)
    assert len(residuals) == len(attentions) + len(networks)
    assert {a.dropout for a in attentions} == {config.attention_dropout}
    assert {a.n_heads for a in attentions} == {config.n_heads}
    assert {r.dropout.p for r in residuals} == {config.dropout}
    assert {r.norm_first for r in residuals} == {config.norm_first}
    assert {n.activation for n in networks} == {config.activation}
    assert {n.gate is not None for n in networks} == {config.gated}
    assert {n.linear1.out_features for n in networks} == {config.d_ff}
    linears = [m for part in (*attentions, *networks) for m in parts(part, nn.Linear)]
    assert {linear.bias is not None for linear in linears} == {config.bias}
    # dropout stands on the ways into the stream and nowhere else (section 5.4)
    assert not any(parts(part, nn.Dropout) for part in (*attentions, *networks))
    for stack in parts(model, Encoder) + parts(model, Decoder):
        assert isinstance(stack.norm, nn.LayerNorm if config.norm_first else nn.Identity)


@given(configs(), rates, rates)
def test_every_option_reaches_every_layer(config, dropout, attention_dropout):
    config = replace(config, dropout=dropout, attention_dropout=attention_dropout)
    model = Transformer(config)
    check_layers(model, config, 2 * config.n_layers)
    assert {e.dropout.p for e in parts(model, Embedding)} == {dropout}


@pytest.mark.parametrize("kind", [Encoder, Decoder])
@pytest.mark.parametrize("layer", [False, True], ids=["stack", "layer"])
def test_defaults_are_the_papers(kind, layer):
    """Post-norm, ReLU, biases, no gate; dropout is off until asked for."""
    if layer:
        model = {Encoder: EncoderLayer, Decoder: DecoderLayer}[kind](8, 2, 16)
    else:
        model = kind(3, 8, 2, 16)
    assert {r.norm_first for r in parts(model, Residual)} == {False}
    assert {r.dropout.p for r in parts(model, Residual)} == {0.0}
    assert {n.activation for n in parts(model, FeedForward)} == {"relu"}
    assert {n.gate for n in parts(model, FeedForward)} == {None}
    assert {a.dropout for a in parts(model, MultiHeadAttention)} == {0.0}
    assert all(linear.bias is not None for linear in parts(model, nn.Linear))


def test_defaults_of_the_parts():
    assert Residual(4).norm_first is False and Residual(4).dropout.p == 0
    network = FeedForward(4, 8)
    assert network.activation == "relu" and network.gate is None
    assert network.linear1.bias is not None and network.linear2.bias is not None


@pytest.mark.parametrize("kind", ["dropout", "attention_dropout"])
@given(config=configs(), seed=st.integers(0, 2**31))
def test_each_dropout_acts_in_training_and_only_there(kind, config, seed):
    config = replace(config, **{kind: 0.5})
    torch.manual_seed(seed)
    model = Transformer(config)
    src, tgt = (padded_ids(seed + n, 2, 6, 8) for n in (0, 9))
    with torch.no_grad():
        assert not torch.equal(model(src, tgt), model(src, tgt))
        model.eval()
        assert torch.equal(model(src, tgt), model(src, tgt))
