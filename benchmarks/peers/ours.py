"""The package itself: as a user has it, in several processes, in eight bits, and the naive loop."""

import copy
import tempfile
import warnings
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import torch
from torch import Tensor, nn

from transformer_lit.data import Batch
from transformer_lit.decoding import beam_search, greedy_search
from transformer_lit.model import Transformer
from transformer_lit.multi_head import MultiHeadAttention, split_heads
from transformer_lit.training import Engine

from .base import SMOOTHING, InTorch, Peer


class Ours(InTorch):
    """The package, as a user has it."""

    name = "transformer_lit"

    def load(self, model: Transformer) -> None:
        self.net = copy.deepcopy(model)
        self.engine = Engine()
        self.engine.prepare(self.net)

    def logits(self, src: Tensor, tgt: Tensor) -> Tensor:
        return self.net(src, tgt)

    def train(self, batch: Batch) -> None:
        """Make a step as `Trainer` does, with its look at the gradient's norm."""
        self.optimizer.zero_grad()
        self.engine.gradient([batch], [0], batch.n_tokens, SMOOTHING)
        self.engine.step(self.optimizer, clip=0.0)

    def greedy(self, src: Tensor, n: int) -> list[list[int]]:
        return [h.ids for h in greedy_search(self.net.eval(), src, max_len=n)]

    def beam(self, src: Tensor, n: int, size: int) -> list[list[int]]:
        found = beam_search(self.net.eval(), src, size, max_len=n)
        return [best.ids for best, *_ in found]


class Naive(Peer):
    """The loop that comes to mind first: at each step all of the target, from its beginning."""

    name = "transformer_lit, no cache"

    def load(self, model: Transformer) -> None:
        self.net = model.eval()

    @torch.inference_mode()
    def greedy(self, src: Tensor, n: int) -> list[list[int]]:
        memory, mask = self.net.encode(src)
        tgt = torch.full((len(src), 1), self.config.bos)
        for _ in range(n):
            last = self.net.decode(tgt, memory, mask)[:, -1]
            tgt = torch.cat([tgt, last.argmax(dim=-1, keepdim=True)], dim=1)
        return tgt[:, 1:].tolist()


class OursInWorkers(Peer):
    """The package in as many processes as there are threads, each with a part of the batch."""

    name = "transformer_lit, a worker a thread"

    def load(self, model: Transformer) -> None:
        self.folder = tempfile.TemporaryDirectory()
        model.save(self.folder.name)
        self.pool = ProcessPoolExecutor(
            self.threads, get_context("spawn"), start_worker, (self.folder.name,)
        )

    def greedy(self, src: Tensor, n: int) -> list[list[int]]:
        parts = src.chunk(self.threads)
        found = self.pool.map(ask_worker, parts, [n] * len(parts))
        return [ids for part in found for ids in part]

    def close(self) -> None:
        self.pool.shutdown()
        self.folder.cleanup()


worker: Ours  # in each of its processes


def start_worker(folder: str) -> None:
    """Load the model into a process of `OursInWorkers`."""
    global worker
    torch.set_num_threads(1)
    worker = Ours(Transformer.load(folder), 1)


def ask_worker(src: Tensor, n: int) -> list[list[int]]:
    """Translate in a process of `OursInWorkers`."""
    return worker.greedy(src, n)


class OursInt8(Ours):
    """The package with the weights of all linear layers in eight bits, by PyTorch's quantiser."""

    name = "transformer_lit int8"
    remark = "rounded to eight bits, so not equal"
    exact = False
    train = None

    def load(self, model: Transformer) -> None:
        self.net = int8(model)


class InParts(MultiHeadAttention):
    """Attention whose projections are layers of their own, which a quantiser can replace."""

    parts: nn.ModuleDict  # by the first and the last of W^Q, W^K, W^V that each holds

    def _project(self, x: Tensor, first: int, last: int) -> list[Tensor]:
        projected = self.parts[f"{first}{last}"](x)
        return [split_heads(y, self.n_heads) for y in projected.split(self.d_model, dim=-1)]


def int8(model: Transformer) -> Transformer:
    """Return a copy of a model for inference, quantised dynamically: weights once, inputs anew."""
    model = copy.deepcopy(model).eval()
    model.output.weight = nn.Parameter(model.output.weight.detach())  # the embedding stays exact
    for name, attention in list(model.named_modules()):
        if isinstance(attention, MultiHeadAttention):
            cuts = [(0, 1), (1, 3)] if name.endswith("cross_attention") else [(0, 3)]
            parts = {f"{a}{b}": rows(attention.in_proj, a, b, attention.d_model) for a, b in cuts}
            attention.parts = nn.ModuleDict(parts)
            attention.__class__ = InParts
            del attention.in_proj
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that PyTorch will drop it, for one that needs a compiler
        return torch.ao.quantization.quantize_dynamic(model, {nn.Linear}, torch.qint8, inplace=True)


def rows(linear: nn.Linear, first: int, last: int, d: int) -> nn.Linear:
    """Return the layer that computes a part of a layer's output."""
    part = nn.Linear(d, (last - first) * d, bias=linear.bias is not None)
    part.weight = nn.Parameter(linear.weight[first * d : last * d].detach())
    if linear.bias is not None:
        part.bias = nn.Parameter(linear.bias[first * d : last * d].detach())
    return part
