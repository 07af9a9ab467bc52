"""How it is measured: in turn, several times, and again where something else was running."""

import math
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import torch

SHORTEST = 0.5  # seconds; what is shorter is called several times, since clocks of load are coarse
LONGEST = 20.0  # what takes longer is measured once
TIE = 0.1  # a difference of a tenth is within what samples spread by


@dataclass
class Timing:
    """The samples of one subject: seconds of a call."""

    samples: list[float] = field(default_factory=list)
    repeated: int = 0  # samples thrown away, since something else was running
    load: float = 0.0  # the most that ran beside a sample that counts, as a share of the CPUs

    def summary(self, amount: float = 1.0) -> dict[str, float]:
        """Return what is reported: ``amount`` a second, in the middle and at the ends."""
        rates = [amount / seconds for seconds in self.samples]
        return {
            "median": statistics.median(rates),
            "min": min(rates),
            "max": max(rates),
            "samples": len(rates),
            "repeated": self.repeated,
            "other_load": round(self.load, 3),
        }


class Load:
    """How busy the CPUs are beside this process and its children, since it was made."""

    def __init__(self) -> None:
        self.cpus = cpus()
        self.start = time.perf_counter()
        self.busy, self.own = self._busy(), self._own()

    def other(self) -> float:
        """Return the share of the CPUs that others have used."""
        seconds = (time.perf_counter() - self.start) * len(self.cpus)
        others = (self._busy() - self.busy) - (self._own() - self.own)
        return max(0.0, others / seconds)

    def _busy(self) -> float:
        each = psutil.cpu_times(percpu=True)
        chosen = [each[i] for i in self.cpus if i < len(each)]
        return sum(sum(t[:9]) - t.idle - getattr(t, "iowait", 0.0) for t in chosen)

    @staticmethod
    def _own() -> float:
        process = psutil.Process()
        times = [p.cpu_times() for p in (process, *process.children(recursive=True))]
        return sum(t.user + t.system for t in times)


def cpus() -> list[int]:
    """Return the numbers of the CPUs that this process may use."""
    process = psutil.Process()
    if hasattr(process, "cpu_affinity"):
        return process.cpu_affinity()
    return list(range(os.cpu_count() or 1))


def take_turns(
    subjects: dict[str, Callable[[], object]],
    rounds: int = 5,
    quiet: float = 0.05,
    repeats: int = 2,
) -> dict[str, Timing]:
    """Measure subjects in turn, so that what slows the machine down slows them all.

    Parameters
    ----------
    subjects
        What to call, by name. Each is called once before anything counts.
    rounds
        Samples of each; one only of what takes longer than ``LONGEST`` seconds.
    quiet
        The share of the CPUs that others may use beside a sample.
    repeats
        How often a sample is taken again because of that. Of all, the quietest counts.
    """
    timings = {name: Timing() for name in subjects}
    calls = {}
    for name, run in subjects.items():
        seconds, load = sample(run, 1)
        calls[name] = math.ceil(SHORTEST / max(seconds, 1e-4))
        if seconds > LONGEST:
            timings[name] = Timing([seconds], 0, load)
    for turn in range(rounds):
        names = list(subjects)
        for name in names[turn % len(names) :] + names[: turn % len(names)]:  # each goes first once
            timing = timings[name]
            if timing.samples and timing.samples[0] > LONGEST:
                continue
            taken = [sample(subjects[name], calls[name])]
            while taken[-1][1] > quiet and len(taken) <= repeats:
                taken.append(sample(subjects[name], calls[name]))
            seconds, load = min(taken, key=lambda pair: pair[1])
            timing.samples.append(seconds)
            timing.repeated += len(taken) - 1
            timing.load = max(timing.load, load)
    return timings


def sample(run: Callable[[], object], calls: int) -> tuple[float, float]:
    """Return the seconds of a call, and the load beside it."""
    load = Load()
    start = time.perf_counter()
    for _ in range(calls):
        run()
    return (time.perf_counter() - start) / calls, load.other()


def product(size: int = 2048) -> tuple[Callable[[], object], float]:
    """Return a product of square matrices, the most that a machine can do, and its operations."""
    a, b = torch.randn(2, size, size)
    out = torch.empty_like(a)
    return lambda: torch.mm(a, b, out=out), 2.0 * size**3


def exponent(x: Sequence[float], y: Sequence[float]) -> float:
    """Return the power of ``x`` that ``y`` grows with: the slope of a line through logarithms."""
    return statistics.linear_regression([math.log(a) for a in x], [math.log(b) for b in y]).slope


def judge(value: float, wanted: float, *, at_least: bool = True, tie: bool = True) -> str:
    """Say whether a mark is met, missed, or missed by no more than samples spread by.

    Parameters
    ----------
    value, wanted
        What was measured, and the mark.
    at_least
        Whether more is better.
    tie
        Whether a miss by less than a tenth is a tie; not for what does not spread.
    """
    better, worse = (value, wanted) if at_least else (wanted, value)
    if better >= worse:
        return "met"
    return "tie" if tie and better >= (1 - TIE) * worse else "missed"


def peak_memory() -> int:
    """Return the most bytes that this process has held in memory.

    On Linux from the process's own page, since what `getrusage` tells includes the parent's.
    """
    status = Path("/proc/self/status")
    if status.exists():
        lines = dict(line.split(":", 1) for line in status.read_text().splitlines() if ":" in line)
        return int(lines["VmHWM"].split()[0]) * 1024
    import resource

    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024


def fresh(*arguments: str, **environment: str) -> str:
    """Run Python anew with these arguments, in the repository, and return what it writes."""
    command, env = [sys.executable, *arguments], {**os.environ, **environment}
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, cwd=root(), env=env)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)[:300]} failed: {done.stdout[-1000:]}")
    return done.stdout


def root() -> Path:
    """Return the repository's folder."""
    return Path(__file__).parent.parent


def processor() -> str:
    """Return the name of the processor."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def machine() -> dict[str, object]:
    """Describe the machine."""
    return {
        "processor": processor(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "cpus": len(cpus()),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "system": platform.system(),
    }


def commit() -> str:
    """Return the commit that is measured, marked if there are changes; nothing without git."""
    git = ["git", "-C", str(root())]
    name = subprocess.run([*git, "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True)
    but_results = [".", ":!benchmarks/results"]  # which the works before may have written
    changed = subprocess.run([*git, "diff", "--quiet", "HEAD", "--", *but_results]).returncode == 1
    return name.stdout.strip() + "-dirty" * changed
