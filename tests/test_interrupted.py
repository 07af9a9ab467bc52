"""Trainings in processes of their own, ended by the system: by kill -9, Ctrl-C, SIGTERM."""

import csv
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import interrupted
import pytest
import torch
from torch import Tensor

FILES = ["config.json", "log.csv", "model.safetensors", "training.pt"]
KILLS = 50
POSIX = pytest.mark.skipif(os.name != "posix", reason="Windows has other signals, and no fork")


def script(*arguments, **options) -> subprocess.Popen:
    """Start the script `interrupted` in a process of its own."""
    return subprocess.Popen(
        [sys.executable, interrupted.__file__, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parent.parent)},
    )


def plain(value):
    """Return a part of a checkpoint without the times, in a form that == can compare."""
    if isinstance(value, Tensor):
        return value.dtype, value.shape, value.contiguous().numpy().tobytes()
    if isinstance(value, dict):
        return {name: plain(part) for name, part in value.items() if name != "seconds"}
    if isinstance(value, list | tuple):
        return [plain(part) for part in value]
    return repr(value)  # NaN, too, equals NaN


def outcome(folder: Path):
    """Return all that a run has left, but for the times."""
    assert sorted(path.name for path in folder.iterdir()) == FILES
    with (folder / "log.csv").open(newline="") as file:
        log = [[row[name] for name in row if name != "seconds"] for row in csv.DictReader(file)]
    state = torch.load(folder / "training.pt", weights_only=True)
    return {
        "model": (folder / "model.safetensors").read_bytes(),
        "config": (folder / "config.json").read_bytes(),
        "log": log,
        "training": plain(state),
    }


def assert_same(one: Path, other: Path) -> None:
    """Two runs have left the same, bit for bit, but for the times."""
    ours, theirs = outcome(one), outcome(other)
    for name in ours:
        assert ours[name] == theirs[name], f"{name} differs in {one.name} and {other.name}"


@pytest.fixture
def quick_path(tmp_path):
    """A folder in memory, where the machine has one: a slow disk makes a thousand checkpoints,
    each of which waits until it is on the disk, take many minutes.

    What a process has written outlives it in both alike; lost power is not what is tested.
    """
    memory = Path("/dev/shm")
    if not (memory.is_dir() and os.access(memory, os.W_OK)):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        yield Path(folder)


@POSIX
def test_a_run_killed_at_fifty_random_moments_ends_as_one_never_stopped(quick_path):
    """Each time it goes on from what the kill has left, which may be half of a file."""
    process = script("kill", quick_path, KILLS)
    printed, errors = process.communicate(timeout=600)
    assert process.returncode == 0, errors
    hits = json.loads(printed)
    counts = {hit: hits.count(hit) for hit in sorted(set(hits))}
    print(counts)
    assert sum(counts.values()) == KILLS
    assert sorted(counts) == ["before the first checkpoint", "between", "while saving"]
    folders = [folder for folder in quick_path.iterdir() if folder.name != "whole"]
    assert len(folders) > 4
    for folder in folders:
        assert_same(folder, quick_path / "whole")


@POSIX
@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGHUP"])
def test_a_signal_ends_the_process_after_its_step(name, tmp_path):
    """As SystemExit or KeyboardInterrupt; the step is saved, and the run can go on."""
    number = getattr(signal, name)
    process = script("signal", tmp_path / "stopped")
    assert process.stdout.readline() == "now\n"
    process.send_signal(number)
    printed, errors = process.communicate(timeout=60)
    assert printed == "noted\n7 steps made, 7 saved\n"
    assert process.returncode == {"SIGTERM": 143, "SIGINT": 130, "SIGHUP": 129}[name], errors

    resumed = interrupted.trainer(tmp_path / "stopped", seed=1, **interrupted.RARELY)
    assert resumed.resume() == interrupted.SIGNALLED
    resumed.train(progress=False)
    interrupted.trainer(tmp_path / "whole", **interrupted.RARELY).train(progress=False)
    assert_same(tmp_path / "stopped", tmp_path / "whole")


@POSIX
@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
def test_a_second_signal_ends_the_process_at_once(name, tmp_path):
    """In the middle of its step, which here takes a minute. What was saved before is whole."""
    number = getattr(signal, name)
    process = script("signal", tmp_path, "wait")
    for line in ("now\n", "noted\n"):
        assert process.stdout.readline() == line
        process.send_signal(number)
    begun = time.perf_counter()
    printed, _ = process.communicate(timeout=60)
    assert time.perf_counter() - begun < 30
    # Python catches SIGINT and makes it a KeyboardInterrupt; SIGTERM it leaves to the system
    assert process.returncode == {"SIGTERM": -number, "SIGINT": 130}[name]
    assert printed == {"SIGTERM": "", "SIGINT": "6 steps made, 0 saved\n"}[name]
    t = interrupted.trainer(tmp_path, seed=1, **interrupted.RARELY)
    assert t.resume() == 0 == t.saved
