"""PyTorch's own modules with the weights of ours: what the package must be equal to.

PyTorch's modules take masks of the opposite polarity (True means *may not attend*), which is turned
round here, and nowhere else.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transformer_lit.model import TransformerConfig

OUR_NAMES = {
    "in_proj.weight": "in_proj_weight",
    "in_proj.bias": "in_proj_bias",
    "self_attention": "self_attn",
    "cross_attention": "multihead_attn",
    "feed_forward.": "",
    "residual1.norm": "norm1",
    "residual2.norm": "norm2",
    "residual3.norm": "norm3",
}
ACTIVATIONS = {"relu": F.relu, "gelu": F.gelu, "silu": F.silu}


def copy_weights(ours: nn.Module, theirs: nn.Module) -> nn.Module:
    """Load all weights of our module into PyTorch's, and return it in the same mode and type."""
    weights = {}
    for name, value in ours.state_dict().items():
        for our_name, their_name in OUR_NAMES.items():
            name = name.replace(our_name, their_name)
        weights[name] = value
    theirs.to(next(ours.parameters()).dtype).load_state_dict(weights)
    return theirs.train(ours.training)


def options(config: TransformerConfig) -> dict:
    """Return what PyTorch's layers are built with."""
    return {
        "d_model": config.d_model,
        "nhead": config.n_heads,
        "dim_feedforward": config.d_ff,
        "dropout": config.dropout,
        "activation": ACTIVATIONS[config.activation],
        "norm_first": config.norm_first,
        "batch_first": True,
    }


def final_norm(config: TransformerConfig) -> nn.LayerNorm | None:
    """Return the norm after a stack, which post-norm has not."""
    return nn.LayerNorm(config.d_model) if config.norm_first else None


def encoder(config: TransformerConfig) -> nn.TransformerEncoder:
    """Return PyTorch's encoder stack."""
    layer = nn.TransformerEncoderLayer(**options(config))
    return nn.TransformerEncoder(
        layer, config.n_layers, final_norm(config), enable_nested_tensor=False
    )


def decoder(config: TransformerConfig) -> nn.TransformerDecoder:
    """Return PyTorch's decoder stack."""
    return nn.TransformerDecoder(
        nn.TransformerDecoderLayer(**options(config)), config.n_layers, final_norm(config)
    )


def transformer(config: TransformerConfig) -> nn.Transformer:
    """Return PyTorch's two stacks as one module; its own would end with a norm in any case."""
    return nn.Transformer(
        config.d_model,
        config.n_heads,
        batch_first=True,
        custom_encoder=encoder(config),
        custom_decoder=decoder(config),
    )


def attention_mask(mask: Tensor, n_heads: int) -> Tensor:
    """Turn our mask of shape ``(b, 1, t, s)`` into PyTorch's, of shape ``(b * n_heads, t, s)``."""
    return ~mask.expand(-1, n_heads, -1, -1).flatten(0, 1)


def future(t: int) -> Tensor:
    """Return PyTorch's causal mask."""
    return torch.ones(t, t, dtype=torch.bool).triu(1)
