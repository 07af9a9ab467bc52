"""PyTorch's own Transformer."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transformer_lit.embedding import Embedding
from transformer_lit.model import Transformer, TransformerConfig

from .base import InTorch, padding


class Around(nn.Module):
    """``nn.Transformer`` with what it leaves to its user: embeddings, positions, output."""

    def __init__(self, c: TransformerConfig):
        super().__init__()
        options = {
            "d_model": c.d_model,
            "nhead": c.n_heads,
            "dim_feedforward": c.d_ff,
            "dropout": c.dropout,
            "batch_first": True,
        }
        encoder = nn.TransformerEncoderLayer(**options)
        decoder = nn.TransformerDecoderLayer(**options)
        self.embedding = Embedding(c.vocab_size, c.d_model, dropout=c.dropout)
        self.transformer = nn.Transformer(  # whose own stacks would each end with one norm more
            c.d_model,
            c.n_heads,
            batch_first=True,
            custom_encoder=nn.TransformerEncoder(encoder, c.n_layers, enable_nested_tensor=False),
            custom_decoder=nn.TransformerDecoder(decoder, c.n_layers),
        )
        for layer in (*self.transformer.encoder.layers, *self.transformer.decoder.layers):
            layer.dropout.p = 0.0  # within the feed-forward network: the paper drops nothing there
            layer.self_attn.dropout = 0.0
            if hasattr(layer, "multihead_attn"):
                layer.multihead_attn.dropout = 0.0

    def encode(self, src: Tensor) -> tuple[Tensor, Tensor | None]:
        real = padding(src)
        hidden = None if real is None else ~real  # True means *may not attend* here
        return self.transformer.encoder(self.embedding(src), src_key_padding_mask=hidden), hidden

    def decode(self, tgt: Tensor, memory: Tensor, hidden: Tensor | None) -> Tensor:
        return self.transformer.decoder(
            self.embedding(tgt),
            memory,
            tgt_mask=nn.Transformer.generate_square_subsequent_mask(tgt.size(1)),
            memory_key_padding_mask=hidden,
            tgt_is_causal=True,
        )

    def output(self, x: Tensor) -> Tensor:
        return F.linear(x, self.embedding.tokens.weight)


class TorchTransformer(InTorch):
    """``torch.nn.Transformer``."""

    name = "nn.Transformer"
    remark = "no cache while decoding"
    NAMES = {
        "src_embedding": "embedding",
        "in_proj.weight": "in_proj_weight",
        "in_proj.bias": "in_proj_bias",
        "self_attention": "self_attn",
        "cross_attention": "multihead_attn",
        "feed_forward.": "",
        "residual": "norm",
        ".norm.": ".",
        "encoder.layers": "transformer.encoder.layers",
        "decoder.layers": "transformer.decoder.layers",
    }

    def load(self, model: Transformer) -> None:
        self.net = Around(model.config)
        weights = {}
        for name, parameter in model.named_parameters():
            for ours, theirs in self.NAMES.items():
                name = name.replace(ours, theirs)
            weights[name] = parameter
        self.net.load_state_dict(weights)

    def logits(self, src: Tensor, tgt: Tensor) -> Tensor:
        return self.net.output(self.net.decode(tgt, *self.net.encode(src)))

    @torch.inference_mode()
    def greedy(self, src: Tensor, n: int) -> list[list[int]]:
        net = self.net.eval()
        memory, hidden = net.encode(src)
        tgt = torch.full((len(src), 1), self.config.bos)
        for _ in range(n):  # it has no cache
            last = net.output(net.decode(tgt, memory, hidden)[:, -1])
            tgt = torch.cat([tgt, last.argmax(dim=-1, keepdim=True)], dim=1)
        return tgt[:, 1:].tolist()
