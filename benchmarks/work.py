"""What all works share: how much is measured, what was asked for, and what is found.

A row holds a speed: tokens a second, padding not counted, of the target while training and of what
is written while decoding; or what its unit says.
"""

import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from transformer_lit.data import BOS, EOS, PAD, UNK
from transformer_lit.model import Transformer, TransformerConfig

from .measure import Timing, judge, take_turns
from .peers import PEERS, Ours, Peer

EQUAL = 1e-4  # by how much logits may differ


@dataclass(frozen=True)
class Scale:
    """How much of it is measured."""

    models: dict[str, TransformerConfig]
    sentences: int = 64
    length: int = 32  # of a source, and of a target while training
    written: int = 64  # tokens, while decoding
    beams: int = 16  # sentences for a beam, so that there are as many rows
    budget: int = 2048  # tokens of a batch of real lengths
    pairs: int = 29_000  # as many as Multi30k has, of which those batches are made
    batches: int = 4  # of them measured
    lengths: tuple[int, ...] = (16, 32, 64, 128, 256, 512)
    batch_sizes: tuple[int, ...] = (1, 4, 16, 64, 256)
    widths: tuple[int, ...] = (64, 128, 256, 512, 1024)
    dates: int = 300


FULL = Scale(
    {
        "S": TransformerConfig(8000, d_model=256, n_heads=4, d_ff=1024, n_layers=3),
        "B": TransformerConfig(8000),  # the paper's base
    }
)
QUICK = Scale(
    {"S": TransformerConfig(50, d_model=16, n_heads=2, d_ff=32, n_layers=1)},
    sentences=4,
    length=6,
    written=5,
    beams=2,
    budget=128,
    pairs=60,
    batches=2,
    lengths=(4, 8),
    batch_sizes=(1, 2),
    widths=(8, 16),
    dates=5,
)


@dataclass(frozen=True)
class Choice:
    """What was asked for."""

    scale: Scale = FULL
    peers: tuple[type[Peer], ...] = tuple(PEERS)
    sizes: tuple[str, ...] = ("S", "B")
    rounds: int = 5
    threads: int = 2
    quiet: float = 0.05  # the share of the CPUs that others may use beside a sample
    folder: Path | None = None  # with a trained model, for the quality of int8
    data: Path | None = None  # Multi30k, to score it on

    def models(self) -> Iterator[tuple[str, TransformerConfig]]:
        """Yield the models that are measured."""
        for name, config in self.scale.models.items():
            if name in self.sizes:
                yield name, config

    def turns(self, subjects: dict[str, Callable[[], object]]) -> dict[str, Timing]:
        """Measure subjects in turn."""
        return take_turns(subjects, self.rounds, self.quiet)

    def able(self, what: str, *only: type[Peer]) -> list[type[Peer]]:
        """Return the peers, of these ones, that are installed and have a method so named."""
        chosen = [peer for peer in self.peers if not only or peer in only]
        return [p for p in chosen if getattr(p, what, None) and not p.missing()]


class Found:
    """What a work has found."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self.marks: list[dict[str, Any]] = []
        self.differences: dict[str, dict[str, float]] = {}  # of logits, by size and peer
        self.fits: list[dict[str, Any]] = []

    def add(self, setting: str, timings: dict[str, Timing], amount: float, unit: str) -> None:
        """Add a row for each peer."""
        for name, timing in timings.items():
            self.rows.append(
                {"setting": setting, "peer": name, "unit": unit, **timing.summary(amount)}
            )

    def note(self, setting: str, name: str, values: Sequence[float], unit: str) -> None:
        """Add a row of what is no speed."""
        middle = statistics.median(values)
        spread = {"median": middle, "min": min(values), "max": max(values), "samples": len(values)}
        self.rows.append({"setting": setting, "peer": name, "unit": unit, **spread})

    def value(self, setting: str, peer: type[Peer] | str) -> float | None:
        """Return what was measured, if it was."""
        name = peer if isinstance(peer, str) else peer.name
        for row in self.rows:
            if (row["setting"], row["peer"]) == (setting, name):
                return row["median"]
        return None

    def mark(self, what: str, value: float | None, wanted: float, unit: str = "×", **how) -> None:
        """Judge a value by its mark; None was not measured, and is not judged."""
        if value is not None:
            sign = "at least" if how.get("at_least", True) else "at most"
            verdict = judge(value, wanted, **how)
            self.marks.append(
                {
                    "what": what,
                    "wanted": f"{sign} {wanted:g}{unit}",
                    "value": f"{value:.3g}{unit}",
                    "verdict": verdict,
                }
            )

    def compare(
        self,
        setting: str,
        peer: type[Peer],
        wanted: float,
        ours: type[Peer] = Ours,
        note: str = "",
    ) -> None:
        """Judge our speed as a multiple of a peer's."""
        mine, theirs = self.value(setting, ours), self.value(setting, peer)
        ratio = mine / theirs if mine and theirs else None
        self.mark(f"{setting}: {ours.name} to {peer.name}{note}", ratio, wanted)


def model_for(config: TransformerConfig, peer: type[Peer] = Ours) -> Transformer:
    """Return a model with random weights, biases and norms too, that never says a special token.

    These have a vector of zeros, so that all sentences become as long as is asked for, and no peer
    must be kept from saying them.
    """
    torch.manual_seed(0)
    model = Transformer(replace(config, norm_first=peer.norm_first)).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 1:
                parameter.add_(0.1 * torch.randn(parameter.shape))
            if peer.lacks and name.endswith(peer.lacks):
                parameter.zero_()
        for special in (PAD, BOS, EOS):
            model.src_embedding.tokens.weight[special] = 0.0
    return model


def random_ids(config: TransformerConfig, b: int, t: int, seed: int = 0) -> Tensor:
    """Return ids of ordinary tokens."""
    numbers = torch.Generator().manual_seed(seed)
    return torch.randint(UNK + 1, config.vocab_size, (b, t), generator=numbers)


@contextmanager
def ready(
    choice: Choice, found: Found, size: str, config: TransformerConfig, peers: list[type[Peer]]
) -> Iterator[dict[str, Peer]]:
    """Give the peers with the weights of one model, after a look at whether they are equal."""
    src, tgt = random_ids(config, 4, 9, 1), random_ids(config, 4, 7, 2)
    src[1, 5:], tgt[2, 4:], tgt[:, 0] = PAD, PAD, BOS
    made: dict[str, Peer] = {}
    try:
        for kind in peers:
            model = model_for(config, kind)
            peer = made[kind.name] = kind(model, choice.threads)
            difference = peer.difference(model, src, tgt)
            if difference is not None:
                found.differences.setdefault(size, {})[kind.name] = difference
                if kind.exact and not difference <= EQUAL:
                    raise AssertionError(
                        f"{kind.name} differs from the model by {difference:.2g} in its logits, "
                        f"more than {EQUAL:g}: what it does is not the same work"
                    )
        yield made
    finally:
        for peer in made.values():
            peer.close()
