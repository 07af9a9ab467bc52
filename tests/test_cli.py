"""The command line: what it writes, and what it says when the input is wrong."""

import csv
import json
import math
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
import zipfile

import pytest
import torch
from click.testing import CliRunner

from transformer_lit import cli, gpu, translation
from transformer_lit.cli import choose, explain, main, one_line
from transformer_lit.data import date_pairs
from transformer_lit.translation import BLEU_TOKENIZERS, RECIPES

SMALL = ["--layers", "1", "--vocab", "300", "--steps", "6", "--max-tokens", "256"]


def run(*arguments, stdin=None):
    """Run a command in this process."""
    return CliRunner().invoke(main, [str(a) for a in arguments], input=stdin)


def refusal(*arguments, stdin=None):
    """Run a command that must fail with a message, and return the message."""
    result = run(*arguments, stdin=stdin)
    assert result.exit_code in (1, 2), result.output
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.output


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    """Return a file of 300 pairs."""
    path = tmp_path_factory.mktemp("data") / "pairs.tsv"
    path.write_text("".join(f"{a}\t{b}\n" for a, b in date_pairs(300)), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def model(pairs, tmp_path_factory):
    """Return the folder of a model that was trained for a few steps."""
    folder = tmp_path_factory.mktemp("model") / "dates"
    result = run("train", "--out", folder, "--data", pairs, *SMALL)
    assert result.exit_code == 0, result.output
    return folder


def test_training_leaves_the_documented_files(model):
    names = {p.name for p in model.iterdir()}
    weights = {"config.json", "model.safetensors", "tokenizer.json"}
    assert names == weights | {"log.csv", "run.json", "training.pt"}
    with (model / "log.csv").open() as file:
        last = list(csv.DictReader(file))[-1]
    assert last["step"] == "6" and float(last["loss"]) > 0 and float(last["validation"]) > 0


def test_one_line_for_each_line_in_order(model):
    lines = [pair[0] for pair in date_pairs(40, seed=1)]
    together = run("translate", "--model", model, stdin="\n".join(lines) + "\n").stdout.splitlines()
    alone = [run("translate", "--model", model, line).stdout.rstrip("\n") for line in lines[:5]]
    assert len(together) == len(lines)
    assert together[:5] == alone


def test_empty_lines_stay_and_crlf_goes(model):
    output = run("translate", "--model", model, stdin="May 2026\r\n\r\n  \nMay 2026").stdout
    lines = output.split("\n")
    assert len(lines) == 5 and lines[1] == lines[2] == lines[4] == ""
    assert lines[0] == lines[3]


def test_no_input_gives_no_output(model):
    result = run("translate", "--model", model, stdin="")
    assert result.exit_code == 0 and result.output == ""


def test_evaluate_prints_the_scores_and_the_signature(model, pairs):
    output = run("evaluate", "--model", model, "--data", pairs, "--beam", "2").output
    assert "pairs        300" in output and "exact match" in output and "tok:zh" in output
    said = refusal("evaluate", "--model", model, "--data", pairs, "--alpha", "1")
    assert "--alpha is of no use in a greedy search" in said
    assert "--data is missing: the model in" in refusal("evaluate", "--model", model)


def test_resume_goes_on_where_training_stood(model, pairs, tmp_path):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    # the same schedule for both: only the number of steps differs
    common = ["--data", pairs, *SMALL[:4], "--max-tokens", "256", "--warmup", "2"]
    run("train", "--out", whole, *common, "--steps", "8")
    run("train", "--out", parts, *common, "--steps", "5")
    result = run("train", "--out", parts, *common, "--steps", "8", "--resume")
    assert "from step 5" in result.output
    with (parts / "log.csv").open() as file:
        assert list(csv.DictReader(file))[-1]["step"] == "8"
    one, other = (torch.load(f / "training.pt", weights_only=True)["model"] for f in (whole, parts))
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_a_model_is_never_overwritten(model, pairs):
    before = (model / "model.safetensors").read_bytes()
    assert "--resume" in refusal("train", "--out", model, "--data", pairs, *SMALL)
    assert (model / "model.safetensors").read_bytes() == before


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "no sentence pairs"),
        (b"one\teins\ntwo\n", "line 2 has 1 column"),
        (b"one\teins\ttoo many\n", "line 1 has 3 columns"),
        (b"one\teins\ttoo many\n", "or cut -f1,2 to leave out the columns after the second"),
        (b"one\t" + b"lang" * 501, "or another --max-length"),
        (b"\teins\n", "line 1 has an empty side"),
        (b"one\t\xff\n", "line 1 is not UTF-8"),
        (b"one\teins\none\tein\n", "different source sentences"),
    ],
)
def test_bad_files_are_refused_by_name_and_line(tmp_path, content, says):
    path = tmp_path / "bad.tsv"
    path.write_bytes(content)
    message = refusal("train", "--out", tmp_path / "new", "--data", path, *SMALL)
    assert says in message and "Traceback" not in message
    assert not re.search("on_error|max_length|extra_columns", message), "said as in Python"
    assert not (tmp_path / "new").exists()


def test_bad_lines_can_be_skipped_and_are_reported(tmp_path, pairs):
    path = tmp_path / "bad.tsv"
    path.write_bytes(pairs.read_bytes() + b"only one column\n")
    result = run("train", "--out", tmp_path / "new", "--data", path, "--skip-bad", *SMALL)
    assert result.exit_code == 0 and "1 of 301 lines are bad" in result.output


