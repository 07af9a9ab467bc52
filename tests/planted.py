"""Imported first by a program that a test starts: it gets the mutant that the test is run with."""

import os
import sys

if "transformer_lit" not in sys.modules and (name := os.environ.get("MUTANT")):
    from mutants import plant
    from mutants.table import MUTANTS

    plant(next(mutant for mutant in MUTANTS if mutant.name == name))
