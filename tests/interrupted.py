"""A training in a process of its own, which the tests interrupt; see `test_interrupted`.

python interrupted.py signal FOLDER [wait]   train, and say when a signal may come
python interrupted.py kill FOLDER KILLS      train again and again, and kill what trains
"""

import json
import os
import random
import signal
import sys
import threading
import time
import traceback
from functools import cache
from pathlib import Path

import torch
from tqdm import tqdm

from transformer_lit.data import TokenBatches, Tokenizer, date_pairs
from transformer_lit.model import Transformer, TransformerConfig
from transformer_lit.training import Trainer, TrainingConfig

STEPS, SIGNALLED = 25, 7  # a signal comes while step 7 is made
RARELY = {"log_every": 1000, "save_every": 1000}


@cache
def batches() -> TokenBatches:
    """Return batches of two pairs or so; an epoch has some twenty."""
    return TokenBatches(date_pairs(40), Tokenizer.train([], 260), max_tokens=60)


def trainer(folder: Path | None, seed: int = 0, **config) -> Trainer:
    """Return a trainer with all that could go wrong: dropout, averaging, accumulation."""
    torch.manual_seed(seed)
    shape = {"d_model": 16, "n_heads": 2, "d_ff": 16, "n_layers": 1, "bias": False}
    options = {"steps": STEPS, "warmup": 10, "accumulate": 2, "average": 3, "average_every": 2}
    return Trainer(
        Transformer(TransformerConfig(300, **shape)),
        batches(),
        TrainingConfig(**(options | config)),
        folder=folder,
    )


def train(folder: Path, wait: bool) -> None:
    """Train; at one step say "now", and "noted" when a signal has come."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # whoever began the tests may have it ignored
    t = trainer(folder, **RARELY)
    update = t.update

    def update_and_say(*given):
        if t.step == SIGNALLED - 1:
            listening = signal.getsignal(signal.SIGTERM)
            print("now", flush=True)
            while signal.getsignal(signal.SIGTERM) == listening:
                time.sleep(0.001)
            print("noted", flush=True)
            if wait:
                time.sleep(60)
        return update(*given)

    t.update = update_and_say
    try:
        t.train(progress=False)
    except KeyboardInterrupt:  # left alone, it would be 130 or 1: torch confuses Python
        raise SystemExit(130) from None
    finally:
        print(f"{t.step} steps made, {t.saved} saved", flush=True)


def start(folder: Path, seed: int) -> int:
    """Resume and train in a new process; return its number."""
    pid = os.fork()
    if pid:
        return pid
    try:
        t = trainer(folder, seed, log_every=3, save_every=1)
        t.resume()
        t.train(progress=False)
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def seconds(folder: Path) -> float:
    """Return how long a run takes that is not killed."""
    begun = time.perf_counter()
    _, status = os.waitpid(start(folder, 0), 0)
    assert status == 0, "the run that is not killed failed"
    return time.perf_counter() - begun


def unfinished(folder: Path) -> dict[str, int]:
    """Return when the files that are being written were last written to."""
    return {path.name: path.stat().st_mtime_ns for path in folder.glob("*.new")}


def kill_often(base: Path, kills: int) -> list[str]:
    """Train to the end again and again, and meanwhile kill the training at random moments.

    Returns
    -------
    list of str
        What each kill has hit: "before the first checkpoint", "while saving", "between".
    """
    # One that is killed while it holds a lock of all processes would stop those that come after
    # it for ever. tqdm has one, and takes it for a bar that nobody sees, too; this one is each
    # process's own. A process that forks must have no other threads, either.
    tqdm.set_lock(threading.RLock())
    tqdm.monitor_interval = 0
    trainer(None, steps=1, average=0).train(progress=False)  # lets torch import all it needs
    whole = min(seconds(base / name) for name in ("whole", "whole again"))  # one may be held up
    rng, hits, run = random.Random(0), [], 0
    while len(hits) < kills:
        folder, attempt = base / f"run {run}", 0
        while True:
            # its own weights are others than in the first attempt, if there are any to resume
            seed = attempt if (folder / "training.pt").exists() else 0
            before = unfinished(folder)
            longest = 0.02 if attempt == 0 else 0.4
            pid = start(folder, seed)
            if len(hits) < kills:
                time.sleep(rng.uniform(0, longest * whole))
                os.kill(pid, signal.SIGKILL)  # does nothing to one that has ended
            _, status = os.waitpid(pid, 0)
            attempt += 1
            if not os.WIFSIGNALED(status):
                assert status == 0, "a resumed run failed"
                break
            if not (folder / "training.pt").exists():
                hits.append("before the first checkpoint")
            else:
                hits.append("between" if unfinished(folder) == before else "while saving")
        run += 1
    return hits


if __name__ == "__main__":
    torch.set_num_threads(1)
    # a shell starts what runs in its background with SIGINT ignored
    signal.signal(signal.SIGINT, signal.default_int_handler)
    what, path, *rest = sys.argv[1:]
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    if what == "kill":
        print(json.dumps(kill_often(Path(path), int(rest[0]))))
    else:
        train(Path(path), wait=bool(rest))
