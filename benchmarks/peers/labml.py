"""The annotated papers of labml.ai."""

import torch
from torch import Tensor, nn

from transformer_lit.data import PAD
from transformer_lit.model import Transformer

from .base import LONGEST, InTorch


class Labml(InTorch):
    """The annotated papers of labml.ai: pre-norm, one sentence a column, no decoding."""

    name = "labml-nn"
    package = "labml-nn"
    remark = "pre-norm, and equal to our model with pre-norm; no decoding"
    norm_first = True

    def load(self, model: Transformer) -> None:
        from labml_nn.transformers.feed_forward import FeedForward
        from labml_nn.transformers.mha import MultiHeadAttention
        from labml_nn.transformers.models import (
            Decoder,
            EmbeddingsWithPositionalEncoding,
            Encoder,
            EncoderDecoder,
            Generator,
            TransformerLayer,
        )

        c = model.config

        def layer(crosses: bool) -> TransformerLayer:
            attention = [MultiHeadAttention(c.n_heads, c.d_model, 0.0) for _ in range(1 + crosses)]
            return TransformerLayer(
                d_model=c.d_model,
                self_attn=attention[0],
                src_attn=attention[1] if crosses else None,
                feed_forward=FeedForward(c.d_model, c.d_ff, 0.0),
                dropout_prob=c.dropout,
            )

        embedding = EmbeddingsWithPositionalEncoding(c.d_model, c.vocab_size, LONGEST)
        enter = nn.Sequential(embedding, nn.Dropout(c.dropout))
        generator = Generator(c.vocab_size, c.d_model)
        generator.projection.weight = embedding.linear.weight
        self.net = EncoderDecoder(
            Encoder(layer(False), c.n_layers),
            Decoder(layer(True), c.n_layers),
            enter,
            enter,
            generator,
        )
        weights = {"src_embed.0.linear.weight": model.src_embedding.tokens.weight}
        for name, parameter in model.named_parameters():
            if name.startswith(("encoder", "decoder")):
                weights |= self.renamed(name, parameter)
        with torch.no_grad():
            generator.projection.bias.zero_()
            for name, parameter in self.net.named_parameters():
                if name in weights:
                    parameter.copy_(weights.pop(name))
        assert not weights, f"no place for {sorted(weights)}"

    @staticmethod
    def renamed(name: str, parameter: Tensor) -> dict[str, Tensor]:
        """Return a parameter of ours by its name or names in theirs."""
        second = "norm_src_attn" if name.startswith("decoder") else "norm_ff"
        for ours, theirs in {
            "self_attention": "self_attn",
            "cross_attention": "src_attn",
            "out_proj": "output",
            "feed_forward.linear": "feed_forward.layer",
            "residual1.norm": "norm_self_attn",
            "residual2.norm": second,
            "residual3.norm": "norm_ff",
        }.items():
            name = name.replace(ours, theirs)
        if "in_proj" not in name:
            return {name: parameter}
        parts = zip(("query", "key", "value"), parameter.chunk(3), strict=True)
        return {name.replace("in_proj", f"{which}.linear"): part for which, part in parts}

    def logits(self, src: Tensor, tgt: Tensor) -> Tensor:
        real = src != PAD
        src_mask = real.T[None]  # (1, s, b)
        t = tgt.size(1)
        tgt_mask = torch.ones(t, t, dtype=torch.bool).tril()[:, :, None]  # (t, t, 1)
        out = self.net(src.T, tgt.T, src_mask, tgt_mask)
        return self.net.generator(out).transpose(0, 1)