def test_missing_files_are_named(tmp_path, model):
    assert "nowhere.tsv" in refusal("train", "--out", tmp_path / "m", "--data", "nowhere.tsv")
    assert "nowhere" in refusal("translate", "--model", tmp_path / "nowhere", "May 2026")
    assert "nowhere.tsv" in refusal("evaluate", "--model", model, "--data", "nowhere.tsv")


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json"])
def test_broken_models_are_refused_by_file(model, tmp_path, name):
    for file in model.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / name).write_bytes(b"{]")
    assert name in refusal("translate", "--model", tmp_path, "May 2026")
    (tmp_path / name).unlink()
    assert name in refusal("translate", "--model", tmp_path, "May 2026")


def test_input_that_is_not_utf8_is_refused_by_line(model):
    message = refusal("translate", "--model", model, stdin=b"May 2026\n\xff\xfe\n")
    assert "line 2 of standard input is not UTF-8: save it as UTF-8 first" in message
    for order in ("le", "be"):  # valid UTF-8 with zeros in it
        two_bytes = "May 2026\n1 May 2026\n".encode(f"utf-16-{order}")
        message = refusal("translate", "--model", model, stdin=two_bytes)
        assert "line 1 of standard input is not UTF-8" in message


def test_numbers_out_of_range_are_refused(tmp_path, model):
    for option, value in [
        ("--steps", "0"),
        ("--vocab", "10"),
        ("--dropout", "1"),
        ("--layers", "0"),
        ("--factor", "0"),
        ("--preset", "huge"),
        ("--clip", "nan"),
        ("--accumulate", "10000000"),
    ]:
        assert option in refusal("train", "--out", tmp_path / "m", option, value)
    assert "--beam" in refusal("translate", "--model", model, "--beam", "0", "May 2026")
    assert "--alpha" in refusal("translate", "--model", model, "--alpha", "nan", "May 2026")
    assert "device must be" in refusal(
        "translate", "--model", model, "--device", "tpu9", "May 2026"
    )


def test_a_sentence_that_fits_no_batch_is_named(tmp_path):
    path = tmp_path / "long.tsv"
    path.write_text("short\tkurz\nlonger\tlänger\n" + "word " * 300 + "\tWort\n", encoding="utf-8")
    few = [*SMALL[:4], "--max-tokens", "64"]
    message = refusal("train", "--out", tmp_path / "m", "--data", path, *few)
    assert "the source of a pair" in message and "does not fit into --max-tokens 64: " in message
    assert "or leave such pairs out with --max-length and --skip-bad" in message
    short = tmp_path / "short.tsv"
    short.write_text("short\tkurz\n", encoding="utf-8")
    files = ["--data", short, "--valid", path]
    message = refusal("train", "--out", tmp_path / "v", *files, *few)
    assert "of the pairs to validate on, the source of a pair" in message


def test_the_program_draws_no_bar_into_a_pipe(model):
    """As a program of its own: bytes out, nothing on standard error, UTF-8 in any locale."""
    done = subprocess.run(
        [sys.executable, "-m", "transformer_lit.cli", "translate", "--model", model],
        input=b"May 2026\n" * 200,
        capture_output=True,
        env=os.environ | {"LC_ALL": "C"},
        check=True,
    )
    assert done.stderr == b"" and len(done.stdout.decode("utf-8").splitlines()) == 200


def test_resume_needs_a_checkpoint_and_the_same_measures(model, pairs, tmp_path):
    """What is there stays as it was."""
    assert "run.json" in refusal("train", "--out", tmp_path / "x", "--resume", *SMALL)
    for file in model.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    before = (tmp_path / "model.safetensors").read_bytes()
    other = ["--data", pairs, *SMALL, "--norm-first", "--resume"]
    assert "other measures" in refusal("train", "--out", tmp_path, *other)
    (tmp_path / "training.pt").unlink()
    assert "training.pt" in refusal("train", "--out", tmp_path, "--data", pairs, *SMALL, "--resume")
    assert (tmp_path / "model.safetensors").read_bytes() == before


def test_a_broken_checkpoint_is_named(model, pairs, tmp_path):
    for file in model.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "training.pt").write_bytes(b"")
    message = refusal("train", "--out", tmp_path, "--data", pairs, *SMALL, "--resume")
    assert "training.pt" in message and "EOFError" in message


def test_the_same_command_goes_on_with_the_same_choices(pairs, tmp_path):
    """As torchrun gives it when it starts all anew: with the recipe, and with all changes of it."""
    folder = tmp_path / "run"
    command = ["train", "--out", folder, "--data", pairs, *SMALL, "--recipe", "multi30k"]
    command += ["--average", "2", "--average-every", "1"]
    assert run(*command).exit_code == 0
    before = (folder / "run.json").read_text()
    assert json.loads(before)["recipe"]["training"]["warmup"] == 3, "half of six steps"
    assert run(*command, "--resume").exit_code == 0
    assert (folder / "run.json").read_text() == before
    message = refusal(*command[:-6], "--recipe", "tatoeba", "--resume")
    assert "was begun with --recipe multi30k" in message


def test_resume_needs_no_other_option(pairs, tmp_path):
    """The choices are kept beside the model; those given anew take their place."""
    folder = tmp_path / "run"
    choices = ["--data", pairs, *SMALL, "--average", "2", "--smoothing", "0.2", "--separate"]
    assert run("train", "--out", folder, *choices).exit_code == 0
    before = json.loads((folder / "run.json").read_text())
    result = run("train", "--out", folder, "--resume", "--steps", "7")
    assert result.exit_code == 0 and "from step 6" in result.output, result.output
    after = json.loads((folder / "run.json").read_text())
    assert after["recipe"]["training"].pop("steps") == 7
    assert before["recipe"]["training"].pop("steps") == 6
    assert after == before and before["recipe"]["training"]["label_smoothing"] == 0.2
    again = run("train", "--out", folder, "--resume")
    assert again.exit_code == 0 and "Nothing to do: step 7 was the last" in again.output


