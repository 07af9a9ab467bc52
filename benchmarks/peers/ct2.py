"""CTranslate2."""

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from transformer_lit.data import BOS, EOS, PAD, SPECIAL_TOKENS, UNK
from transformer_lit.embedding import sinusoidal_positions
from transformer_lit.model import Transformer

from .base import LONGEST, InProcesses, sublayers


def vocabulary(size: int) -> list[str]:
    """Return names for the tokens of a model, whatever they mean."""
    return [*SPECIAL_TOKENS, *(str(i) for i in range(len(SPECIAL_TOKENS), size))]


def specification(model: Transformer, tokens: list[str]):
    """Return CTranslate2's description of a model, with its weights."""
    from ctranslate2.specs import TransformerSpec

    c = model.config
    spec = TransformerSpec.from_config(c.n_layers, c.n_heads, pre_norm=c.norm_first)
    spec.register_source_vocabulary(tokens)
    spec.register_target_vocabulary(tokens)
    spec.config.bos_token = spec.config.decoder_start_token = SPECIAL_TOKENS[BOS]
    spec.config.eos_token = SPECIAL_TOKENS[EOS]
    spec.config.unk_token = SPECIAL_TOKENS[UNK]

    def put(place, linear: nn.Linear, rows: slice = slice(None)) -> None:
        place.weight = linear.weight[rows].detach().numpy()
        if linear.bias is not None:
            place.bias = linear.bias[rows].detach().numpy()

    def put_norm(place, norm: nn.LayerNorm) -> None:
        place.gamma, place.beta = norm.weight.detach().numpy(), norm.bias.detach().numpy()

    table = sinusoidal_positions(LONGEST, c.d_model).numpy()
    for ours, theirs in ((model.encoder, spec.encoder), (model.decoder, spec.decoder)):
        theirs.position_encodings.encodings = table
        for layer, there in zip(ours.layers, theirs.layer, strict=True):
            for part, norm in sublayers(layer):
                if part is layer.feed_forward:
                    place = there.ffn
                    put(place.linear_0, part.linear1)
                    put(place.linear_1, part.linear2)
                elif part is layer.self_attention:
                    place = there.self_attention
                    put(place.linear[0], part.in_proj)
                    put(place.linear[1], part.out_proj)
                else:
                    place = there.attention
                    put(place.linear[0], part.in_proj, slice(c.d_model))
                    put(place.linear[1], part.in_proj, slice(c.d_model, None))
                    put(place.linear[2], part.out_proj)
                put_norm(place.layer_norm, norm)
    spec.encoder.embeddings[0].weight = model.src_embedding.tokens.weight.detach().numpy()
    spec.decoder.embeddings.weight = model.tgt_embedding.tokens.weight.detach().numpy()
    put(spec.decoder.projection, model.output)
    spec.validate()
    spec.optimize()
    return spec


translator: Any  # in the process of a peer


def start_translator(folder: str, options: dict[str, Any]) -> None:
    """Load a model into a process of its own."""
    global translator
    import ctranslate2

    translator = ctranslate2.Translator(folder, **options)


def translate(words: list[list[str]], options: dict[str, Any]) -> list[tuple[list[str], Any]]:
    """Return the tokens written for each sentence, and their logits if they are asked for."""
    found = translator.translate_batch(words, **options)
    return [
        (r.hypotheses[0], [np.array(x) for x in r.logits[0]] if r.logits else []) for r in found
    ]


class CTranslate2(InProcesses):
    """CTranslate2: C++ made for decoding.

    In a process of its own: it brings its own threads, and where there are more threads than
    processors, those of PyTorch go to sleep after each small operation.
    """

    name = "CTranslate2"
    package = "ctranslate2"
    compute_type = "float32"
    workers = False  # one for each thread, or one with all threads

    def load(self, model: Transformer) -> None:
        self.tokens = vocabulary(model.config.vocab_size)
        self.ids = {token: i for i, token in enumerate(self.tokens)}
        specification(model, self.tokens).save(self.folder.name)
        options = {
            "compute_type": self.compute_type,
            "inter_threads": self.threads if self.workers else 1,
            "intra_threads": 1 if self.workers else self.threads,
        }
        self.start(1, start_translator, self.folder.name, options)

    def translate(self, src: Tensor, **options: Any) -> list[tuple[list[str], Any]]:
        """Let the process translate ids, given to it as the tokens that it asks for."""
        words = [[self.tokens[i] for i in row if i != PAD] for row in src.tolist()]
        return self.pool.submit(translate, words, options).result()

    def greedy(self, src: Tensor, n: int) -> list[list[int]]:
        return self.beam(src, n, 1)

    def beam(self, src: Tensor, n: int, size: int) -> list[list[int]]:
        found = self.translate(
            src,
            beam_size=size,
            max_decoding_length=n,
            max_batch_size=-(-len(src) // self.threads) if self.workers else 0,
        )
        return [[self.ids[token] for token in tokens] for tokens, _ in found]

    @torch.inference_mode()
    def difference(self, model: Transformer, src: Tensor, tgt: Tensor) -> float:
        """Compare the logits that it tells, for the tokens that it chooses itself."""
        found = self.translate(
            src, beam_size=1, max_decoding_length=tgt.size(1), return_logits_vocab=True
        )
        theirs = torch.tensor(np.array([logits for _, logits in found]))
        said = torch.tensor([[self.ids[token] for token in tokens] for tokens, _ in found])
        opened = torch.cat([torch.full((len(src), 1), model.config.bos), said], dim=1)
        allowed = theirs > torch.finfo(theirs.dtype).min  # the end may not come first
        return (theirs - model(src, opened[:, :-1]))[allowed].abs().max().item()


class CTranslate2Workers(CTranslate2):
    """CTranslate2 at its best: as many workers as threads."""

    name = "CTranslate2, a worker a thread"
    workers = True


class CTranslate2Int8(CTranslate2):
    """CTranslate2 with weights in eight bits."""

    name = "CTranslate2 int8"
    remark = "rounded to eight bits, so not equal"
    exact = False
    compute_type = "int8"


class CTranslate2Int8Workers(CTranslate2Int8):
    """The same, with as many workers as threads."""

    name = "CTranslate2 int8, a worker a thread"
    workers = True
