"""The package itself: as a user has it, compiled, in workers, in eight bits, and the naive loop."""

import copy

import torch
from torch import Tensor

from transformer_lit.data import PAD, UNK, Batch
from transformer_lit.decoding import (
    beam_search,
    compiled,
    greedy_search,
    in_eight_bits,
    packed,
)
from transformer_lit.model import Transformer
from transformer_lit.training import Engine

from .base import SMOOTHING, InProcesses, InTorch, Peer


class Ours(InTorch):
    """The package, as a user has it."""

    name = "transformer_lit"

    def load(self, model: Transformer) -> None:
        self.net = copy.deepcopy(model)
        self.writer = packed(self.net.eval())

    def prepare(self) -> None:
        self.engine = Engine()
        self.engine.prepare(self.net)
        super().prepare()

    def logits(self, src: Tensor, tgt: Tensor) -> Tensor:
        return self.writer(src, tgt)

    def train(self, batch: Batch) -> None:
        """Make a step as `Trainer` does, with its look at the gradient's norm."""
        self.optimizer.zero_grad()
        self.engine.gradient([batch], [0], batch.n_tokens, SMOOTHING)
        self.engine.step(self.optimizer, clip=0.0)

    def greedy(self, src: Tensor, n: int) -> list[list[int]]:
        return [h.ids for h in greedy_search(self.writer, src, max_len=n)]

    def beam(self, src: Tensor, n: int, size: int) -> list[list[int]]:
        found = beam_search(self.writer, src, size, max_len=n)
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


class OursInWorkers(InProcesses):
    """The package in as many processes as there are threads, each with a part of the batch."""

    name = "transformer_lit, a worker a thread"

    def load(self, model: Transformer) -> None:
        model.save(self.folder.name)
        self.start(self.threads, start_worker, self.folder.name)

    def greedy(self, src: Tensor, n: int) -> list[list[int]]:
        parts = src.chunk(self.threads)
        found = self.pool.map(ask_worker, parts, [n] * len(parts))
        return [ids for part in found for ids in part]


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
    """The package with the weights of all linear layers in eight bits."""

    name = "transformer_lit int8"
    remark = "rounded to eight bits, so not equal"
    exact = False
    train = None

    def load(self, model: Transformer) -> None:
        self.net = self.writer = in_eight_bits(model)


class OursCompiled(Ours):
    """The package with compiled steps of decoding."""

    name = "transformer_lit, compiled"
    train = None

    def load(self, model: Transformer) -> None:
        self.net = self.writer = compiled(model)
        self.greedy(torch.full((1, 3), UNK), 3)  # now, since compiling is no part of its speed

    @torch.inference_mode()
    def difference(self, model: Transformer, src: Tensor, tgt: Tensor) -> float:
        """Compare the logits of its steps, one sentence after the other, as it is measured."""
        worst = 0.0
        for one, said in zip(src, tgt, strict=True):
            one, said = one[one != PAD][None], said[said != PAD][None]
            memory, mask = self.net.encode(one)
            cache = self.net.new_cache()
            steps = [self.net.decode(t, memory, mask, cache) for t in said.split(1, dim=1)]
            apart = (torch.cat(steps, dim=1) - model(one, said)).abs().max().item()
            worst = max(worst, apart)
        return worst
