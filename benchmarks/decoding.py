"""Decoding: greedy and with a beam, one sentence and many, and what eight bits cost."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

from transformer_lit.data import BOS, date_pairs, read_multi30k
from transformer_lit.decoding import PackedLinear, greedy_search
from transformer_lit.model import Transformer
from transformer_lit.translation import Translator, bleu, exact_match

from .peers import (
    CTranslate2,
    CTranslate2Int8,
    CTranslate2Workers,
    Marian,
    Naive,
    Ours,
    OursCompiled,
    OursInt8,
    OursInWorkers,
    Peer,
    TorchTransformer,
    XTransformers,
)
from .training import multi30k_like
from .work import Choice, Found, model_for, random_ids, ready


def greedy(choice: Choice) -> Found:
    """Greedy decoding of a batch, with cache, all sentences of one length."""
    return decoding(choice, choice.scale.sentences, "greedy")


def single(choice: Choice) -> Found:
    """Greedy decoding of a single sentence."""
    only = (
        Ours,
        OursCompiled,
        Marian,
        XTransformers,
        CTranslate2,
        OursInt8,
        CTranslate2Int8,
    )
    return decoding(choice, 1, "single", only)


def beam(choice: Choice) -> Found:
    """A beam of 4."""
    return decoding(choice, choice.scale.beams, "beam")


def decoding(choice: Choice, sentences: int, what: str, only: tuple[type[Peer], ...] = ()) -> Found:
    """Write the same tokens with each peer."""
    found = Found()
    n = choice.scale.written
    for size, config in choice.models():
        src = random_ids(config, sentences, choice.scale.length, 5)
        method = "beam" if what == "beam" else "greedy"
        slow = {OursCompiled} if sentences > 1 else set()  # made for few rows
        if what == "greedy" and size == "B":
            slow.add(TorchTransformer)  # more than a minute each
        able = [peer for peer in choice.able(method, *only) if peer not in slow]
        with ready(choice, found, size, config, able) as peers:
            subjects = {name: writing(peer, method, src, n) for name, peer in peers.items()}
            found.add(size, choice.turns(subjects), sentences * n, "tokens/s")
        mark_decoding(found, size, what)
    return found


def writing(peer: Peer, method: str, src: Tensor, n: int) -> Callable[[], object]:
    """Return what lets a peer write."""
    if method == "beam":
        return lambda: peer.beam(src, n, 4)
    return lambda: peer.greedy(src, n)


def mark_decoding(found: Found, size: str, what: str) -> None:
    """Judge our decoding by its marks."""
    if what == "greedy":
        found.compare(size, CTranslate2, 1.0)
        found.compare(size, CTranslate2Workers, 0.9, OursInWorkers)
        found.compare(size, Marian, 1.25)
        found.compare(size, Naive, {"S": 8, "B": 12}[size])
        found.compare(size, CTranslate2Int8, 0.8, OursInt8)
    elif what == "beam":
        found.compare(size, CTranslate2, 0.9)
        found.compare(size, Marian, 1.3)
    else:
        found.compare(size, CTranslate2, 1.1)
        found.compare(size, CTranslate2, 1.1, OursCompiled)


# What PyTorch calls the operations of each kind.
KINDS = {
    "products of matrices": (
        "mkldnn::_linear_pointwise",
        "aten::addmm",
        "aten::mm",
        "aten::bmm",
    ),
    "attention": ("aten::_scaled_dot_product_flash_attention_for_cpu", "aten::_softmax"),
    "probabilities of the vocabulary": ("aten::_log_softmax", "aten::amax", "aten::argmax"),
    "copies": ("aten::copy_", "aten::cat", "aten::stack", "aten::index_select", "aten::index"),
}


def shares(choice: Choice) -> Found:
    """Greedy decoding: how much of the time of PyTorch's operations each kind takes."""
    found = Found()
    size, config = next(choice.models())
    ours = Ours(model_for(config), choice.threads)
    for sentences in (choice.scale.sentences, 1):
        src = random_ids(config, sentences, choice.scale.length, 5)
        ours.greedy(src, choice.scale.written)
        with profile(activities=[ProfilerActivity.CPU]) as profiler:
            ours.greedy(src, choice.scale.written)
        times = by_kind(profiler.key_averages())
        for kind, share in times.items():
            found.note(f"{size}, {sentences} at once", kind, [100 * share], "%")
    return found


def by_kind(events: Iterable[Any]) -> dict[str, float]:
    """Return the share of each kind in the time that operations took themselves."""
    times = dict.fromkeys([*KINDS, "all else"], 0.0)
    for event in events:
        kind = next((kind for kind, names in KINDS.items() if event.key in names), "all else")
        times[kind] += event.self_cpu_time_total
    return {kind: seconds / sum(times.values()) for kind, seconds in times.items()}


