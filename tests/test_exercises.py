"""The exercises: their form in the chapters, and that the checks tell right from wrong.

Chapters and checks are notebooks whose stored outputs nbval compares with a fresh run, so what is
read here is what the code does: each stub, each solution, and each answer shown to a check.
"""

import ast
import importlib
import json
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

from transformer_lit.exercises import close, verdict

ROOT = Path(__file__).resolve().parent.parent
CHECKS = sorted((ROOT / "nbs/checks").glob("[0-9]*.ipynb"))
CHAPTERS = [ROOT / "nbs" / path.name for path in CHECKS]
HEAD = re.compile(
    r"```\{exercise\} (?P<title>\S.*)\n:label: (?P<label>ex-[\w-]+)\n"
    r"\*\*Objective:\*\* \S.*\. \*\*Difficulty:\*\* (?P<stars>★+☆*)\. "
    r"\*\*Time:\*\* \d+ minutes\.\n\n(?P<text>(?s:.+?))\n```"
)
NOT_ATTEMPTED, RIGHT, WRONG = "Not attempted yet.", "Right.", "Not yet right. "


@cache
def cells(path: Path) -> list[tuple[str, str, str]]:
    """Return kind, source and printed text of each cell."""
    content = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return [
        (
            cell["cell_type"],
            "".join(cell["source"]),
            "".join("".join(output.get("text", "")) for output in cell.get("outputs", [])),
        )
        for cell in content
    ]


def attempts(source: str) -> list[tuple[str, str]]:
    """Return the arguments of each attempt(answer, check) in a cell, in order."""
    if source.startswith("#| hide"):  # may hold what only IPython understands
        return []
    calls = [n.value for n in ast.parse(source).body if isinstance(n, ast.Expr)]
    named = [c for c in calls if isinstance(c, ast.Call) and ast.unparse(c.func) == "attempt"]
    return [tuple(ast.unparse(argument) for argument in call.args) for call in named]


def exercises(chapter: Path) -> list[re.Match]:
    return [
        m for kind, text, _ in cells(chapter) if kind == "markdown" for m in HEAD.finditer(text)
    ]


@pytest.mark.parametrize("chapter", CHAPTERS, ids=lambda p: p.stem)
def test_each_chapter_has_five_exercises_from_easy_to_hard(chapter):
    written = sum(
        text.count("{exercise}") for kind, text, _ in cells(chapter) if kind == "markdown"
    )
    found = exercises(chapter)
    assert len(found) == written, "an exercise lacks its label, or its line of objective and time"
    assert written >= 5
    assert all(len(m["stars"]) == 5 for m in found), "difficulty is one to five of five stars"
    stars = [m["stars"].count("★") for m in found]
    assert min(stars) <= 2 and max(stars) >= 4
    assert len({m["label"] for m in found}) == len(found)


@pytest.mark.parametrize("chapter", CHAPTERS, ids=lambda p: p.stem)
def test_each_exercise_has_a_stub_and_a_solution(chapter):
    """The stub says that nobody has tried it; the solution that follows is right."""
    state, exercise, done = None, "", []
    for kind, text, printed in cells(chapter):
        if kind == "markdown":
            for mark in re.finditer(
                r"\{exercise\}|\{solution-start\} (\S+)|\{solution-end\}", text
            ):
                if mark[0] == "{exercise}":
                    assert state is None, f"the exercise before {exercise!r} has no solution"
                    head = HEAD.search(text, mark.start() - 3)
                    state, exercise = "stub", head["label"]
                elif mark[0] == "{solution-end}":
                    assert state == "solved", f"{exercise} has no solution"
                    state = None
                    done.append(exercise)
                else:
                    assert state == "tried" and mark[1] == exercise, exercise
                    state = "solution"
        elif state and (tried := attempts(text)):
            ((answer, check),) = tried
            assert check == f"check.{answer}", "the check is called as its answer"
            if state == "stub":
                assert "raise NotImplementedError" in text and printed == f"{NOT_ATTEMPTED}\n"
                state = "tried"
            else:
                assert state == "solution" and printed.splitlines()[0] == RIGHT, exercise
                state = "solved"
    assert state is None and done == [m["label"] for m in exercises(chapter)]