def test_steps_count_from_the_first(pairs, tmp_path):
    """Who takes them for further ones is told, before the choices of the run are lost."""
    folder = tmp_path / "run"
    command = ["train", "--out", folder, "--data", pairs, *SMALL, "--average", "0"]
    assert run(*command).exit_code == 0
    before = (folder / "run.json").read_text()
    said = refusal("train", "--out", folder, "--resume", "--steps", "4")
    assert "--steps 4: the run in" in said and "has made 6 already" in said
    assert (folder / "run.json").read_text() == before


def test_an_average_that_shrinks_is_told(pairs, tmp_path):
    """With more steps it would stay small, though nobody has chosen it."""
    folder = tmp_path / "run"
    every = ["--average", "3", "--average-every", "3", "--steps", "12", "--patience", "1"]
    still = ["--factor", "1e-30", "--save-every", "3"]
    result = run("train", "--out", folder, "--data", pairs, *SMALL, *every, *still)
    assert "Stopped at step 6" in result.output, result.output
    result = run("train", "--out", folder, "--resume", "--steps", "8")
    assert result.exit_code == 0, result.output
    assert "in 8 steps there are 2 weights to average, and not 3" in result.output
    assert "ask for --average 3 again" in result.output
    again = run("train", "--out", folder, "--resume", "--steps", "12", "--average", "3")
    assert again.exit_code == 0 and "Warning" not in again.output, again.output
    assert json.loads((folder / "run.json").read_text())["recipe"]["training"]["average"] == 3


def test_other_pairs_to_validate_on_are_told(pairs, tmp_path):
    """Their losses are others, of which --patience knows nothing."""
    valid = tmp_path / "valid.tsv"
    valid.write_text("1 January 1500\teins\n2 January 1500\tzwei\n")
    command = ["train", "--out", tmp_path / "run", "--data", pairs, "--valid", valid, *SMALL]
    assert run(*command).exit_code == 0
    assert "Warning" not in run(*command, "--resume").output
    valid.write_text("1 January 1500\teins\n2 January 1500\tzwo\n")
    said = run(*command, "--resume").output
    assert "Warning: the pairs to validate on are not those of the run in" in said


def test_no_target_is_written_with_the_tokeniser_of_the_source(pairs, tmp_path):
    """Both have the same number of tokens, so that the model cannot tell."""
    folder = tmp_path / "run"
    assert run("train", "--out", folder, "--data", pairs, *SMALL, "--separate").exit_code == 0
    (folder / "tokenizer.target.json").unlink()
    said = refusal("translate", "--model", folder, "May 2026")
    assert "tokenizer.target.json is missing" in said
    said = refusal("train", "--out", folder, "--resume", "--steps", "7")
    assert "tokenizer.target.json is missing" in said


def test_resume_keeps_what_is_not_of_the_recipe(pairs, tmp_path):
    folder = tmp_path / "run"
    chosen = {"precision": "bf16", "patience": 3, "tensorboard": True}
    options = ["--precision", "bf16", "--patience", "3", "--tensorboard"]
    assert run("train", "--out", folder, "--data", pairs, *SMALL, *options).exit_code == 0
    result = run("train", "--out", folder, "--resume", "--steps", "7")
    assert result.exit_code == 0 and "bf16 on cpu" in result.output, result.output
    assert chosen.items() <= json.loads((folder / "run.json").read_text()).items()
    assert len(list((folder / "tensorboard").iterdir())) == 2, "one file from each start"
    result = run("train", "--out", folder, "--resume", "--steps", "8", "--precision", "float32")
    assert result.exit_code == 0 and "float32 on cpu" in result.output, result.output


def test_a_run_may_end_early():
    """Its average takes what there is; nobody has chosen its number."""
    for begun in (True, False):
        for steps in (1, 50, 114, 1500, 8000):
            training = choose(RECIPES["general"], {"steps": steps}, 1, begun).training
            assert training.steps == steps and training.average * training.average_every <= steps
            few = {"steps": steps, "average_every": 1000}
            assert choose(RECIPES["general"], few, 1, begun).training.average_every == 1000


def test_what_is_held_out_is_drawn_from_the_whole_file(tmp_path):
    """And what is not validated on is trained on."""
    path = tmp_path / "long.tsv"
    path.write_text("".join(f"sentence {i}\tSatz {i}\n" for i in range(11_000)))
    seen = {}

    def look(recipe, pairs, valid, **_):
        seen.update(train=pairs, valid=valid)
        raise ValueError("enough")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(translation, "start_training", look)
        assert "enough" in refusal("train", "--out", tmp_path / "m", "--data", path)
    assert len(seen["valid"]) == 500 and len(seen["train"]) == 10_500
    numbers = [int(source.split()[1]) for source, _ in seen["valid"]]
    assert 4_500 < sum(numbers) / 500 < 6_500


def test_lines_are_named_also_where_all_of_them_are_bad(tmp_path):
    path = tmp_path / "commas.tsv"
    path.write_text("one,eins\ntwo,zwei\n")
    said = refusal("train", "--out", tmp_path / "m", "--data", path, "--skip-bad")
    assert "holds no sentence pairs" in said and "2 lines have 1 column" in said


