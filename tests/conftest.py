"""What all tests share: checked annotations, hypothesis's profile, one thread."""

from pathlib import Path

import torch
from hypothesis import HealthCheck, Phase, settings
from jaxtyping import install_import_hook

# From here on each call of the package is checked against its annotations, so that one that lies
# fails. It must come before the package is imported.
install_import_hook("transformer_lit", "annotations.check")

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
    """Write what the browser's tests, in several processes perhaps, have recorded of the pages."""
    reports = terminalreporter.getreports("passed") + terminalreporter.getreports("failed")
    rows = sorted(tuple(row) for r in reports for name, row in r.user_properties if name == "page")
    if rows:
        table = [("page", "bytes at first load", "requests", "first paint (ms)"), *rows]
        text = "".join("\t".join(map(str, row)) + "\n" for row in table)
        (Path(__file__).parent.parent / "_build/pages.tsv").write_text(text, encoding="utf-8")
