"""The package and its book: how long until they are there."""

import tempfile
import time

from .measure import fresh, root
from .work import Choice, Found

JUPYTER_BOOK = "from jupyter_book.cli.main import main; main()"


def imports(choice: Choice) -> Found:
    """How long it takes to import the package, beyond PyTorch."""
    found = Found()
    code = (
        "import time, torch; start = time.perf_counter(); import {module}; "
        "print(time.perf_counter() - start)"
    )
    for module in ("transformer_lit", "transformer_lit.translation"):
        samples = [float(fresh("-c", code.format(module=module))) for _ in range(choice.rounds)]
        found.note("beyond torch", f"import {module}", samples, "s")
        median = found.value("beyond torch", f"import {module}")
        found.mark(f"import {module}", median, 1.0, " s", at_least=False, tie=False)
    return found


def book(choice: Choice) -> Found:
    """How long the book takes to build, from nothing, with the environment in place."""
    with tempfile.TemporaryDirectory() as folder:
        built = ["build", ".", "-W", "-n", "--keep-going", "--quiet", "--path-output", folder]
        return timed("the book, from nothing", ["-c", JUPYTER_BOOK, *built], 30)


def notebooks(choice: Choice) -> Found:
    """How long all notebooks take to run, two at a time, with a thread each.

    Their outputs are not compared: those of page 19 follow what was just recorded.
    """
    nbs = [*(root() / "nbs").glob("[0-9]*.ipynb"), *(root() / "nbs/checks").glob("[0-9]*.ipynb")]
    options = ["-q", "-p", "no:cacheprovider", "-n", "2", "--dist", "loadfile"]
    options += ["--nbval-lax", "--nbval-current-env"]
    arguments = ["-m", "pytest", *options, *map(str, sorted(nbs))]
    return timed("all notebooks", arguments, 8 * 60, OMP_NUM_THREADS="1")


def timed(what: str, arguments: list[str], wanted: float, **environment: str) -> Found:
    """Run Python once, and judge how long it takes."""
    found = Found()
    start = time.perf_counter()
    fresh(*arguments, **environment)
    seconds = time.perf_counter() - start
    found.note("once", what, [seconds], "s")
    found.mark(what, seconds, wanted, " s", at_least=False, tie=False)
    return found