@pytest.mark.parametrize(
    "content",
    ["", "{}", "[]", "null", "[" * 100_000, '{"recipe": {"training": {}, "heads": 3}}']
    + ['{"recipe": 1}'],
)
def test_broken_choices_are_refused(model, tmp_path, content):
    for file in model.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "run.json").write_text(content)
    assert "run.json" in refusal("train", "--out", tmp_path, "--resume")


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("recipe", "preset"), "to_json"),
        (("recipe", "model"), {"heads": 1}),
        (("recipe", "model"), {"vocab_size": 300}),
        (("recipe", "model"), {"n_layers": "x"}),
        (("recipe", "max_tokens"), "x"),
        (("recipe", "training", "accumulate"), 10**30),
        (("recipe", "training", "average"), None),
        (("recipe", "training", "seed"), "x"),
        (("recipe", "training", "factor"), 10**400),
        (("recipe", "training", "clip"), math.nan),
        (("data",), "abc"),
        (("data",), [1]),
        (("max_length",), math.inf),
    ],
)
def test_choices_keep_to_the_limits_of_the_options(model, tmp_path, place, value):
    """Whoever wrote the file; what is there stays as it was."""
    folder = tmp_path / "m"
    shutil.copytree(model, folder)
    run_json = json.loads((folder / "run.json").read_text())
    part = run_json
    for name in place[:-1]:
        part = part[name]
    part[place[-1]] = value
    (folder / "run.json").write_text(json.dumps(run_json))
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    message = refusal("train", "--out", folder, "--resume", "--steps", "9")
    assert "run.json does not hold the choices of a run" in message
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_a_run_goes_on_from_any_folder(pairs, tmp_path, monkeypatch):
    monkeypatch.chdir(pairs.parent)
    assert run("train", "--out", tmp_path / "m", "--data", pairs.name, *SMALL).exit_code == 0
    monkeypatch.chdir(tmp_path)
    again = run("train", "--out", "m", "--resume", "--steps", "7")
    assert again.exit_code == 0 and "from step 6" in again.output, again.output


def test_the_vocabulary_of_a_run_stays(model, tmp_path):
    shutil.copytree(model, tmp_path / "m")
    message = refusal("train", "--out", tmp_path / "m", "--resume", "--vocab", "400")
    assert "--vocab 400" in message and "--vocab 300" in message


def test_other_pairs_are_no_continuation(model, pairs, tmp_path):
    for file in model.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    other = tmp_path / "other.tsv"
    other.write_text("".join(f"{a}\t{b}\n" for a, b in date_pairs(301)), encoding="utf-8")
    message = refusal("train", "--out", tmp_path, "--resume", "--steps", "9", "--data", other)
    assert "other sentence pairs" in message


def test_choices_fit_the_number_of_steps():
    """The warm-up and the average; those that are given are taken as they are."""
    recipe = choose(RECIPES["dates"], {"steps": 700, "n_layers": 3, "clip": None}, 1, begun=False)
    training = recipe.training
    assert (training.steps, training.warmup, training.average_every) == (700, 280, 10)
    for steps, warmup in ((4000, 2000), (4001, 2000), (16_000, 2000), (3000, 1500), (1, 1)):
        training = choose(RECIPES["multi30k"], {"steps": steps}, 1, begun=False).training
        assert training.warmup == warmup, "as in a run that goes on to the end, if it fits"
    assert recipe.model == {"n_layers": 3, "dropout": 0.0} and recipe.vocab_size == 400
    begun = choose(RECIPES["dates"], {"steps": 700, "vocab_size": 500}, 4, begun=True)
    assert begun.training.warmup == 280 and begun.training.average_every == 20
    assert begun.training.accumulate == 4 and begun.vocab_size == 500
    assert choose(RECIPES["dates"], {"warmup": 7, "steps": 5}, 1, begun=False).training.warmup == 7
    assert choose(RECIPES["dates"], {"accumulate": 3}, 2, begun=False).training.accumulate == 3
    for name, recipe in RECIPES.items():
        assert choose(recipe, {}, 1, begun=False) == recipe, name


def test_two_aligned_files(pairs, tmp_path):
    """``--data`` given twice is the same as one file of two columns."""
    rows = [line.split("\t") for line in pairs.read_text(encoding="utf-8").splitlines()]
    for i, name in enumerate(("en", "zh")):
        (tmp_path / name).write_text("".join(f"{r[i]}\n" for r in rows), encoding="utf-8")
    both = ["--data", tmp_path / "en", "--data", tmp_path / "zh"]
    one, two = tmp_path / "one", tmp_path / "two"
    assert run("train", "--out", one, "--data", pairs, *SMALL).exit_code == 0
    assert run("train", "--out", two, *both, *SMALL).exit_code == 0
    assert (one / "model.safetensors").read_bytes() == (two / "model.safetensors").read_bytes()
    assert "from one file or from two" in refusal(
        "train", "--out", tmp_path / "x", *both, "--data", pairs, *SMALL
    )
    (tmp_path / "zh").write_text("one line\n")
    assert "300 lines" in refusal("train", "--out", tmp_path / "x", *both, *SMALL)


def test_long_sentences_are_bad_lines(pairs, tmp_path):
    path = tmp_path / "long.tsv"
    path.write_bytes(pairs.read_bytes() + b"long " * 30 + b"\tlang\n")
    out = tmp_path / "m"
    arguments = ["train", "--out", out, "--data", path, "--max-length", "100", *SMALL]
    assert "line 301" in refusal(*arguments) and not out.exists()
    assert "line 301" in run(*arguments, "--skip-bad").output


