"""Wrong versions of the package, and how to import it with one of them inside."""

import importlib
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec, module_from_spec
from pathlib import Path
from typing import NamedTuple

TESTS = Path(__file__).parent.parent
STAY = {"conftest", "annotations", "test_mutants"}  # all else in `tests` is imported anew


class Mutant(NamedTuple):
    """One fault: in ``module``, ``right`` is written ``wrong``; the test ``killer`` must fail."""

    name: str
    module: str
    right: str
    wrong: str
    killer: str  # "test_module.test_function"
    fault: str = ""  # its number in `faults`, if users have met it elsewhere


@contextmanager
def fresh_import() -> Iterator[None]:
    """Forget the package and its tests, so that they are imported anew; bring them back after.

    Annotations are not checked in what is imported anew: a mutant is the tests' own affair.
    """
    ours = {"transformer_lit", *(path.stem for path in TESTS.glob("*.py"))} - STAY
    kept = {name: module for name, module in sys.modules.items() if name.split(".")[0] in ours}
    finders = list(sys.meta_path)
    sys.meta_path[:] = [f for f in finders if not type(f).__module__.startswith("jaxtyping")]
    for name in kept:
        del sys.modules[name]
    try:
        yield
    finally:
        os.environ.pop("MUTANT", None)
        for name in [name for name in sys.modules if name.split(".")[0] in ours]:
            del sys.modules[name]
        sys.modules.update(kept)
        sys.meta_path[:] = finders


def plant(mutant: Mutant) -> None:
    """Import the mutant's module with its fault, for all that import it from now on.

    Programs that a test starts find its name in their environment; see `planted`.
    """
    os.environ["MUTANT"] = mutant.name
    name = f"transformer_lit.{mutant.module}"
    spec = find_spec(name)
    source = Path(spec.origin).read_text(encoding="utf-8")
    assert source.count(mutant.right) == 1, f"{name} has changed: renew the mutant {mutant.name!r}"
    module = sys.modules[name] = module_from_spec(spec)
    exec(compile(source.replace(mutant.right, mutant.wrong), spec.origin, "exec"), vars(module))
    setattr(sys.modules["transformer_lit"], mutant.module, module)


def find_test(killer: str):
    """Return the test function that ``killer`` names."""
    module, function = killer.split(".")
    return getattr(importlib.import_module(module), function)
