"""Training: a step on full batches and on real lengths, and its memory."""

import math
import random
from collections.abc import Callable
from dataclasses import replace

import torch

from transformer_lit.data import UNK, Batch, TokenBatches, Tokenizer
from transformer_lit.gpu import utilisation
from transformer_lit.model import TransformerConfig

from .measure import fresh, peak_memory, product
from .peers import PEERS, Labml, Marian, Ours, Peer, TorchTransformer, XTransformers
from .work import FULL, QUICK, Choice, Found, Scale, model_for, random_ids, ready


def full_batches(choice: Choice) -> Found:
    """A training step on full batches, without and with dropout."""
    found = Found()
    scale = choice.scale
    multiply, operations = product(2048 if scale is FULL else 64)
    for size, config in choice.models():
        src = random_ids(config, scale.sentences, scale.length, 3)
        batch = Batch(src, random_ids(config, scale.sentences, scale.length + 1, 4))
        for dropout in (0.0, 0.1):
            setting = f"{size}, dropout {dropout:g}"
            own = replace(config, dropout=dropout)
            with ready(choice, found, size, own, choice.able("train")) as peers:
                timings = choice.turns(train_steps(peers, [batch]) | {"sgemm": multiply})
            found.add(setting, {"sgemm": timings.pop("sgemm")}, operations / 1e9, "GFLOP/s")
            found.add(setting, timings, batch.n_tokens, "tokens/s")
            found.compare(setting, TorchTransformer, 1.15)
            mark_best(found, setting)
            mark_share(found, setting, config, scale.length, {"S": 68, "B": 82}[size])
    return found


def train_steps(peers: dict[str, Peer], batches: list[Batch]) -> dict[str, Callable[[], None]]:
    """Return what trains each peer on some batches."""

    def steps(peer: Peer) -> Callable[[], None]:
        peer.prepare()
        return lambda: [peer.train(batch) for batch in batches]

    return {name: steps(peer) for name, peer in peers.items()}


def mark_best(found: Found, setting: str) -> None:
    """Judge our speed by that of the best other PyTorch peer."""
    others = (TorchTransformer, Marian, XTransformers, Labml)
    speeds = {peer: found.value(setting, peer) for peer in others}
    best = max((p for p in others if speeds[p]), key=lambda p: speeds[p], default=None)
    if best:
        found.compare(setting, best, 1.0, note=", the best in PyTorch")


def mark_share(
    found: Found, setting: str, config: TransformerConfig, length: int, wanted: float
) -> None:
    """Judge the share of the operations of a product that our training step reaches."""
    tokens, peak = found.value(setting, Ours), found.value(setting, "sgemm")
    share = 100 * utilisation(config, tokens, length, peak * 1e9) if tokens and peak else None
    found.mark(f"{setting}: share of sgemm", share, wanted, " %")


def real_lengths(choice: Choice) -> Found:
    """A training step on sentences as long as those of Multi30k, sorted and not."""
    found = Found()
    scale = choice.scale
    size, config = next(choice.models())
    config = replace(config, dropout=0.1)
    pairs = multi30k_like(config, scale.pairs)
    data = TokenBatches(pairs, Numbers(), scale.budget)
    plans = {"sorted": data.plan(0), "as they come": in_any_order(data, scale.budget)}
    few = {kind: spread(list(map(data.make, plan)), scale.batches) for kind, plan in plans.items()}
    peers = choice.able("train", Ours, TorchTransformer, Marian)
    with ready(choice, found, size, config, peers) as made:
        timings = choice.turns(
            {
                f"{name}, {kind}": step
                for kind, batches in few.items()
                for name, step in train_steps(made, batches).items()
            }
        )
    for kind, batches in few.items():
        chosen = {peer.name: timings[f"{peer.name}, {kind}"] for peer in peers}
        found.add(f"{size}, {kind}", chosen, sum(b.n_tokens for b in batches), "tokens/s")
        found.note(f"{size}, {kind}", "filled", [100 * filled(data, plans[kind])], "%")
    by_length, mixed = (found.value(f"{size}, {kind}", Ours) for kind in plans)
    ratio = by_length / mixed if by_length and mixed else None
    found.mark(f"{size}: sorted, to as they come, both of {scale.budget} places", ratio, 2.4)
    found.mark(f"{size}: filled", 100 * filled(data, plans["sorted"]), 95, " %", tie=False)
    return found