def test_early_stopping_and_what_it_says(pairs, tmp_path):
    """A learning rate of nearly nothing: no validation is better than the first but by chance."""
    arguments = ["--data", pairs, *SMALL[:4], "--max-tokens", "256", "--steps", "50"]
    still = ["--factor", "1e-30", "--save-every", "1", "--patience", "2"]
    result = run("train", "--out", tmp_path / "m", *arguments, *still)
    assert result.exit_code == 0 and "Stopped at step" in result.output, result.output
    assert "none of the last 2 validations" in result.output


def test_a_plot_of_the_log(model):
    """A picture beside the log."""
    assert run("plot", model).output.strip() == str(model / "log.png")
    assert (model / "log.png").read_bytes().startswith(b"\x89PNG")
    (model / "log.png").unlink()
    assert "log.csv" in refusal("plot", model / "nowhere")


def test_scores_of_the_papers_and_translations_in_a_file(model, pairs, tmp_path):
    """Lower case and Moses tokens; one line for each pair."""
    out = tmp_path / "out.txt"
    arguments = ["--model", model, "--data", pairs, "--moses", "de", "--output", out]
    output = run("evaluate", *arguments).output
    assert "lower case, Moses de" in output and "tok:none" in output
    assert len(out.read_text(encoding="utf-8").splitlines()) == 300
    first, second = re.findall(
        "tok:[a-z0-9]+", run("evaluate", *arguments, "--tokenize", "char").output
    )
    assert (first, second) == ("tok:char", "tok:none")
    message = refusal("evaluate", "--tokenize", "words")
    assert all(f"'{name}'" in message for name in ("words", *BLEU_TOKENIZERS))


@pytest.mark.parametrize(
    "options",
    [
        ["--recipe", "multi30k"],
        ["--recipe", "tatoeba"],
        ["--valid", "pairs.tsv"],
        ["--skip-bad"],
        ["--max-length", "9"],
    ],
)
def test_options_about_data_that_is_not_given_are_refused(options, pairs, tmp_path, monkeypatch):
    """Else dates would be learnt, and nobody be told."""
    monkeypatch.chdir(pairs.parent)
    said = refusal("train", "--out", tmp_path / "run", *options, *SMALL)
    assert "--data is missing" in said and not (tmp_path / "run").exists()


def test_validation_on_what_is_learnt_is_told(pairs, tmp_path):
    """With the number of pairs."""
    valid = tmp_path / "valid.tsv"
    valid.write_text("".join(pairs.read_text("utf-8").splitlines(True)[:7]) + "new\tneu\n", "utf-8")
    said = run("train", "--out", tmp_path / "run", "--data", pairs, "--valid", valid, *SMALL).output
    assert "Warning: 7 of 8 pairs to validate on are learnt from too" in said


def test_the_log_of_another_is_not_overwritten(pairs, tmp_path):
    """Whether it is that of a run or not."""
    (tmp_path / "log.csv").write_text("precious")
    assert "holds a run already (log.csv)" in refusal("train", "--out", tmp_path, "--data", pairs)
    assert (tmp_path / "log.csv").read_text() == "precious"


def test_a_full_disk_is_named_with_the_way_on(pairs, tmp_path):
    """Which is to make room and resume."""
    resource = pytest.importorskip("resource")
    folder = tmp_path / "run"
    assert run("train", "--out", folder, "--data", pairs, *SMALL).exit_code == 0
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2_000_000, hard))  # the weights alone fit
    try:
        said = refusal("train", "--out", folder, "--resume", "--steps", "8")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert re.search(r"cannot write .*training\.pt: is the disk full\?", said), said
    assert "the last checkpoint is of step 6: go on with --resume" in said


def test_memory_that_ran_out_is_named(model, monkeypatch):
    """Python itself says nothing."""

    def fill(*given):
        raise MemoryError

    monkeypatch.setattr(cli, "load_translator", fill)
    assert "Error: there is not enough memory" in refusal("translate", "--model", model, "a")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_saves_and_ends(pairs, tmp_path, number, code):
    """The step is finished, a checkpoint written, and the way to go on named."""
    folder = tmp_path / "run"
    long = ["--steps", "100000", "--save-every", "100000", "--log-every", "1000"]
    command = [sys.executable, "-m", "transformer_lit.cli", "train", "--out", folder]
    command += ["--data", pairs, *SMALL[:4], "--max-tokens", "256", *long]
    process = subprocess.Popen([str(c) for c in command], stderr=subprocess.PIPE, text=True)
    assert "from step 0" in process.stderr.readline()
    time.sleep(1.5)
    process.send_signal(number)
    said = process.communicate(timeout=120)[1]
    assert process.returncode == code and "Traceback" not in said, said
    step = torch.load(folder / "training.pt", weights_only=True)["step"]
    assert step > 0 and f"Stopped at step {step}; the last checkpoint is of step {step}" in said


def test_several_processes_as_one(pairs, tmp_path):
    """Two processes of torchrun end with the losses of one."""
    common = ["train", "--data", pairs, *SMALL, "--accumulate", "2", "--log-every", "1"]
    assert run(*common, "--out", tmp_path / "one").exit_code == 0
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
        + ["-m", "transformer_lit.cli", *map(str, common), "--out", str(tmp_path / "two")],
        capture_output=True,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("in 2 processes") == 1, "the first process speaks for all"
    logs = []
    for name in ("one", "two"):
        with (tmp_path / name / "log.csv").open() as file:
            logs.append(list(csv.DictReader(file)))
    for one, two in zip(*logs, strict=True):
        assert float(one["loss"]) == pytest.approx(float(two["loss"]), abs=1e-5)
        assert one["tokens"] == two["tokens"]


