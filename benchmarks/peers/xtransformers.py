"""x-transformers."""

import torch
from torch import Tensor, nn

from transformer_lit.embedding import SinusoidalPositions
from transformer_lit.model import Transformer

from .base import LONGEST, InTorch, padding, sublayers


class TablePositions(SinusoidalPositions):
    """The paper's positions, where x-transformers has its own."""

    def forward(self, ids: Tensor, pos=None, seq_start_pos=None, offset: int = 0) -> Tensor:
        return super().forward(ids.size(1), offset)


class XTransformers(InTorch):
    """x-transformers, as an encoder-decoder with post-norm and fused attention."""

    name = "x-transformers"
    package = "x-transformers"
    remark = (
        "no bias in attention and no shift in norms, which are 0 in the model it is equal to; its "
        "beam search knows no end of a sentence, and is left out"
    )
    lacks = ("in_proj.bias", "out_proj.bias", "norm.bias")

    def load(self, model: Transformer) -> None:
        from x_transformers import AutoregressiveWrapper, Decoder, Encoder, TransformerWrapper

        c = model.config
        options = {
            "dim": c.d_model,
            "depth": c.n_layers,
            "heads": c.n_heads,
            "attn_dim_head": c.d_model // c.n_heads,
            "attn_flash": True,
            "attn_sublayer_dropout": c.dropout,
            "ff_mult": c.d_ff / c.d_model,
            "ff_custom_activation": nn.ReLU(),
            "ff_sublayer_dropout": c.dropout,
            "pre_norm": False,
        }
        sizes = {"num_tokens": c.vocab_size, "max_seq_len": LONGEST, "emb_dropout": c.dropout}
        encoder = TransformerWrapper(
            **sizes, return_only_embed=True, attn_layers=Encoder(**options)
        )
        decoder = TransformerWrapper(
            **sizes,
            token_emb=encoder.token_emb,
            tie_embedding=True,  # its embeddings are ours times this root, see below
            tie_embedding_scale=c.d_model**-0.5,
            attn_layers=Decoder(cross_attend=True, **options),
        )
        encoder.pos_emb = decoder.pos_emb = TablePositions(c.d_model, LONGEST)
        self.net = nn.ModuleDict({"encoder": encoder, "decoder": AutoregressiveWrapper(decoder)})
        with torch.no_grad():
            encoder.token_emb.emb.weight.copy_(model.src_embedding.tokens.weight * c.d_model**0.5)
            for ours, theirs in ((model.encoder, encoder), (model.decoder, decoder)):
                self.copy(ours, theirs.attn_layers.layers)

    @staticmethod
    def copy(ours: nn.Module, theirs: nn.ModuleList) -> None:
        """Copy a stack; in theirs each sublayer is an entry: norms, the block, the way past it."""
        entries = iter(theirs)
        for layer in ours.layers:
            for part, norm in sublayers(layer):
                norms, block, _ = next(entries)
                norms[2].gamma.copy_(norm.weight - float(norms[2].unit_offset))
                if part is layer.feed_forward:
                    block.ff[0][0].load_state_dict(part.linear1.state_dict())
                    block.ff[2].load_state_dict(part.linear2.state_dict())
                else:
                    block.to_out.weight.copy_(part.out_proj.weight)
                    query, key, value = part.in_proj.weight.chunk(3)
                    block.to_q.weight.copy_(query)
                    block.to_k.weight.copy_(key)
                    block.to_v.weight.copy_(value)

    def encode(self, src: Tensor) -> dict:
        real = padding(src)
        memory = self.net["encoder"](src, mask=real, return_embeddings=True)
        return {"context": memory, "context_mask": real}

    def logits(self, src: Tensor, tgt: Tensor) -> Tensor:
        return self.net["decoder"].net(tgt, **self.encode(src))

    @torch.inference_mode()
    def greedy(self, src: Tensor, n: int) -> list[list[int]]:
        self.net.eval()
        start = torch.full((len(src), 1), self.config.bos)
        found = self.net["decoder"].generate(start, n, temperature=0.0, **self.encode(src))
        return found.tolist()
