"""Marian of the library transformers."""

import tempfile

import torch
from torch import Tensor

from transformer_lit.model import Transformer
from transformer_lit.pretrained import save_marian

from .base import InTorch, padding


class Marian(InTorch):
    """Marian of ``transformers``, with fused attention and its cache."""

    name = "transformers Marian"
    package = "transformers"

    def load(self, model: Transformer) -> None:
        from transformers import GenerationConfig, MarianMTModel
        from transformers.utils import logging

        logging.disable_progress_bar()
        with tempfile.TemporaryDirectory() as folder:
            save_marian(model, folder)
            self.net = MarianMTModel.from_pretrained(folder, attn_implementation="sdpa")
        c = model.config
        self.net.generation_config = GenerationConfig(
            pad_token_id=c.pad, eos_token_id=c.eos, decoder_start_token_id=c.bos
        )

    def logits(self, src: Tensor, tgt: Tensor) -> Tensor:
        return self.net(src, padding(src), decoder_input_ids=tgt, use_cache=False).logits

    def greedy(self, src: Tensor, n: int) -> list[list[int]]:
        return self.beam(src, n, 1)

    @torch.inference_mode()
    def beam(self, src: Tensor, n: int, size: int) -> list[list[int]]:
        real = padding(src)
        real = torch.ones_like(src) if real is None else real  # else it looks for padding itself
        options = {"max_new_tokens": n, "num_beams": size, "do_sample": False}
        return self.net.eval().generate(src, attention_mask=real, **options)[:, 1:].tolist()