@pytest.mark.parametrize(
    ("error", "parted"), [(None, True), (SystemExit(143), True), (MemoryError("full"), False)]
)
def test_a_process_that_fails_alone_waits_for_no_farewell(
    error, parted, pairs, tmp_path, monkeypatch
):
    """Else NCCL would hold it for two hours, and torchrun would learn nothing."""

    def fail(trainer):
        if error is not None:
            raise error

    farewells = []
    monkeypatch.setattr(cli, "train_and_tell", fail)
    monkeypatch.setattr(gpu.Accelerator, "close", lambda engine: farewells.append(engine.rank))
    assert run("train", "--out", tmp_path / "run", "--data", pairs, *SMALL).exit_code == (
        0 if error is None else 143 if parted else 1
    )
    assert farewells == [0] * parted


def test_a_restart_by_torchrun_goes_on(model, pairs, tmp_path, monkeypatch):
    """The command is the same as the first time, without ``--resume``."""
    folder = tmp_path / "m"
    shutil.copytree(model, folder)
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    for name in ("none", "of tonight"):  # torchrun's own, and one that --rdzv-id gives
        monkeypatch.setenv("TORCHELASTIC_RUN_ID", name)
        said = refusal("train", "--out", folder, "--data", pairs, *SMALL[:4], "--steps", "8")
        assert "holds a run already" in said, "it was there before"
    choices = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps(choices | {"launch": "of tonight"}))
    again = run("train", "--out", folder, "--data", pairs, *SMALL[:4], "--steps", "8")
    assert again.exit_code == 0 and "from step 6" in again.output, again.output
    fresh = run("train", "--out", tmp_path / "new", "--data", pairs, *SMALL)
    assert fresh.exit_code == 0 and "from step 0" in fresh.output


def test_utf16_is_named(tmp_path):
    path = tmp_path / "windows.tsv"
    path.write_text("one\teins\ntwo\tzwei\n", encoding="utf-16")
    assert "UTF-16" in refusal("train", "--out", tmp_path / "m", "--data", path, "--skip-bad")


def test_the_form_of_the_text_does_not_matter(model):
    """A decomposed accent, a byte-order mark and blanks at the ends: as `read_pairs` reads them."""
    plain, other = "Café May 2026", "\ufeff  Cafe\u0301 May 2026 \n"
    assert run("translate", "--model", model, stdin=other).stdout == (
        run("translate", "--model", model, plain).stdout
    )


POSIX = pytest.mark.skipif(os.name != "posix", reason="Windows has other streams and locks")


@POSIX
@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_streams_do_no_harm(pairs, tmp_path, closed):
    """As a program that another has started may find them."""
    arguments = ["-m", "transformer_lit.cli", "train", "--out", tmp_path / "m", "--data", pairs]
    command = shlex.join(map(str, [sys.executable, *arguments, *SMALL]))
    assert subprocess.run(["sh", "-c", f"{command} {closed}"]).returncode == 0
    command = shlex.join(map(str, [*arguments[:2], "evaluate", "--model", tmp_path / "m"]))
    command = f"{shlex.quote(sys.executable)} {command} --data {shlex.quote(str(pairs))}"
    assert subprocess.run(["sh", "-c", f"{command} {closed}"]).returncode == 0


def test_utf8_is_written_in_any_locale(tmp_path):
    """Also where Python would choose an alphabet that lacks the characters."""
    rows = [("a", "年"), ("b", "年")] * 4
    (tmp_path / "zh.tsv").write_text("".join(f"{a}\t{b}\n" for a, b in rows), encoding="utf-8")
    small = [*SMALL[:4], "--max-tokens", "64", "--steps", "60", "--d-model", "32"]
    assert (
        run("train", "--out", tmp_path / "m", "--data", tmp_path / "zh.tsv", *small).exit_code == 0
    )
    done = subprocess.run(
        [sys.executable, "-m", "transformer_lit.cli", "translate", "--model", tmp_path / "m", "a"],
        capture_output=True,
        env=os.environ | {"PYTHONIOENCODING": "latin-1"},
    )
    assert done.returncode == 0, done.stderr
    assert "年" in done.stdout.decode("utf-8")


@POSIX
def test_two_runs_in_one_folder(model, pairs, tmp_path):
    """The second is refused, and begins when the first has ended."""
    import fcntl

    folder = tmp_path / "m"
    shutil.copytree(model, folder)
    handle = os.open(folder, os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)
    arguments = ["train", "--out", folder, "--resume", "--steps", "7"]
    assert "another run is writing into" in refusal(*arguments)
    os.close(handle)
    assert run(*arguments).exit_code == 0


def test_a_run_killed_as_it_began_goes_on(model, pairs, tmp_path):
    """Whatever of its files were written, in their order."""
    folder = tmp_path / "m"
    assert run("train", "--out", folder, "--data", pairs, *SMALL, "--steps", "1").exit_code == 0
    order = ["tokenizer.json", "run.json", "training.pt", "model.safetensors", "config.json"]
    written = sorted(order, key=lambda name: (folder / name).stat().st_ctime_ns)
    assert written[0] == "tokenizer.json"
    state = torch.load(folder / "training.pt", weights_only=True)
    state |= {"step": 0, "epoch": 0, "position": 0, "log": []}
    for here in range(len(order)):
        part = tmp_path / f"part {here}"
        part.mkdir()
        for name in order[: here + 1]:
            shutil.copy(folder / name, part / name)
        arguments = ["train", "--out", part, "--data", pairs, *SMALL]
        if (part / "training.pt").exists():
            torch.save(state, part / "training.pt")
            assert "--resume" in refusal(*arguments)
            arguments = ["train", "--out", part, "--resume", "--steps", "2"]
        result = run(*arguments)
        assert result.exit_code == 0, result.output
        assert run("translate", "--model", part, "May 2026").exit_code == 0