@torch.inference_mode()
def rows(choice: Choice) -> Found:
    """The products of a step alone, for one sentence and many, and a look at all its weights."""
    found = Found()
    before = torch.get_num_threads()
    for size, config in choice.models():
        weights = used_by_a_token(model_for(config))
        columns = [w.t().contiguous().t() for w in weights]
        blocks = [PackedLinear(w, None).eval() for w in weights]
        halves = [torch.stack(w.t().chunk(2, dim=1)) for w in weights]
        together = torch.cat([w.flatten() for w in weights])
        for n in (1, choice.scale.sentences):
            xs = [torch.randn(n, w.size(1)) for w in weights]
            subjects: dict[str, Callable[[], object]] = {
                "by rows": partial(multiply, F.linear, xs, weights),
                "by columns": partial(multiply, F.linear, xs, columns),
                "packed": partial(multiply, lambda x, layer: layer(x), xs, blocks),
            }
            if n == 1:
                twice = [x.expand(2, *x.shape) for x in xs]
                subjects["in two halves"] = partial(multiply, torch.bmm, twice, halves)
                subjects["the sum of the weights"] = together.sum
            for threads in (1, choice.threads):
                torch.set_num_threads(threads)
                for name, timing in choice.turns(subjects).items():
                    milliseconds = [1000 * s for s in timing.samples]
                    found.note(f"{size}, rows: {n}, threads: {threads}", name, milliseconds, "ms")
    torch.set_num_threads(before)
    return found


def used_by_a_token(model: Transformer) -> list[Tensor]:
    """Return the matrices of a step of decoding, in their order."""
    found = []
    for name, layer in [*model.decoder.named_modules(), ("output", model.output)]:
        if isinstance(layer, nn.Linear):
            queries = slice(
                model.config.d_model if name.endswith("cross_attention.in_proj") else None
            )
            found.append(layer.weight[queries])
    return found


def multiply(
    product: Callable[[Tensor, Any], Tensor], xs: list[Tensor], matrices: list[Any]
) -> None:
    """Multiply each matrix by its rows."""
    for x, matrix in zip(xs, matrices, strict=True):
        product(x, matrix)


def leaving(choice: Choice) -> Found:
    """Greedy decoding of sentences of mixed lengths, where ended ones leave the batch, or stay."""
    found = Found()
    size, config = next(choice.models())
    sentences = choice.scale.sentences
    texts = [target for _, target in multi30k_like(config, sentences)]
    lengths = torch.tensor([len(text.split()) for text in texts])
    src = random_ids(config, sentences, choice.scale.length, 5)
    model = Ending(model_for(config), lengths)
    longest = int(lengths.max()) + 1
    subjects = {
        "those that have ended leave": lambda: greedy_search(model, src, max_len=longest),
        "all stay to the end": lambda: stay(model, src, longest),
    }
    timings = choice.turns(subjects)
    found.add(size, timings, int(lengths.sum()), "tokens/s")
    values = [found.value(size, name) for name in subjects]
    found.mark(f"{size}: ended sentences leave, to all stay", values[0] / values[1], 1.4)
    return found


class Ending:
    """A model whose sentence ``i`` ends after ``lengths[i]`` tokens, as if it were trained to."""

    training = False

    def __init__(self, net: Transformer, lengths: Tensor):
        self.net, self.config, self.lengths = net, net.config, lengths

    def encode(self, src: Tensor) -> tuple[Tensor, Tensor | None]:
        """Read the source."""
        return self.net.encode(src)

    def new_cache(self) -> "EndingCache":
        """Return a cache that knows how long each sentence becomes."""
        return EndingCache(self.net.new_cache(), self.lengths)

    def decode(self, tgt: Tensor, memory: Tensor, mask: Tensor | None, cache: Any) -> Tensor:
        """Return the logits, in which the end is certain where it is due."""
        due = cache.lengths == cache.inner.length
        logits = self.net.decode(tgt, memory, mask, cache.inner)
        logits[due, -1, self.config.eos] = 1e4
        return logits


class EndingCache:
    """A cache, and the lengths of the sentences in it."""

    def __init__(self, inner: Any, lengths: Tensor):
        self.inner, self.lengths = inner, lengths

    def select(self, rows: Tensor, sources: Tensor) -> None:
        """Keep these rows."""
        self.inner.select(rows, sources)
        self.lengths = self.lengths[rows]


@torch.inference_mode()
def stay(model: Ending, src: Tensor, n: int) -> Tensor:
    """Write ``n`` tokens for each source with the cache, whether a sentence has ended or not."""
    memory, mask = model.encode(src)
    cache = model.new_cache()
    last = torch.full((len(src), 1), BOS)
    said = [last]
    for _ in range(n):
        last = model.decode(last, memory, mask, cache)[:, -1].argmax(dim=-1, keepdim=True)
        said.append(last)
    return torch.cat(said, dim=1)


def quality(choice: Choice) -> Found:
    """What eight bits cost in quality, on a trained model: that of dates, or one that is given."""
    found = Found()
    if choice.folder and choice.data:
        translator, name = Translator.load(choice.folder), choice.folder.name
        pairs = read_multi30k(choice.data).test
    else:
        translator, name = Translator.dates(), "dates"
        pairs = date_pairs(choice.scale.dates, split="test")
    sources, references = map(list, zip(*pairs, strict=True))
    rounded = Translator(OursInt8(translator.model, choice.threads).net, *translator.tokenizers)
    scores = {}
    for kind, one in (("float32", translator), ("int8", rounded)):
        said = one.translate(sources)
        scores[kind], _ = bleu(said, references)
        for unit, score in (("BLEU", scores[kind]), ("% exact", exact_match(said, references))):
            found.note(f"{name}, {unit}", kind, [score], unit)
    apart = abs(scores["float32"] - scores["int8"])
    found.mark(f"{name}: float32 and int8 apart", apart, 0.2, " BLEU", at_least=False, tie=False)
    return found