@pytest.mark.parametrize("path", CHECKS, ids=lambda p: p.stem)
def test_each_check_is_shown_right_and_wrong_answers(path):
    module = re.search(r"#\| default_exp (checks\.\w+)", path.read_text(encoding="utf-8"))[1]
    checks = importlib.import_module(f"transformer_lit.{module}").__all__
    told = {name: [] for name in checks if not name.isupper()}
    for kind, text, printed in cells(path):
        if kind == "code" and (tried := attempts(text)):
            lines = [
                ln for ln in printed.splitlines() if ln.startswith((RIGHT, WRONG, "Your code"))
            ]
            assert len(lines) == len(tried), text
            for (_, check), line in zip(tried, lines, strict=True):
                told[check].append(line)
    for check, lines in told.items():
        assert RIGHT in lines, f"{check}: no right answer of another kind"
        hints = [line for line in lines if line.startswith(WRONG)]
        assert len(hints) >= 2 and len(set(hints)) >= 2, f"{check}: {hints}"
    used = {
        check
        for c in CHAPTERS
        if c.name == path.name
        for _, t, _ in cells(c)
        for check in re.findall(r"check\.(\w+)\)", t)
    }
    assert used == set(told), "checks without an exercise, or the other way round"


def double(answer):
    assert close(answer(0), 0), "Twice nothing is nothing."
    assert close(answer(3), 6), "Twice 3 is 6."


def stub(x):
    raise NotImplementedError


def not_in_pytorch(x):
    return torch.zeros(2, dtype=torch.bool).softmax(dim=0)  # a NotImplementedError with a message


def own_assertion(x):
    assert x > 5


def forgets(x):
    x + x


@pytest.mark.parametrize(
    "answer, said",
    [
        (stub, NOT_ATTEMPTED),
        (lambda x: 2 * x, RIGHT),
        (lambda x: np.float32(2) * x, RIGHT),
        (lambda x: torch.tensor(2.0 * x, dtype=torch.bfloat16, requires_grad=True), RIGHT),
        (lambda x: x**2, f"{WRONG}Twice 3 is 6."),
        (lambda x: [2 * x], f"{WRONG}Twice nothing is nothing."),
        (lambda x: "six", f"{WRONG}Twice nothing is nothing."),
        (lambda x: torch.nan, f"{WRONG}Twice nothing is nothing."),
        (forgets, f"{WRONG}Your function returns None: is a `return` missing?"),
        (lambda: 6, "Your code stopped with TypeError"),
        (6, f"{WRONG}What you return cannot be checked: TypeError"),
    ],
)  # fmt: skip
def test_verdict(answer, said):
    assert verdict(answer, double).startswith(said)


@pytest.mark.parametrize(
    "answer, kind", [(not_in_pytorch, NotImplementedError), (own_assertion, AssertionError)]
)
def test_an_error_of_the_answer_is_told_with_its_line(answer, kind):
    line = answer.__code__.co_firstlineno + 1
    said = verdict(answer, double)
    assert said.startswith(f"Your code stopped with {kind.__name__} in line {line} of its cell")


@pytest.mark.parametrize("x", [torch.ones(2), torch.tensor([torch.nan, 1]), torch.ones(2) > 0])
def test_an_answer_that_alters_its_input_is_refused(x):
    def alters(x):
        x[1] = not x[1]
        return x

    for call in (lambda answer: answer(x.clone()), lambda answer: answer(x=x.clone())):
        assert verdict(alters, call).startswith(f"{WRONG}Your function alters what it is given")
        assert verdict(lambda x: x.clone(), call) == RIGHT


def test_an_error_that_pytorch_raises_in_the_check_is_not_a_stub():
    def check(answer):
        answer(1).softmax(dim=0)  # not implemented for booleans

    said = verdict(lambda x: torch.ones(2, dtype=torch.bool), check)
    assert said.startswith(f"{WRONG}What you return cannot be checked: NotImplementedError")


def test_without_assertions_nothing_is_called_right():
    code = "from transformer_lit.exercises import verdict; verdict(1, lambda answer: None)"
    run = subprocess.run([sys.executable, "-O", "-c", code], capture_output=True, text=True)
    assert run.returncode and "python -O" in run.stderr


@pytest.mark.parametrize("shape", [(), (1,), (2, 3)])
def test_close(shape):
    x = torch.rand(shape)
    assert close(x.numpy(), x) and close(x.tolist(), x.double()) and close(x.half(), x)
    assert x.dim() == 0 or close(list(x), x) and close(tuple(x.numpy()), x), "a row each"
    assert not close(x[None], x), "another shape, though it would broadcast"
    assert not close(x + 1e-4, x) and not close(x.double() + 1e-4, x)
    assert not close(None, x) and not close(x * torch.inf, x)