def test_a_model_that_no_machine_holds(pairs, tmp_path):
    wide = ["--d-model", "1000000", "--heads", "1", "--d-ff", "1000000"]
    message = refusal("train", "--out", tmp_path / "m", "--data", pairs, *SMALL, *wide)
    assert "this machine has" in message and "smaller width" in message
    assert "--max-tokens" in explain(RuntimeError("DefaultCPUAllocator: can't allocate memory"))
    assert "others" in explain(RuntimeError("Gloo connectFullMesh failed"))
    assert explain(RuntimeError("anything else")) is None


def test_a_sentence_too_long_to_translate(model):
    message = refusal("translate", "--model", model, stdin="May 2026\n" + "a " * 2000)
    assert "sentence 2 has 3,999 characters, more than 2,000" in message
    blanks = " " * 10_000 + "May 2026" + " " * 10_000
    assert run("translate", "--model", model, blanks).stdout == (
        run("translate", "--model", model, "May 2026").stdout
    )


def test_an_output_that_cannot_be_written_is_told_first(model, pairs, tmp_path, monkeypatch):
    """Before anything is translated; a file that is there stays till then."""
    from transformer_lit.translation import Translator

    def never(*given, **options):
        raise AssertionError("translated in vain")

    monkeypatch.setattr(Translator, "translate", never)
    arguments = ["evaluate", "--model", model, "--data", pairs, "--output"]
    assert "nowhere" in refusal(*arguments, tmp_path / "nowhere" / "out.txt")
    (tmp_path / "out.txt").write_text("before")
    assert isinstance(run(*arguments, tmp_path / "out.txt").exception, AssertionError)
    assert (tmp_path / "out.txt").read_text() == "before"
    assert "would replace the pairs" in refusal(*arguments, pairs)
    empty = tmp_path / "empty.tsv"
    empty.touch()
    arguments = ["evaluate", "--model", model, "--data", empty, "--output", tmp_path / "no.txt"]
    assert "no sentence pairs" in refusal(*arguments)
    assert not (tmp_path / "no.txt").exists()


def test_a_language_that_moses_does_not_know_is_told_first(monkeypatch):
    """Before anything is translated."""
    from transformer_lit.translation import Translator

    monkeypatch.setattr(Translator, "translate", lambda *_, **__: pytest.fail("in vain"))
    assert "no language 'xx'" in refusal("evaluate", "--moses", "xx")


def test_a_translation_is_one_line():
    """Whatever a model has drawn."""
    for text, line in (
        ("2026年", "2026年"),
        ("a\r\nb\n", "a b"),
        ("a\tb", "a b"),  # a tab would look like a column
        ("\x1b[2Ja\x07\0\x9b1m", " [2Ja   1m"),  # commands that a terminal would obey
        ("a\u2028b\x85c", "a b c"),
        ("", ""),
    ):
        assert one_line(text) == line


def test_a_download_overwrites_no_other_pairs(tmp_path):
    with zipfile.ZipFile(tmp_path / "cmn-eng.zip", "w") as archive:
        archive.writestr("cmn.txt", "".join(f"{a}\t{b}\tby\n" for a, b in date_pairs(40)))
    (tmp_path / "train.tsv").write_text("mine\tmeins\n")
    assert "train.tsv is there already" in refusal("download", "tatoeba", tmp_path)
    assert (tmp_path / "train.tsv").read_text() == "mine\tmeins\n"
    assert not (tmp_path / "valid.tsv").exists()
    (tmp_path / "train.tsv").unlink()
    for _ in range(2):  # what it has written itself is no other
        result = run("download", "tatoeba", tmp_path)
        assert result.exit_code == 0 and "train.tsv" in result.output, result.output
    folder = tmp_path / "my corpora"  # a command to copy from the screen
    folder.mkdir()
    (tmp_path / "cmn-eng.zip").rename(folder / "cmn-eng.zip")
    *_, line = run("download", "tatoeba", folder).output.splitlines()
    assert shlex.split(line)[-3::2] == [str(folder / "train.tsv"), str(folder / "valid.tsv")]
    assert "--sha256" in refusal("download", "multi30k", tmp_path, "--sha256", "0")


@pytest.mark.parametrize("content", [b"\xff\xfe", b'step,loss\n"' + b"x" * 200_000])
def test_a_broken_log_is_named(tmp_path, content):
    (tmp_path / "log.csv").write_bytes(content)
    assert "log.csv is not that of a training run" in refusal("plot", tmp_path)


def test_an_update_that_grows_with_the_processes_is_told(pairs, tmp_path, monkeypatch):
    """So that nobody compares other updates; nothing is said where the option was given."""
    from transformer_lit.gpu import Accelerator

    monkeypatch.setattr(Accelerator, "prepare", lambda *given: sys.exit(9))
    monkeypatch.setattr("torch.distributed.init_process_group", lambda *given, **options: None)
    monkeypatch.setattr("torch.distributed.barrier", lambda *given: None)
    monkeypatch.setenv("WORLD_SIZE", "3")
    arguments = ["train", "--out", tmp_path / "m", "--data", pairs, *SMALL]
    assert "Warning: an update has a batch for each of 3 processes" in run(*arguments).output
    assert "Warning" not in run(*arguments, "--accumulate", "3").output


