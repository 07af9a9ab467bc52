"""Trains a tiny model in as many processes as torchrun starts: ``several.py FOLDER CASE ...``.

Each case is told what it should do by its name: see `CASES`. The first process leaves the losses
and the weights of a case in a file; each process leaves the pairs that it has read.
"""

import os
import signal
import sys
import time
from pathlib import Path

import planted  # noqa: F401
import torch

from transformer_lit.data import TokenBatches, Tokenizer, date_pairs
from transformer_lit.gpu import Accelerator
from transformer_lit.model import Transformer, TransformerConfig
from transformer_lit.training import Engine, Trainer, TrainingConfig

TINY = TransformerConfig(300, d_model=16, n_heads=2, d_ff=16, n_layers=2, dropout=0.1)
STEPS = 6
CASES = {  # accumulate, how to share, and the case from whose checkpoint to go on
    "one": (2, "ddp", None),
    "uneven": (3, "ddp", None),
    "sharded": (2, "fsdp", None),
    "uneven shards": (3, "fsdp", None),
    "bf16 shards": (2, "fsdp", None),
    "whole to shards": (2, "fsdp", "one"),
    "shards to whole": (2, "ddp", "sharded"),
}


def batches() -> TokenBatches:
    """Return a few batches of dates."""
    return TokenBatches(date_pairs(40), Tokenizer.train([], 260), max_tokens=200)


def trainer(folder: Path, engine: Engine, accumulate: int = 2, **options) -> Trainer:
    """Return a trainer that averages, clips and validates."""
    torch.manual_seed(engine.rank)  # the weights are those of the first process
    config = {"steps": STEPS, "warmup": 4, "factor": 0.3, "average": 2, "clip": 1.0}
    config |= {"accumulate": accumulate, "log_every": 1, "save_every": 2} | options

    def validate(model: Transformer) -> float:
        with torch.no_grad():
            return sum(parameter.norm().item() for parameter in model.parameters())

    return Trainer(
        Transformer(TINY),
        batches(),
        TrainingConfig(**config),
        folder=folder,
        validate=validate,
        engine=engine,
    )


def run(case: str, folder: Path, engine: Engine) -> dict:
    """Train, and return what should not depend on the number of processes."""
    accumulate, _, before = CASES[case]
    if before:  # its checkpoint of the middle, under this case's own name
        state = torch.load(folder / f"{before}.middle", weights_only=True)
        (folder / case).mkdir(exist_ok=True)
        if engine.rank == 0:
            torch.save(state, folder / case / "training.pt")
        engine.sum(0.0)  # wait for the file
    t = trainer(folder / case, engine, accumulate)
    read, make = [], t.batches.make
    t.batches.make = lambda numbers: read.extend(numbers) or make(numbers)
    begun, save = t.resume(), t.save

    def save_and_keep() -> None:
        save()
        if engine.rank == 0 and t.step == STEPS - 2:
            os.link(folder / case / "training.pt", folder / f"{case}.middle")

    t.save = save_and_keep
    log = t.train(progress=False)
    torch.save(read, folder / f"{case}.pairs.{engine.rank}")
    result = {
        "begun": begun,
        "losses": [row["loss"] for row in log],
        "validation": log[-1]["validation"],
        "weights": dict(t.result.named_parameters()) if engine.rank == 0 else {},
    }
    if engine.rank == 0:
        torch.save(result, folder / f"{case}.result")
    return result


def killed_once(folder: Path, engine: Engine, steps: int = STEPS) -> None:
    """Train from the last checkpoint on; the last process kills itself in step 4, but only once."""
    t = trainer(folder / "killed", engine, steps=steps)
    begun = t.resume()
    if engine.rank == 0:
        print("goes on from step", begun, flush=True)
    marker, backward = folder / "killed once", engine.backward

    def fatal(*arguments) -> float:
        if engine.rank == engine.world_size - 1 and t.step == 3 and not marker.exists():
            marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return backward(*arguments)

    engine.backward = fatal
    t.train(progress=False)
    if engine.rank == 0:
        torch.save(dict(t.result.named_parameters()), folder / "killed.result")


def endless(folder: Path, engine: Engine) -> None:
    """Train until told to stop."""
    t = trainer(folder / "endless", engine, steps=10**6, save_every=10**6)
    t.hooks = [lambda t: print("step", t.step, flush=True)]
    t.train(progress=False)


def compiled(folder: Path, engine: Engine) -> None:
    """Count how often a model is compiled for batches of many shapes."""
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    plain, compile = torch.compile, torch.compile
    torch.compile = lambda model, **options: plain(model, backend=backend, **options)
    try:
        engine.compile = True
        t = trainer(folder / "compiled", engine, 1, average=0, steps=16)
        t.batches = TokenBatches(date_pairs(200), Tokenizer.train([], 260), max_tokens=200)
        shapes, make = set(), t.batches.make
        t.batches.make = lambda numbers: shapes.add(make(numbers).tgt.shape) or make(numbers)
        log = t.train(progress=False)
    finally:
        torch.compile = compile
    result = {"graphs": len(graphs), "shapes": len(shapes), "losses": [row["loss"] for row in log]}
    torch.save(result, folder / "compiled.result")


def main() -> None:
    """Run the cases named on the command line."""
    torch.set_num_threads(1)
    folder, started = Path(sys.argv[1]), time.perf_counter()
    for case in sys.argv[2:]:
        engine = Accelerator(
            "cpu",
            "bf16" if "bf16" in case else "float32",
            parallel=CASES[case][1] if case in CASES else "ddp",
        )
        if case in CASES:
            run(case, folder, engine)
        else:
            {"killed": killed_once, "endless": endless, "compiled": compiled}[case](folder, engine)
    print(f"process {engine.rank}: {time.perf_counter() - started:.1f} s", flush=True)
    engine.close()


if __name__ == "__main__":
    main()
