"""What all tests share: checked annotations, hypothesis's profile, one thread."""

import os
import sys
from pathlib import Path

# What the tests expect was computed on a CPU; the programs that they start inherit this, too.
os.environ["CUDA_VISIBLE_DEVICES"] = ""

import torch
from hypothesis import HealthCheck, Phase, settings
from jaxtyping import install_import_hook

# From here on each call of the package is checked against its annotations, so that one that lies
# fails. It must come before the package is imported.
install_import_hook("transformer_lit", "annotations.check")

# test_mutants imports the package and its tests anew for each of 500 tests. Where the environment
# forbids to keep what was compiled, as containers do, that would take longer than the tests.
sys.dont_write_bytecode = False

settings.register_profile(
    "course",
    derandomize=True,
    deadline=None,
    max_examples=25,
    phases=[Phase.explicit, Phase.generate],  # shrinking a failure can take minutes
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("course")

torch.set_num_threads(1)  # the tensors are small, and the tests may run side by side


def pytest_terminal_summary(terminalreporter):
    """Write what the browser's tests, in several processes perhaps, have recorded of the pages.

    A run of some of them leaves the other pages' rows as they are.
    """
    reports = terminalreporter.getreports("passed") + terminalreporter.getreports("failed")
    fresh = [tuple(row) for r in reports for name, row in r.user_properties if name == "page"]
    if fresh:
        build = Path(__file__).parent.parent / "_build"
        table = build / "pages.tsv"
        lines = table.read_text(encoding="utf-8").splitlines()[1:] if table.is_file() else []
        rows = {line.split("\t")[0]: line for line in lines}
        rows |= {row[0]: "\t".join(map(str, row)) for row in fresh}
        kept = [rows[page] for page in sorted(rows) if (build / "html" / page).is_file()]
        head = "page\tbytes at first load\trequests\tfirst paint (ms)"
        table.write_text("\n".join([head, *kept, ""]), encoding="utf-8")
