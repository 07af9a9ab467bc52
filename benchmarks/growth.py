"""How the time of a step grows."""

from dataclasses import replace

from transformer_lit.data import Batch
from transformer_lit.model import TransformerConfig

from .decoding import writing
from .measure import Timing, exponent
from .peers import CTranslate2, Ours, TorchTransformer
from .training import train_steps
from .work import Choice, Found, random_ids, ready


def growth(choice: Choice) -> Found:
    """How the time of a step grows with the length, the batch and the width."""
    found = Found()
    scale = choice.scale
    few = replace(choice, rounds=min(3, choice.rounds))
    size, config = next(choice.models())
    b, t = scale.sentences // 4, scale.length
    width = config.d_model // config.n_heads

    def wide(d: int) -> TransformerConfig:
        return replace(config, d_model=d, n_heads=max(1, d // width), d_ff=4 * d)

    axes = {
        "length": [(x, config, b // 2, x) for x in scale.lengths],
        "batch": [(x, config, x, t) for x in scale.batch_sizes],
        "width": [(x, wide(x), b, t) for x in scale.widths],
    }
    peers = choice.able("train", Ours, TorchTransformer)
    for axis, points in axes.items():
        for x, own, sentences, length in points:
            src = random_ids(own, sentences, length, 3)
            batch = Batch(src, random_ids(own, sentences, length + 1, 4))
            with ready(choice, found, f"{axis} {x}", own, peers) as made:
                timings = few.turns(train_steps(made, [batch]))
            found.add(f"training, {axis} {x}", timings, batch.n_tokens, "tokens/s")
            note_growth(found, f"training, {axis}", x, timings)
    n = scale.written // 4
    for x in scale.batch_sizes:
        src = random_ids(config, x, t, 5)
        able = choice.able("greedy", Ours, CTranslate2)
        with ready(choice, found, size, config, able) as made:
            subjects = {k: writing(p, "greedy", src, n) for k, p in made.items()}
            timings = few.turns(subjects)
        found.add(f"greedy, batch {x}", timings, x * n, "tokens/s")
        note_growth(found, "greedy, batch", x, timings)
    for fit in found.fits:
        fit["exponent"] = exponent(fit["x"], fit["seconds"])
        fit["last_exponent"] = exponent(fit["x"][-2:], fit["seconds"][-2:])
    return found


def note_growth(found: Found, axis: str, x: int, timings: dict[str, Timing]) -> None:
    """Add a point to the curve of each peer."""
    for name, timing in timings.items():
        match = [f for f in found.fits if (f["axis"], f["peer"]) == (axis, name)]
        if not match:
            match = [{"axis": axis, "peer": name, "x": [], "seconds": []}]
            found.fits += match
        match[0]["x"].append(x)
        match[0]["seconds"].append(1 / timing.summary()["median"])
