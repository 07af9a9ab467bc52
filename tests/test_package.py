"""The package as a program sees it that only imports it."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MODULES = sorted(
    ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for path in ROOT.glob("transformer_lit/**/[a-z]*.py")
)
TOOLS = [
    "nbdev",
    "fastcore",
    "IPython",
    "ipykernel",
    "jupyter_client",
    "nbformat",
    "sphinx",
    "pytest",
]
LAZY = ["matplotlib", "babel", "sacrebleu"]  # needed, but not at import


def python(code: str) -> str:
    """Run code in a new interpreter and return what it prints."""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, encoding="utf-8", check=True, cwd=ROOT
    )
    assert done.stderr == ""
    return done.stdout


def test_imports_without_the_tools_and_without_a_word():
    imports = "".join(f"import {name}\n" for name in MODULES)
    loaded = python(f"import sys\n{imports}print(*sorted(sys.modules))").split()
    assert "transformer_lit.model" in loaded
    assert not set(loaded) & {*TOOLS, *LAZY}


def test_imports_in_under_three_seconds_beyond_torch():
    imports = "".join(f"import {name}\n" for name in MODULES)
    clock = "time.perf_counter()"
    seconds = python(f"import time, torch\nstart = {clock}\n{imports}print({clock} - start)")
    assert float(seconds) < 3


def test_the_address_stands_in_one_place():
    """Every address of a repository called transformer-lit is the one in pyproject.toml."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    address = project["urls"]["Repository"]
    files = [
        *ROOT.glob("*.md"),
        *ROOT.glob("*.cff"),
        *ROOT.glob("book/*.md"),
        *ROOT.glob("nbs/**/*.ipynb"),
    ]
    found = {
        match
        for file in files
        for match in re.findall(
            r"https://github\.com/[\w.-]+/transformer-lit\b", file.read_text("utf-8")
        )
    }
    assert found == {address}
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f'repository-code: "{address}"' in citation
    assert f"version: {project['version']}" in citation