def filled(data: TokenBatches, plan: list[list[int]]) -> float:
    """Return the share of places, of both sides, that are no padding."""
    sides = (data.src, data.tgt)
    places = sum(
        len(numbers) * max(len(side[i]) for i in numbers) for numbers in plan for side in sides
    )
    return sum(len(ids) for side in sides for ids in side) / places


def multi30k_like(config: TransformerConfig, n: int) -> list[tuple[str, str]]:
    """Return pairs of random tokens, as text, whose lengths are spread as those of Multi30k.

    The logarithms of its English lengths (8,000 tokens of BPE) have the mean 2.69 and the deviation
    0.30; those of the ratio of German to English 0.09 and 0.16; the longest has 49 tokens.
    """
    numbers = random.Random(0)

    def tokens(length: int) -> str:
        return " ".join(str(numbers.randrange(UNK + 1, config.vocab_size)) for _ in range(length))

    pairs = []
    for _ in range(n):
        source = min(48, max(4, round(math.exp(numbers.gauss(2.69, 0.30))) - 1))
        target = min(54, max(3, round(source * math.exp(numbers.gauss(0.09, 0.16)))))
        pairs.append((tokens(source), tokens(target)))
    return pairs


class Numbers(Tokenizer):
    """A tokeniser whose tokens are numbers."""

    def __init__(self) -> None:
        pass

    def encode_batch(self, texts: list[str]) -> list[list[int]]:
        """Return the ids that the texts name."""
        return [[int(word) for word in text.split()] for text in texts]


def in_any_order(data: TokenBatches, budget: int) -> list[list[int]]:
    """Return batches of no more places than ``budget``, of pairs as they come."""
    batches: list[list[int]] = [[]]
    for i in range(len(data)):
        longest = max(map(data.length, [*batches[-1], i]))
        if (len(batches[-1]) + 1) * longest > budget:
            batches.append([])
        batches[-1].append(i)
    return batches


def spread(batches: list[Batch], n: int) -> list[Batch]:
    """Return ``n`` batches, from the shortest sentences to the longest."""
    batches = sorted(batches, key=lambda batch: batch.tgt.size(1))
    return [batches[(2 * i + 1) * len(batches) // (2 * n)] for i in range(n)]


def memory(choice: Choice) -> Found:
    """The most memory that a process holds which imports a peer and makes three training steps."""
    found = Found()
    for size, _ in choice.models():
        setting = f"{size}, dropout 0.1"
        for peer in choice.able("train"):
            quick = ["--quick"] if choice.scale is QUICK else []
            most = fresh("-m", "benchmarks.memory", peer.__name__, size, *quick)
            found.note(setting, peer.name, [int(most) / 2**20], "MiB")
        here = {row["peer"]: row["median"] for row in found.rows if row["setting"] == setting}
        ours = here.pop(Ours.name, None)
        if ours and here:
            what, how = f"{setting}: to the leanest peer", {"at_least": False, "tie": False}
            found.mark(what, ours / min(here.values()), 1.0, **how)
    return found


def memory_of(name: str, size: str, scale: Scale) -> int:
    """Return the peak memory of this process after it has trained a peer for three steps."""
    peer = next(p for p in PEERS if p.__name__ == name)
    config = replace(scale.models[size], dropout=0.1)
    src = random_ids(config, scale.sentences, scale.length, 3)
    batch = Batch(src, random_ids(config, scale.sentences, scale.length + 1, 4))
    made = peer(model_for(config, peer), torch.get_num_threads())
    made.prepare()
    for _ in range(3):
        made.train(batch)
    return peak_memory()
