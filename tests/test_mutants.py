"""The tests are strong when they catch the wrong version: its test must kill each mutant."""

import inspect

import pytest
from hypothesis import settings
from mutants import find_test, fresh_import, plant
from mutants.faults import FAULTS
from mutants.table import MUTANTS

# These work in programs of their own, into which nothing is planted here: there is no difference
# to how they run in their own file.
IN_PROGRAMS = {
    "test_decoding.test_compiled_steps_are_of_few_kinds",
    "test_decoding.test_compiled_steps_write_the_same",
    "test_gpu.test_every_pair_is_read_once",
    "test_gpu.test_shards_train_as_the_whole",
    "test_gpu.test_two_processes_train_as_one",
}
killers = sorted({mutant.killer for mutant in MUTANTS} - IN_PROGRAMS)
settings.register_profile("briefly", settings.get_profile("course"), max_examples=3)


def run(killer: str, request: pytest.FixtureRequest) -> None:
    """Run a test as pytest would, with the fixtures that it asks for."""
    test = find_test(killer)
    test(**{name: request.getfixturevalue(name) for name in inspect.signature(test).parameters})


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: f"{m.name} <- {m.killer}")
def test_mutant_is_killed(mutant, request):
    """A mutant that survives its test fails the run."""
    with fresh_import():
        plant(mutant)
        try:
            run(mutant.killer, request)
        except (AssertionError, pytest.fail.Exception):
            return
    pytest.fail(f"the mutant {mutant.name!r} survives {mutant.killer}")


@pytest.mark.parametrize("killer", killers)
def test_the_package_itself_survives(killer, request):
    """It is the fault that kills, and not the way in which it was planted.

    A few examples show that; all of them are tried where the test itself stands.
    """
    settings.load_profile("briefly")
    try:
        with fresh_import():
            run(killer, request)
    finally:
        settings.load_profile("course")


def test_every_name_is_used_once():
    """So that a report tells which mutant it is."""
    names = [mutant.name for mutant in MUTANTS]
    assert len(set(names)) == len(names)


def test_every_known_fault_is_planted():
    """At least once, so that the tests are seen to catch it."""
    assert {mutant.fault for mutant in MUTANTS} == {"", *FAULTS}
