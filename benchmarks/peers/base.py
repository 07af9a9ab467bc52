"""What the peers have in common."""

import importlib.util
import tempfile
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import torch
from torch import Tensor, nn

from transformer_lit.data import PAD, Batch
from transformer_lit.model import Transformer
from transformer_lit.training import smoothed_cross_entropy

LONGEST = 1024  # positions for which peers make a table in advance
SMOOTHING = 0.1


class Peer:
    """A peer that is made of a model of ours."""

    name = ""
    package = ""  # what must be installed
    norm_first = False  # whether it can only be a model with pre-norm
    lacks: tuple[str, ...] = ()  # endings of the parameters that it has no place for
    remark = ""  # what is not the same
    exact = True  # whether its logits must be those of the model, up to rounding

    def __init__(self, model: Transformer, threads: int):
        self.config, self.threads = model.config, threads
        self.load(model)

    @classmethod
    def missing(cls) -> str:
        """Return what must be installed first, or nothing."""
        here = not cls.package or importlib.util.find_spec(cls.package.replace("-", "_"))
        return "" if here else cls.package

    def load(self, model: Transformer) -> None:
        """Take up the weights."""

    def difference(self, model: Transformer, src: Tensor, tgt: Tensor) -> float | None:
        """Return by how much its logits differ from those of the model at most, if it has any."""

    def close(self) -> None:
        """Give back what it holds beyond memory."""


class InTorch(Peer):
    """A peer in PyTorch: ``net`` is its module, with the embeddings and the output."""

    net: nn.Module
    optimizer: torch.optim.Optimizer

    def prepare(self) -> None:
        """Make ready to train."""
        self.net.train()
        self.optimizer = torch.optim.Adam(
            self.net.parameters(), lr=1e-5, betas=(0.9, 0.98), eps=1e-9, fused=True
        )

    def logits(self, src: Tensor, tgt: Tensor) -> Tensor:
        """Return the logits of the token after each of the target."""
        raise NotImplementedError

    @torch.inference_mode()
    def difference(self, model: Transformer, src: Tensor, tgt: Tensor) -> float:
        self.net.eval()
        return (self.logits(src, tgt) - model(src, tgt))[tgt != PAD].abs().max().item()

    def train(self, batch: Batch) -> None:
        """Make a step: forward, backward, optimiser."""
        self.optimizer.zero_grad()
        logits = self.logits(batch.src, batch.tgt_in)
        loss = smoothed_cross_entropy(logits, batch.gold, SMOOTHING) / batch.n_tokens
        loss.backward()
        self.optimizer.step()


class InProcesses(Peer):
    """A peer that works in processes of its own; ``folder`` is for what they read first."""

    pool: ProcessPoolExecutor

    def __init__(self, model: Transformer, threads: int):
        self.folder = tempfile.TemporaryDirectory()
        super().__init__(model, threads)

    def start(self, n: int, prepare: Callable[..., None], *arguments: Any) -> None:
        """Start ``n`` processes, each with a call of ``prepare``."""
        self.pool = ProcessPoolExecutor(n, get_context("spawn"), prepare, arguments)

    def close(self) -> None:
        self.pool.shutdown()
        self.folder.cleanup()


def sublayers(layer: nn.Module) -> list[tuple[nn.Module, nn.LayerNorm]]:
    """Return the sublayers of a layer of ours, each with the norm that follows it."""
    names = ("self_attention", "cross_attention", "feed_forward")
    parts = [getattr(layer, name) for name in names if hasattr(layer, name)]
    return [(part, getattr(layer, f"residual{i}").norm) for i, part in enumerate(parts, start=1)]


def padding(src: Tensor) -> Tensor | None:
    """Return what is not padding, or None where nothing is padded."""
    real = src != PAD
    return None if real.all() else real
