"""Public functions say what they take and return, tensors with their shapes.

That the annotations are true is checked wherever a test calls the package: see `conftest`.
"""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parent.parent / "transformer_lit"
# The command line's parameters are described to click; a check takes any answer whatsoever.
MODULES = sorted(path for path in PACKAGE.glob("[a-z]*.py") if path.stem != "cli")


def public(body: list[ast.stmt], of: str = "") -> list[tuple[str, ast.FunctionDef]]:
    """Return name and definition of the public functions in a module or class."""
    found = []
    for node in body:
        if getattr(node, "name", "_").startswith("_") and getattr(node, "name", "") != "__init__":
            continue
        if isinstance(node, ast.ClassDef):
            found += public(node.body, f"{node.name}.")
        elif isinstance(node, ast.FunctionDef):
            found.append((of + node.name, node))
    return found


def bare_tensors(annotation: ast.AST) -> bool:
    """Return whether a Tensor stands there without a shape, as in ``Float[Tensor, "b t"]``."""
    shaped = {"Float", "Int", "Bool", "Shaped", "Callable"}
    if isinstance(annotation, ast.Subscript) and ast.unparse(annotation.value) in shaped:
        return False
    if isinstance(annotation, ast.Name):
        return annotation.id == "Tensor"
    return any(bare_tensors(node) for node in ast.iter_child_nodes(annotation))


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_signatures_are_annotated(path):
    wrong = []
    for name, function in public(ast.parse(path.read_text(encoding="utf-8")).body):
        spec = function.args
        parameters = [*spec.posonlyargs, *spec.args, *spec.kwonlyargs, spec.vararg, spec.kwarg]
        parameters = [p for p in parameters if p and p.arg not in {"self", "cls"}]
        wrong += [f"{name}: {p.arg} is not annotated" for p in parameters if not p.annotation]
        if not function.returns and not name.endswith("__init__"):
            wrong.append(f"{name}: what it returns is not annotated")
        annotations = [p.annotation for p in parameters if p.annotation]
        for annotation in [*annotations, *filter(None, [function.returns])]:
            if bare_tensors(annotation):
                wrong.append(f"{name}: a tensor without a shape in {ast.unparse(annotation)}")
    assert not wrong