@pytest.mark.parametrize(
    ("says", "told"),
    [
        ("CUDA out of memory. Tried to allocate 2 GiB", "not enough memory"),
        ("DefaultCPUAllocator: can't allocate memory: you tried", "not enough memory"),
        ("[gloo/transport/tcp/pair.cc:553] Connection closed by peer", "without the others"),
        ("required rank 4 tensor to use channels_last memory format", None),
        ("mat1 and mat2 shapes cannot be multiplied", None),
    ],
)
def test_only_what_is_known_is_explained(says, told):
    """A fault of ours is not told as a lack of memory, or as a process that died."""
    reason = explain(RuntimeError(says))
    assert reason is None if told is None else told in reason and says in reason


# The model of the package, and several translations of a sentence


def test_without_a_folder_it_is_the_date_model():
    """To translate and to evaluate; the help says so."""
    assert run("translate", "Saturday, November 28, 2026").stdout == "2026年11月28日星期六\n"
    output = run("evaluate", "--data", "-").output  # no such file: told, and no model asked for
    assert "--model" not in output
    for command in ("translate", "evaluate"):
        said = " ".join(run(command, "--help").output.split())
        assert "date model that comes with the package" in said


def test_evaluate_takes_the_date_model(pairs):
    output = run("evaluate", "--data", pairs).output
    assert "pairs        300" in output
    assert float(output.split("exact match")[1].split("%")[0]) > 99


def test_several_translations_are_numbered(model):
    """The number of the sentence, the score if asked for, the text; an empty one has one line."""
    lines = "May 2026\n\n28 November 2026\n"
    arguments = ["translate", "--model", model, "--min-length", "3"]
    rows = [
        line.split("\t")
        for line in run(*arguments, "--n-best", "3", stdin=lines).stdout.splitlines()
    ]
    assert [row[0] for row in rows] == ["1"] * 3 + ["2"] + ["3"] * 3
    assert rows[3] == ["2", ""]
    scored = run(*arguments, "--n-best", "3", "--scores", stdin=lines).stdout.splitlines()
    scored = [line.split("\t") for line in scored]
    assert [[number, text] for number, _, text in scored] == rows
    scores = [float(score) for _, score, _ in scored]
    assert scores[0] >= scores[1] >= scores[2] and scores[4] >= scores[5] >= scores[6]
    plain = run(*arguments, "--beam", "4", stdin=lines).stdout.splitlines()
    assert plain == [rows[0][1], "", rows[4][1]]
    one = run(*arguments, "--beam", "4", "--scores", "May 2026").stdout.rstrip("\n").split("\t")
    assert one == scored[0][1:]
    greedy = run(*arguments, "--scores", "May 2026").stdout.rstrip("\n").split("\t")
    assert greedy[1] == run(*arguments, "May 2026").stdout.rstrip("\n")


def test_sentences_are_numbered_on(monkeypatch):
    """From one thousand to the next; draws go on likewise."""
    from transformer_lit.translation import Translation, Translator

    begun = []

    def stub(self, sentences, n, first=None, **options):
        begun.append(first)
        return [[Translation("x", 0.0)] for _ in sentences]

    monkeypatch.setattr(Translator, "n_best", stub)
    monkeypatch.setattr(Translator, "sample", stub)
    many = "a\n" * 1002
    arguments = ["translate", "--n-best", "2"]
    for more in ([], ["--sample"]):
        lines = run(*arguments, *more, stdin=many).stdout.splitlines()
        assert [line.split("\t")[0] for line in lines] == [str(i) for i in range(1, 1003)]
    assert begun == [None, None, 0, 1000]


def test_draws_are_repeated_with_their_seed(model):
    arguments = [
        "translate",
        "--model",
        model,
        "--sample",
        "--n-best",
        "4",
        "May 2026",
        "1 May 1999",
    ]
    hot = [*arguments, "--temperature", "2", "--top-k", "50", "--top-p", "0.99"]
    first = run(*hot, "--seed", "1")
    assert first.exit_code == 0 and len({*first.stdout.split("\n")}) > 4, first.output
    assert run(*hot, "--seed", "1").stdout == first.stdout != run(*hot, "--seed", "2").stdout
    assert run(*arguments).stdout == run(*arguments, "--seed", "0", "--temperature", "1").stdout
    sure = run(*arguments, "--top-k", "1").stdout.splitlines()
    assert len(set(sure)) == 2  # the likeliest token, always


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--top-k", "3"], "--top-k is of no use without --sample"),
        (["--top-p", "0.5"], "--top-p is of no use without --sample"),
        (["--temperature", "2"], "--temperature is of no use without --sample"),
        (["--seed", "0"], "--seed is of no use without --sample"),
        (["--sample", "--beam", "2"], "leave out --beam"),
        (["--sample", "--alpha", "1"], "leave out --beam and --alpha"),
        (["--alpha", "1"], "--alpha is of no use in a greedy search: add --beam"),
        (["--alpha", "1", "--beam", "1"], "--alpha is of no use in a greedy search: add --beam"),
        (["--n-best", "3", "--beam", "2"], "--n-best 3 asks for more than the --beam 2"),
        (["--n-best", "0"], "--n-best"),
        (["--sample", "--temperature", "0"], "--temperature"),
        (["--sample", "--temperature", "nan"], "--temperature"),
        (["--sample", "--temperature", "inf"], "--temperature"),
        (["--sample", "--top-p", "0"], "--top-p"),
        (["--sample", "--top-p", "1.5"], "--top-p"),
        (["--sample", "--top-k", "0"], "--top-k"),
        (["--min-length", "0"], "--min-length"),
    ],
)
def test_options_that_do_not_fit_are_refused(options, says):
    message = " ".join(refusal("translate", *options, "May 2026").split())
    assert says in message and "Traceback" not in message
