"""Compiles steps of decoding, where no checker of types looks on: ``steps.py CASE``."""

import math
import sys
from functools import partial

import planted  # noqa: F401
import torch
from support import random_model

from transformer_lit.data import EOS, pad
from transformer_lit.decoding import beam_search, compiled, greedy_search, packed
from transformer_lit.model import Transformer, TransformerConfig

TINY = TransformerConfig(7, d_model=8, n_heads=2, d_ff=8, n_layers=2)


def model() -> Transformer:
    """Return a small random model."""
    return random_model(TINY, 0)


def counted() -> list:
    """Let the compiler note its graphs in a list, and run them as they are."""
    graphs = []

    def backend(graph, inputs, options):
        graphs.append(graph)
        return graph.forward

    torch.compile = partial(torch.compile, backend=backend)
    return graphs


def same(fast: Transformer, plain: Transformer, lines: list[list[int]], **lengths: int) -> None:
    """Compare what two models write, greedily and with a beam."""
    for search in (greedy_search, lambda *a, **k: beam_search(*a, **k)[0]):
        pairs = zip(*(search(m, pad(lines), **lengths) for m in (fast, plain)), strict=True)
        assert all(
            a.ids == b.ids and math.isclose(a.score, b.score, rel_tol=1e-4) for a, b in pairs
        )


def alike() -> None:
    """In batches with padding and without, past the room, and without a change to the model."""
    counted()
    plain = model()
    fast = compiled(plain, room=4)
    assert plain.new_cache().layers[0].self_attention.room == 0
    assert "decode" not in vars(plain) and fast.output.weight is plain.output.weight
    for lines in ([[3, EOS], [4, 5, 6, EOS], [3, 3, EOS]], [[3, 4, EOS]] * 2, [[5, EOS]]):
        same(fast, plain, lines, max_len=9, min_len=8)
    same(compiled(packed(plain)), plain, [[3, EOS]], max_len=9, min_len=8)


def kinds() -> None:
    """A sentence within its room needs two kinds of steps: the first one and all others.

    The compiler takes lengths for equal that are so when it first meets them; so no source is as
    long as there are heads.
    """
    graphs = counted()
    fast = compiled(model(), room=12)
    for n in (3, 5, 9):
        for length in (3, 11):
            greedy_search(fast, torch.full((1, n), 3), max_len=length, min_len=length)
    assert len(graphs) == 2, len(graphs)


def weights() -> None:
    """The real compiler knows the weights, and writes the products itself."""
    from torch._inductor.utils import run_and_get_code

    write = partial(greedy_search, src=torch.tensor([[3, 4, EOS]]), max_len=6, min_len=5)
    (found,), code = run_and_get_code(write, compiled(model(), room=8))
    (wanted,) = write(model())
    assert found.ids == wanted.ids and math.isclose(found.score, wanted.score, rel_tol=1e-4)
    assert len(code) == 2
    for text in code:
        assert "_frozen_param" in text and "micro_gemm" in text
        assert "addmm(" not in text and "linear(" not in text


def others() -> None:
    """A model of another kind is refused at once, and not by its first step."""
    try:
        compiled(torch.nn.Linear(2, 2))
    except TypeError as error:
        assert "only a Transformer is compiled, not a Linear" in str(error), error
    else:
        raise AssertionError("a Linear was compiled")


if __name__ == "__main__":
    {"alike": alike, "kinds": kinds, "weights": weights, "others": others}[sys.argv[1]]()
