"""Loss, schedule, and a trainer that can stop and go on."""

import csv
import dataclasses
import math
import os
import pickle
import random
import signal
import sys
import tempfile
import threading
import time
from contextlib import contextmanager, nullcontext, suppress
from functools import cache
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support import close, dtypes, random_model, random_tensor, seeds, sizes

from transformer_lit.data import PAD, Batch, TokenBatches, Tokenizer, date_pairs
from transformer_lit.decoding import lay_out_by_columns
from transformer_lit.model import Transformer, TransformerConfig
from transformer_lit.training import (
    LOGITS_AT_ONCE,
    EarlyStopping,
    Engine,
    TensorBoard,
    Trainer,
    TrainingConfig,
    fingerprint,
    learning_rate,
    smoothed_cross_entropy,
    smoothed_linear_cross_entropy,
    token_accuracy,
)

FILES = ["config.json", "log.csv", "model.safetensors", "training.pt"]
TINY = TransformerConfig(300, d_model=8, n_heads=2, d_ff=8, n_layers=1, dropout=0.2)
STILL = dataclasses.replace(TINY, dropout=0.0)


@cache
def batches() -> TokenBatches:
    """Return a few batches of dates."""
    return TokenBatches(date_pairs(20), Tokenizer.train([], 260), max_tokens=150)


def trainer(
    model_seed: int = 0,
    folder=None,
    validate=None,
    model=TINY,
    hooks=(),
    engine=None,
    laid_out=False,
    **config,
) -> Trainer:
    """Return a trainer of a new model, which the seed determines."""
    torch.manual_seed(model_seed)
    new = Transformer(model)
    if laid_out:
        lay_out_by_columns(new)
    options = {"steps": 8, "warmup": 4, "save_every": 3, "log_every": 2} | config
    return Trainer(
        new,
        batches(),
        TrainingConfig(**options),
        folder=folder,
        validate=validate,
        hooks=hooks,
        engine=engine,
    )


def before_each_update(t: Trainer, act) -> None:
    """Let ``act`` be called with the number of steps made, before each update."""
    update = t.update

    def act_and_update(*given):
        act(t.step)
        return update(*given)

    t.update = act_and_update


def parameters(t: Trainer) -> list[torch.Tensor]:
    """Return a copy of the weights of a trainer."""
    return [p.detach().clone() for p in t.model.parameters()]


def rows(t: Trainer) -> str:
    """Return the log of a trainer, but for the seconds, as text: there NaN equals NaN."""
    return "\n".join(str({k: v for k, v in row.items() if k != "seconds"}) for row in t.log)


def assert_same(one: Trainer, other: Trainer) -> None:
    """Two runs have come to the same: weights and Adam's memory bit for bit, and the log."""
    for models in ((one.model, other.model), (one.result, other.result)):
        for a, b in zip(*(model.parameters() for model in models), strict=True):
            assert a.equal(b)
    states = [t.optimizer.state_dict()["state"] for t in (one, other)]
    assert states[0].keys() == states[1].keys()
    for number, state in states[0].items():
        for name, value in state.items():
            assert value.equal(states[1][number][name])
    assert rows(one) == rows(other)


# Loss and accuracy


@given(seeds, dtypes, sizes, sizes, st.integers(1, 7), st.floats(0, 1))
def test_loss_follows_its_formula(seed, dtype, b, t, v, smoothing):
    """Section 5.4, number by number: a sum over all tokens but padding."""
    logits = random_tensor(seed, b, t, v, dtype=dtype)
    gold = random_tensor(seed, b, t).mul(100).long() % v
    probabilities = logits.double().softmax(-1)
    expected = 0.0
    for row in range(b):
        for place in range(t):
            true = gold[row, place].item()
            if true != PAD:
                for token in range(v):
                    wanted = (1 - smoothing) * (token == true) + smoothing / v
                    expected -= wanted * math.log(probabilities[row, place, token])
    loss = smoothed_cross_entropy(logits, gold, smoothing)
    assert loss.item() == pytest.approx(expected, rel=1e-4, abs=1e-5)
    close(smoothed_cross_entropy(logits, gold), smoothed_cross_entropy(logits, gold, 0.0))


pieces = st.tuples(sizes, st.integers(1, 90), st.integers(1, 9))


@given(seeds, dtypes, pieces, st.booleans(), st.floats(0, 1))
def test_loss_in_pieces_is_the_loss(seed, dtype, sizes, bias, smoothing):
    """And so are its gradients, whatever stands for padding."""
    b, t, v = sizes
    output = torch.nn.Linear(6, v, bias=bias).to(dtype)
    states = random_tensor(seed, b, t, 6, dtype=dtype).requires_grad_()
    for pad in (PAD, -100):
        gold = random_tensor(seed, b, t).mul(100).long() % v
        gold[random_tensor(seed + 1, b, t) > 1] = pad
        wanted = [states, *output.parameters()]
        found, expected = [], []
        with patch("transformer_lit.training.LOGITS_AT_ONCE", 40):
            in_pieces = smoothed_linear_cross_entropy(states, output, gold, smoothing, pad)
        at_once = smoothed_cross_entropy(output(states), gold, smoothing, pad)
        for results, loss in (found, in_pieces), (expected, at_once):
            loss = loss / gold.numel()  # what sums of many tokens round away
            results += [loss.detach(), *torch.autograd.grad(loss, wanted)]
        for one, other in zip(found, expected, strict=True):
            close(one, other)


def test_loss_in_pieces_is_whole_where_there_are_none(monkeypatch):
    """In half precision, in an older PyTorch, and compiled, it is the ordinary loss."""
    monkeypatch.setattr("transformer_lit.training.LOGITS_AT_ONCE", 1)
    output = torch.nn.Linear(6, 9)
    states, gold = random_tensor(0, 2, 5, 6), torch.tensor([[1, 2, 3, 4, PAD]] * 2)
    expected = smoothed_cross_entropy(output(states), gold, 0.1)
    with torch.autocast("cpu", torch.bfloat16):
        half = smoothed_linear_cross_entropy(states, output, gold, 0.1)
        assert half.equal(smoothed_cross_entropy(output(states), gold, 0.1))
    assert not half.equal(expected)
    with monkeypatch.context() as patched:
        patched.delattr("torch.nn.functional.linear_cross_entropy")
        patched.delattr("torch.nn.LinearCrossEntropyOptions")
        assert smoothed_linear_cross_entropy(states, output, gold, 0.1).equal(expected)
    with monkeypatch.context() as patched:
        patched.setattr(torch.compiler, "is_compiling", lambda: True)
        assert smoothed_linear_cross_entropy(states, output, gold, 0.1).equal(expected)
    hook = output.register_forward_hook(lambda layer, given, logits: 2 * logits)
    doubled = smoothed_cross_entropy(output(states), gold, 0.1)
    assert smoothed_linear_cross_entropy(states, output, gold, 0.1).equal(doubled)
    hook.remove()
    twice = Twice(6, 9)
    twice.load_state_dict(output.state_dict())
    assert smoothed_linear_cross_entropy(states, twice, gold, 0.1).equal(doubled)


class Twice(torch.nn.Linear):
    """A last layer that is more than its matrix."""

    def forward(self, x):
        """Double the logits."""
        return 2 * super().forward(x)


def test_loss_in_pieces_never_has_all_logits():
    """No memory is taken that is larger than a piece."""
    output, states = torch.nn.Linear(4, 4000), random_tensor(0, 4, 300, 4).requires_grad_()
    with torch.profiler.profile(profile_memory=True) as profile:
        smoothed_linear_cross_entropy(states, output, torch.full((4, 300), 7), 0.1).backward()
    events = profile.profiler.kineto_results.events()
    sizes = [event.nbytes() for event in events if event.name() == "[memory]"]
    assert len(sizes) > 10 and max(sizes) <= 4 * LOGITS_AT_ONCE


def test_loss_ignores_the_padding_id_that_it_is_told():
    """Another one than PAD."""
    logits, gold = random_tensor(0, 1, 3, 5), torch.tensor([[1, 4, 4]])
    close(
        smoothed_cross_entropy(logits, gold, pad=4),
        smoothed_cross_entropy(logits[:, :1], gold[:, :1]),
    )


def test_accuracy_does_not_count_padding():
    """F37: gold [5, PAD, PAD, PAD], predicted [6, PAD, PAD, PAD] is 0 %."""
    predicted = torch.nn.functional.one_hot(torch.tensor([[6, PAD, PAD, PAD]]), 8).float()
    assert token_accuracy(predicted, torch.tensor([[5, PAD, PAD, PAD]])) == 0
    assert token_accuracy(predicted, torch.tensor([[6, PAD, PAD, PAD]])) == 1
    assert token_accuracy(predicted, torch.tensor([[6, 5, PAD, PAD]])) == 0.5
    assert token_accuracy(predicted, torch.tensor([[PAD, PAD, PAD, PAD]])) == 0


# The schedule


def test_learning_rates_of_the_paper():
    """F40: width 512, warm-up 4000."""
    assert learning_rate(1, 512) == pytest.approx(1.747e-7, rel=1e-3)
    assert learning_rate(4000, 512) == pytest.approx(6.988e-4, rel=1e-3)


@given(st.integers(1, 10_000), st.integers(1, 10_000), st.integers(1, 2048), st.floats(0.1, 10))
def test_learning_rate_rises_then_falls(step, warmup, d_model, factor):
    """F40: no value twice; the highest at the end of the warm-up."""
    rate, after = (learning_rate(s, d_model, warmup, factor) for s in (step, step + 1))
    assert rate < after if step < warmup else rate > after
    highest = factor / math.sqrt(d_model * warmup)
    right = highest * (step / warmup if step <= warmup else math.sqrt(warmup / step))
    assert rate == pytest.approx(right, rel=1e-9)


@pytest.mark.parametrize(("step", "warmup"), [(0, 10), (-1, 10), (1, 0)])
def test_steps_are_counted_from_one(step, warmup):
    """F40: step 0 would have a rate of 0 or none at all."""
    with pytest.raises(ValueError, match="counted from 1"):
        learning_rate(step, 512, warmup)


def test_the_trainer_follows_the_schedule():
    """F40: one rate a step, from step 1, across epochs."""
    log = trainer(log_every=1, steps=12, factor=2.0).train(progress=False)
    assert [entry["step"] for entry in log] == list(range(1, 13))
    expected = [learning_rate(step, TINY.d_model, 4, 2.0) for step in range(1, 13)]
    assert [entry["learning_rate"] for entry in log] == expected


def test_the_trainer_goes_through_every_epoch():
    """Each batch once, and then those of the next epoch."""
    epochs = [batch for epoch in range(3) for batch in batches().epoch(epoch)]
    t = trainer(steps=len(epochs) - 1)
    used, update = [], t.update
    t.update = lambda made, n_tokens: used.extend(made) or update(made, n_tokens)
    t.train(progress=False)
    for batch, expected in zip(used, epochs[:-1], strict=True):
        assert batch.src.equal(expected.src) and batch.tgt.equal(expected.tgt)


# One update


class Prescribed(Transformer):
    """A model that gives the true token, 1, the loss that stands in the source."""

    def __init__(self, config):
        super().__init__(dataclasses.replace(config, d_model=config.vocab_size, n_heads=1))
        self.output.weight.data = torch.eye(config.vocab_size)

    def states(self, tgt, memory, memory_mask=None, cache=None):
        """Return logits that are 0 but for token 1."""
        return memory.expand(tgt.shape + memory.shape[-1:])

    def encode(self, src):
        """Read the loss."""
        others = self.config.vocab_size - 1
        p = (-src[:, :1].double()).exp()
        logits = torch.zeros(len(src), 1, self.config.vocab_size)
        logits[:, :, 1] = (p * others / (1 - p)).log()
        return logits, None


def test_accumulated_loss_is_averaged_over_all_tokens():
    """F36: 1 token of loss 4 and 3 tokens of loss 2 have a mean of 2.5."""
    t = Trainer(Prescribed(TINY), batches(), TrainingConfig(label_smoothing=0))
    micro = [
        Batch(torch.tensor([[4]]), torch.tensor([[1, 1, PAD, PAD]])),
        Batch(torch.tensor([[2]]), torch.tensor([[1, 1, 1, 1]])),
    ]
    loss, n_tokens = t.update(micro)
    assert n_tokens == 4
    assert loss / n_tokens == pytest.approx(2.5, rel=1e-5)


@given(seeds, st.integers(2, 4))
def test_small_batches_have_the_gradient_of_a_large_one(seed, n):
    """F36: and lead to the same weights."""
    plan = batches().plan(seed)[:n]
    small, large = [batches().make(numbers) for numbers in plan], batches().make(sum(plan, []))
    trainers = [
        Trainer(random_model(STILL, seed, torch.float64).train(), batches(), TrainingConfig())
        for _ in range(2)
    ]
    results = [t.update(made) for t, made in zip(trainers, (small, [large]), strict=True)]
    assert results[0] == pytest.approx(results[1], rel=1e-9)
    for one, other in zip(*(t.model.parameters() for t in trainers), strict=True):
        close(one.grad, other.grad)


def test_the_trainer_accumulates():
    """F36: with ``accumulate=2`` an update takes the next two batches."""
    one, other = trainer(model=STILL, accumulate=2, steps=2), trainer(model=STILL)
    one.train(progress=False)
    stream = list(batches().epoch())
    other.update(stream[:2])
    other.update(stream[2:4])
    for a, b in zip(one.model.parameters(), other.model.parameters(), strict=True):
        assert a.equal(b)


def test_an_update_is_that_of_adam():
    """Section 5.3: with the gradient of the mean loss, its norm cut, at the step's own rate."""
    # without biases: those of the keys have gradients of 0, and Adam enlarges their rounding
    config = dataclasses.replace(STILL, bias=False)
    t = trainer(model=config, clip=0.01)
    theirs = Transformer(config)
    theirs.load_state_dict(t.model.state_dict())
    adam = torch.optim.Adam(theirs.parameters(), betas=(0.9, 0.98), eps=1e-9)
    for step, batch in enumerate(list(batches().epoch())[:3], start=1):
        t.update([batch])
        adam.zero_grad()
        logits = theirs(batch.src, batch.tgt_in).flatten(0, 1)
        torch.nn.functional.cross_entropy(
            logits, batch.gold.flatten(), ignore_index=PAD, label_smoothing=0.1
        ).backward()
        norm = torch.nn.utils.clip_grad_norm_(theirs.parameters(), 0.01)
        assert norm > 0.01, "nothing was cut"
        adam.param_groups[0]["lr"] = learning_rate(step, TINY.d_model, warmup=4)
        adam.step()
    for one, other in zip(t.model.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-4)


class Torn(Transformer):
    """A model with a finite loss and, when it is told so, a gradient that is not a number."""

    def states(self, *arguments):
        """Add the root of 0 to all: its slope is infinite."""
        states = super().states(*arguments)
        return states + (0 * self.output.weight[5, 0]).sqrt() if self.torn else states


@given(st.sampled_from(["loss", "gradient"]), st.booleans())
def test_what_is_not_finite_stops_the_training(tmp_path_factory, what, saved):
    """F05: the message says where and what there is to go on from; the weights are as before."""
    tmp_path = tmp_path_factory.mktemp("run")
    torch.manual_seed(0)
    model = Torn(TINY)
    model.torn = False
    config = TrainingConfig(9, warmup=4, save_every=3, log_every=7, accumulate=2, average=2)
    t = Trainer(model, batches(), config, folder=tmp_path if saved else None)
    before = []

    def tear(step):
        if step == 7:
            assert not before, "it was not stopped"
            if what == "gradient":
                model.torn = True
            else:
                with torch.no_grad():
                    model.output.weight[5, 0] = torch.inf
            before[:] = [*parameters(t), *t.snapshots[-1].values()]

    before_each_update(t, tear)
    message = rf"{what}.* step 8 \(batches\.plan\(\d+\)\[\d+:\d+\]\).*factor.*warmup.*clip"
    with pytest.raises(FloatingPointError, match=message) as raised:
        t.train(progress=False)
    assert f"plan({t.epoch})[{t.position - 2}:{t.position}]" in str(raised.value)
    at = 16 - sum(len(batches().plan(epoch)) for epoch in range(t.epoch))
    assert t.position == at, "the eighth update ends with the sixteenth batch"
    assert ("step 6, is in " + str(tmp_path) in str(raised.value)) == saved
    assert ("checkpoint" in str(raised.value)) == saved
    assert t.step == 7
    if saved:  # every line tells how it came to this
        with (tmp_path / "log.csv").open() as file:
            assert [row["step"] for row in csv.DictReader(file)] == ["3", "6", "7"]
    assert len(before) > 20
    for old, new in zip(before, [*parameters(t), *t.snapshots[-1].values()], strict=True):
        assert old.equal(new)
    for state in t.optimizer.state_dict()["state"].values():
        assert state["step"] == 7 and state["exp_avg"].isfinite().all()


def test_training_goes_on_from_before_a_loss_that_is_not_finite(tmp_path):
    """The checkpoint that the message names is whole, and ends as a run without the accident."""
    whole = trainer(steps=9)
    whole.train(progress=False)
    t = trainer(folder=tmp_path, steps=9)

    def break_it(step):
        if step == 4:
            t.model.output.weight.data[5, 0] = math.nan

    before_each_update(t, break_it)
    with pytest.raises(FloatingPointError, match="loss became nan at step 5 .* of step 3"):
        t.train(progress=False)
    resumed = trainer(1, tmp_path, steps=9)
    assert resumed.resume() == 3
    resumed.train(progress=False)
    assert_same(resumed, whole)


@given(seeds, st.floats(0.1, 10), st.integers(1, 4))
def test_clipping_is_that_of_pytorch(seed, share, n):
    """One norm for all gradients; below the limit they stay, above it they get its length."""
    made = [random_model(TINY, seed), random_model(TINY, seed)]
    for model in made:
        for i, p in enumerate(list(model.parameters())[1 : 1 + n]):  # the others have none
            p.grad = random_tensor(seed + i, *p.shape)
    norm = math.sqrt(
        sum(p.grad.square().sum().item() for p in made[0].parameters() if p.grad is not None)
    )
    limit = share * norm
    engine = Engine()
    engine.prepare(made[0])
    assert engine.step(torch.optim.SGD(made[0].parameters(), lr=1.0), limit) == pytest.approx(norm)
    torch.nn.utils.clip_grad_norm_(made[1].parameters(), limit)
    torch.optim.SGD(made[1].parameters(), lr=1.0).step()
    for one, other in zip(*(model.parameters() for model in made), strict=True):
        close(one, other)
        if one.grad is not None:
            close(one.grad, other.grad)


class Listening(Engine):
    """An engine that notes the loss of each batch, and whose process is one of several."""

    def __init__(self, rank: int = 0, world_size: int = 1):
        super().__init__()
        self.rank, self.world_size, self.heard = rank, world_size, []

    def backward(self, *given):
        """Note the loss."""
        self.heard.append(super().backward(*given))
        return self.heard[-1]


def losses(rank: int = 0, world_size: int = 1, seed: int = 0) -> list[float]:
    """Return the losses of one batch, again and again, by weights that stay as they are."""
    engine = Listening(rank, world_size)
    t = trainer(engine=engine, seed=seed, factor=1e-30, accumulate=4)
    batch = next(batches().epoch())
    for _ in range(3):
        t.update([batch] * (4 // world_size), 4 * batch.n_tokens)
    return engine.heard


def test_each_batch_has_a_dropout_of_its_own():
    """It follows from the seed, the step and the place in the update, and from nothing else."""
    heard = losses()
    assert len(set(heard)) == 12, "the same neurons fall out in several batches"
    assert losses() == heard
    assert not set(losses(seed=1)) & set(heard)


def test_processes_share_the_dropout_of_an_update():
    """Each batch has that of its place, whichever process has it."""
    parts = [losses(rank, world_size=2) for rank in range(2)]
    assert [loss for pair in zip(*parts, strict=True) for loss in pair] == losses()


def test_random_numbers_drawn_elsewhere_change_nothing():
    """A validation, a hook, another thread may draw them."""
    one = trainer(average=2)
    one.train(progress=False)

    def draw(*ignored):
        torch.manual_seed(random.randrange(2**32))
        torch.rand(3), random.random()

    other = trainer(average=2, validate=lambda model: draw() or math.nan, hooks=[draw])
    before_each_update(other, draw)
    other.train(progress=False)
    assert_same(one, other)


def test_training_learns():
    """The loss falls from near ln(vocab) or above to far below it."""
    small = dataclasses.replace(STILL, d_model=32)
    log = trainer(model=small, steps=60, warmup=20, log_every=10).train(progress=False)
    assert log[-1]["loss"] < log[0]["loss"] - 1


# Averaging


@given(
    steps=st.integers(1, 12),
    average=st.integers(1, 4),
    average_every=st.integers(1, 4),
    resumed=st.integers(0, 12),
)
def test_the_result_is_the_mean_of_the_last_snapshots(
    steps, average, average_every, resumed, tmp_path_factory
):
    """Section 6.1: at any time, also in a run that was interrupted and went back."""
    folder = tmp_path_factory.mktemp("run")
    average = min(average, steps // average_every)
    kept, stopped = {}, []

    def check(step):
        kept[step] = parameters(t)
        last = [kept[s] for s in range(average_every, step + 1, average_every)][-average:]
        result = t.result
        if not last or average == 0:
            assert result is t.model, "the average has not begun"
            return
        assert result.output.weight is result.src_embedding.tokens.weight
        for mean, *weights in zip(result.parameters(), *last, strict=True):
            close(mean, torch.stack(weights).mean(dim=0))

    def stop(step):
        check(step)
        if step == resumed and not stopped:
            stopped.append(step)
            raise Killed

    config = {"steps": steps, "average": average, "average_every": average_every, "save_every": 2}
    t = trainer(folder=folder, **config)
    before_each_update(t, stop)
    with suppress(Killed):
        t.train(progress=False)
    if resumed % 3:  # else the same trainer goes back
        t = trainer(1, folder, **config)
        before_each_update(t, check)
    assert t.resume() == (resumed // 2 * 2 if stopped else steps)
    t.train(progress=False)
    check(steps)
    assert not t.result.training and not t.model.training


def test_an_average_stays_tied_and_is_what_is_saved(tmp_path):
    """F28: section 6.1, in the folder that a translator reads. It is validated, too."""

    def validate(model):
        return model.output.weight.sum().item()

    t = trainer(folder=tmp_path, average=3, validate=validate)
    t.train(progress=False)
    assert t.log[-1]["validation"] == validate(t.result) != validate(t.model)
    result = t.result
    assert result.output.weight is result.src_embedding.tokens.weight
    loaded = Transformer.load(tmp_path)
    for one, other in zip(loaded.parameters(), t.result.parameters(), strict=True):
        assert one.equal(other)
    assert any(
        not a.equal(b) for a, b in zip(t.model.parameters(), t.result.parameters(), strict=True)
    )


def test_an_average_takes_long_sentences():
    """F26: the model's table of positions grows while it trains, and the average's must follow."""
    trainer(average=2, model=dataclasses.replace(TINY, max_len=4)).train(progress=False)


def test_another_distance_begins_the_average_anew(tmp_path):
    """Weights that were kept at other steps are none of it."""
    trainer(folder=tmp_path, steps=4, average=3).train(progress=False)
    longer = trainer(folder=tmp_path, steps=9, average=3, average_every=3)
    assert longer.resume() == 4 and not longer.snapshots
    longer.train(progress=False)
    assert len(longer.snapshots) == 2, "of steps 6 and 9"


def test_an_average_keeps_the_type_of_the_weights():
    t = trainer(average=2)
    t.model.double()
    t.train(progress=False)
    assert {p.dtype for p in t.result.parameters()} == {torch.float64}


def test_a_longer_training_averages_its_own_last_weights(tmp_path):
    """Resumed with more steps: the weights of steps 2 and 3 do not count at step 8."""
    trainer(folder=tmp_path, steps=3, average=2).train(progress=False)
    t = trainer(folder=tmp_path, steps=8, average=2)
    t.resume()
    kept = {}
    before_each_update(t, lambda step: kept.update({step: parameters(t)}))
    t.train(progress=False)
    for mean, seventh, last in zip(t.result.parameters(), kept[7], parameters(t), strict=True):
        close(mean, (seventh + last) / 2)


# Stopping and going on


class Killed(Exception):
    """What stops a training in the middle."""


NAMES = ("SIGINT", "SIGTERM", "SIGHUP")  # Windows lacks the last
SIGNALS = [getattr(signal, name) for name in NAMES if hasattr(signal, name)]


@contextmanager
def signals_caught():
    """Let no signal that a trainer should have caught end the tests, and see its handlers go."""

    def fail(number, frame):
        raise AssertionError(f"nobody listened to signal {number}")

    handlers = {number: signal.signal(number, fail) for number in SIGNALS}
    try:
        yield fail
        assert all(signal.getsignal(number) is fail for number in SIGNALS), "not restored"
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def stop_at(t: Trainer, step: int, how: str) -> None:
    """Train until ``step`` steps are made, and end the run in one of two ways."""

    def act(made):
        if made == step - (how != "killed"):  # a signal lets the step be finished
            if how == "killed":
                raise Killed
            os.kill(os.getpid(), getattr(signal, how))

    before_each_update(t, act)
    raised = {"killed": Killed, "SIGINT": KeyboardInterrupt, "SIGTERM": SystemExit}[how]
    with signals_caught(), pytest.raises(raised) as error:
        t.train(progress=False)
    if how == "SIGTERM":
        assert error.value.code == 143


@settings(max_examples=20)
@given(
    seed=seeds,
    stopped=st.integers(1, 11),
    how=st.sampled_from(["killed", "killed", "SIGINT", "SIGTERM"]),
    save_every=st.integers(1, 13),
    log_every=st.integers(1, 13),
    accumulate=st.integers(1, 2),
    average=st.sampled_from([0, 3]),
)
def test_a_resumed_run_ends_as_one_never_stopped(
    seed, stopped, how, save_every, log_every, accumulate, average, tmp_path_factory
):
    """With the same weights, bit for bit, and the same log, wherever and however it stopped."""
    config = {"steps": 12, "save_every": save_every, "log_every": log_every, "seed": seed}
    config |= {"accumulate": accumulate, "average": average, "average_every": 2}

    def score(model):
        return model.output.weight.sum().item()

    whole = trainer(seed, tmp_path_factory.mktemp("whole"), score, **config)
    whole.train(progress=False)

    folder = tmp_path_factory.mktemp("stopped")
    stop_at(trainer(seed, folder, score, **config), stopped, how)
    resumed = trainer(seed + 1, folder, score, **config)  # its own weights are others
    kept = stopped if how != "killed" else stopped // save_every * save_every
    assert resumed.resume() == resumed.step == kept
    resumed.train(progress=False)
    assert_same(resumed, whole)
    weights = [(t.folder / "model.safetensors").read_bytes() for t in (resumed, whole)]
    assert weights[0] == weights[1]
    columns = [
        [line.split(",")[:3] + line.split(",")[4:] for line in log.read_text().splitlines()]
        for log in (t.folder / "log.csv" for t in (resumed, whole))
    ]
    assert columns[0] == columns[1]


@pytest.mark.parametrize("how", ["SIGINT", "SIGTERM"])
def test_a_signal_lets_the_step_be_finished(how, tmp_path):
    """At a step that is neither logged nor saved: what is summed up for the log is kept."""
    config = {"steps": 8, "log_every": 100, "save_every": 100, "accumulate": 2}
    whole = trainer(**config)
    whole.train(progress=False)
    t = trainer(folder=tmp_path, **config)
    stop_at(t, 5, how)
    assert t.step == t.saved == 5 and t.log == [] and not t.model.training
    resumed = trainer(1, tmp_path, **config)
    assert resumed.resume() == 5 and resumed.tokens == t.tokens > 0 and resumed.loss == t.loss > 0
    resumed.train(progress=False)
    assert_same(resumed, whole)
    assert len(whole.log) == 1 and resumed.seconds > t.seconds


def test_the_same_trainer_goes_on_after_a_signal():
    """As in a notebook; it needs no folder for that."""
    whole = trainer(accumulate=2, average=2)
    whole.train(progress=False)
    t = trainer(accumulate=2, average=2)
    for step, how in ((3, "SIGINT"), (4, "SIGTERM"), (6, "SIGINT")):
        stop_at(t, step, how)
        assert t.step == step
    t.train(progress=False)
    assert_same(t, whole)


signals = st.sampled_from(SIGNALS)


@given(signals, signals)
def test_the_second_signal_acts_at_once(tmp_path_factory, first, second):
    """Whichever it is: it goes to whoever listened before the training."""
    folder = tmp_path_factory.mktemp("run")
    t = trainer(folder=folder)

    def act(step):
        if step == 4:
            os.kill(os.getpid(), first)
            os.kill(os.getpid(), second)

    before_each_update(t, act)
    with signals_caught(), pytest.raises((AssertionError, KeyboardInterrupt, SystemExit)) as error:
        t.train(progress=False)
    assert f"listened to signal {second.value}" in str(error.value)
    assert t.step == 4
    assert trainer(folder=folder).resume() == 3, "no checkpoint but the regular one"


@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="Windows has no SIGHUP")
def test_what_nohup_has_ignored_stays_ignored():
    """A training is not to end with the terminal that it was begun in."""
    t = trainer(steps=3)
    before_each_update(t, lambda step: os.kill(os.getpid(), signal.SIGHUP))
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        t.train(progress=False)
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
    assert t.step == 3


@given(st.sampled_from([None, FloatingPointError, KeyboardInterrupt]))
def test_signals_are_handled_as_before_when_the_training_has_ended(error):
    """However it ended; while it goes on, the trainer listens."""
    t = trainer(steps=2)

    def act(step):
        assert signal.getsignal(signal.SIGTERM) is not fail is not signal.getsignal(signal.SIGINT)
        if error and step == 1:
            raise error

    before_each_update(t, act)
    with signals_caught() as fail, pytest.raises(error) if error else nullcontext():
        t.train(progress=False)


def test_training_works_in_a_thread():
    """Only the main thread may listen to signals; elsewhere they are let be."""
    whole, t = trainer(), trainer()
    whole.train(progress=False)
    outcome = []

    def act(step):
        assert signal.getsignal(signal.SIGTERM) is fail

    before_each_update(t, act)
    with signals_caught() as fail:
        thread = threading.Thread(target=lambda: outcome.append(t.train(progress=False)))
        thread.start()
        thread.join()
    assert outcome == [t.log]
    assert_same(t, whole)


def test_there_is_a_checkpoint_before_the_first_step(tmp_path):
    """So that a run which is killed early goes on from its own weights."""
    whole = trainer()
    whole.train(progress=False)
    t = trainer(folder=tmp_path / "a" / "b")
    stop_at(t, 0, "killed")
    assert t.saved == 0 and sorted(os.listdir(tmp_path / "a" / "b")) == FILES
    resumed = trainer(1, tmp_path / "a" / "b")
    assert resumed.resume() == 0 == resumed.saved
    resumed.train(progress=False)
    assert_same(resumed, whole)


@pytest.mark.parametrize("name", ["", *FILES])
def test_a_folder_that_cannot_be_written_fails_before_the_first_step(name, tmp_path):
    """And not after an hour. Something else is in the way of the folder or of a file in it."""
    folder = tmp_path / "run"
    if name:
        (folder / f"{name}.new").mkdir(parents=True)
    else:
        folder.write_text("a file")
    t = trainer(folder=folder)
    before_each_update(t, lambda step: pytest.fail("a step was made"))
    with pytest.raises(OSError, match=name or "run"):
        t.train(progress=False)


def test_a_run_killed_while_saving_leaves_the_last_checkpoint(tmp_path, monkeypatch):
    """Each file is written beside and renamed."""
    t = trainer(folder=tmp_path, steps=3)
    t.train(progress=False)
    files = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    def half_written(state, path):
        path.write_bytes(b"half")
        raise Killed

    monkeypatch.setattr(torch, "save", half_written)
    t.config = dataclasses.replace(t.config, steps=6)
    with pytest.raises(Killed):
        t.train(progress=False)
    assert (tmp_path / "training.pt").read_bytes() == files["training.pt"]
    assert trainer(1, tmp_path).resume() == 3


@contextmanager
def full_disk(folder: Path, name: str):
    """Let the file be written where there is never room, so that the system says so itself."""
    link = folder / f"{name}.new"
    link.symlink_to("/dev/full")
    try:
        yield
    finally:
        link.unlink(missing_ok=True)


@contextmanager
def file_size_limit(limit: int):
    """Let no file grow beyond the limit, as on a disk that becomes full."""
    resource = pytest.importorskip("resource")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def assert_the_old_is_whole(folder: Path, files: dict[str, bytes]) -> None:
    """What was written before is still there, or newer and whole; it can be gone on from."""
    assert (folder / "training.pt").read_bytes() == files["training.pt"]
    assert (folder / "config.json").read_bytes() == files["config.json"]
    try:
        Transformer.load(folder)
    except (ValueError, OSError) as error:
        pytest.fail(f"half a model: {error}")
    with (folder / "log.csv").open(newline="") as file:
        lines = list(csv.reader(file))
    assert len(lines) in (4, 7) and all(len(line) == 6 for line in lines)
    assert not list(folder.glob("*.new")), "half a file takes room"
    assert trainer(1, folder).resume() == 3


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
@pytest.mark.parametrize("name", FILES)
def test_a_full_disk_leaves_the_last_checkpoint(name, tmp_path):
    """The error is the system's and names the file; when there is room again, all goes on."""
    config = {"steps": 6, "log_every": 1}
    whole = trainer(**config)
    whole.train(progress=False)
    stop_at(trainer(folder=tmp_path, **config), 3, "killed")
    files = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    t = trainer(1, tmp_path, **config)
    t.resume()
    with full_disk(tmp_path, name), pytest.raises(OSError, match=f"{name}: .*"):
        t.train(progress=False)
    assert t.saved == 3
    assert_the_old_is_whole(tmp_path, files)
    t = trainer(2, tmp_path, **config)
    t.resume()
    t.train(progress=False)
    assert_same(t, whole)
    assert sorted(os.listdir(tmp_path)) == FILES


@given(st.floats(0, 0.999))
def test_no_half_file_gets_a_name_on_a_full_disk(tmp_path_factory, share):
    """Wherever in the writing the disk becomes full."""
    folder = tmp_path_factory.mktemp("full")
    config = {"steps": 6, "log_every": 1}
    t = trainer(folder=folder, **config)
    stop_at(t, 3, "killed")
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    t = trainer(1, folder, **config)
    t.resume()
    limit = int(share * len(files["training.pt"]))
    with pytest.raises(OSError, match="model.safetensors|config.json|log.csv|training.pt"):  # noqa: SIM117
        with file_size_limit(limit):
            t.train(progress=False)
    assert_the_old_is_whole(folder, files)


class Bomb:
    """What runs a command when it is unpickled."""

    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self):
        """Say how it is made anew: by a command."""
        return os.system, (f"touch {self.path}",)


@given(st.sampled_from(["pickle", "torch", "hidden", "tensors"]))
def test_a_checkpoint_runs_no_code(tmp_path_factory, kind):
    """A file from elsewhere is data, and nothing else."""
    tmp_path = tmp_path_factory.mktemp("bombed")
    folder, path = tmp_path / "run", tmp_path / "run" / "training.pt"
    trainer(folder=folder, steps=1).train(progress=False)
    bomb = Bomb(tmp_path / "touched")
    state = torch.load(path, weights_only=True)
    if kind == "pickle":
        path.write_bytes(pickle.dumps(bomb))
    elif kind == "torch":
        torch.save(bomb, path)
    elif kind == "hidden":
        torch.save(state | {"log": [bomb]}, path)
    else:
        path.write_bytes(pickle.dumps(state | {"seconds": bomb}))
    t = trainer(1, folder, steps=1)
    before = parameters(t)
    with pytest.raises(ValueError, match="cannot go on from .*training.pt"):
        t.resume()
    assert not bomb.path.exists()
    assert t.step == 0 and all(map(torch.equal, before, parameters(t)))
    with path.open("rb") as file, suppress(Exception):  # it is truly a bomb
        pickle.load(file) if kind in ("pickle", "tensors") else torch.load(file, weights_only=False)
    assert bomb.path.exists()


@pytest.mark.parametrize("write", [lambda x, path: path.write_bytes(pickle.dumps(x)), torch.save])
def test_a_model_runs_no_code(write, tmp_path):
    """The format of its weights has no place for any."""
    folder = tmp_path / "run"
    trainer(folder=folder, steps=1).train(progress=False)
    write(Bomb(tmp_path / "touched"), folder / "model.safetensors")
    with pytest.raises(ValueError, match="model.safetensors"):
        Transformer.load(folder)
    assert not (tmp_path / "touched").exists()


@given(st.floats(0, 0.999))
def test_a_checkpoint_cut_short_is_refused(tmp_path_factory, share):
    """Whatever torch raises then, it becomes a ValueError that says which file."""
    folder, content = tmp_path_factory.mktemp("cut"), checkpoint()["training.pt"]
    (folder / "training.pt").write_bytes(content[: int(share * len(content))])
    with pytest.raises(ValueError, match="cannot go on from .*training.pt"):
        trainer(folder=folder).resume()


@cache
def checkpoint() -> dict[str, bytes]:
    """Return the files of a run of three steps."""
    with tempfile.TemporaryDirectory() as folder:
        trainer(folder=folder, steps=3).train(progress=False)
        return {path.name: path.read_bytes() for path in Path(folder).iterdir()}


# Other data


def batches_with(change: str) -> TokenBatches:
    """Return the batches of `batches` with one change."""
    pairs, options = list(date_pairs(20)), {"max_tokens": 150, "seed": 0}
    tokenizer = Tokenizer.train([], 260)
    if change == "fewer pairs":
        pairs.pop()
    elif change == "another pair":
        pairs[7] = (pairs[7][0], pairs[7][1] + "!")
    elif change == "pairs in another order":
        pairs[3], pairs[4] = pairs[4], pairs[3]
    elif change == "sides swapped":
        pairs = [(target, source) for source, target in pairs]
    elif change == "max_tokens":
        options["max_tokens"] = 151
    elif change == "seed of the order":
        options["seed"] = 1
    elif change == "vocabulary":
        tokenizer = Tokenizer.train([source for source, _ in pairs], 270)
    return TokenBatches(pairs, tokenizer, **options)


CHANGES = [
    "fewer pairs",
    "another pair",
    "pairs in another order",
    "sides swapped",
    "max_tokens",
    "seed of the order",
    "vocabulary",
]


@given(st.sampled_from(CHANGES))
def test_a_run_does_not_go_on_with_other_data(tmp_path_factory, change):
    """The place in the data would mean nothing there. The message says what to do."""
    folder = tmp_path_factory.mktemp("run")
    (folder / "training.pt").write_bytes(checkpoint()["training.pt"])
    t = Trainer(Transformer(TINY), batches_with(change), TrainingConfig(), folder=folder)
    before = parameters(t)
    with pytest.raises(
        ValueError, match="pairs.*vocabulary.*max_tokens.*seed.*begin anew"
    ) as error:
        t.resume()
    assert str(folder) in str(error.value)
    assert t.step == 0 and t.log == [] and all(map(torch.equal, before, parameters(t)))


def test_a_run_goes_on_with_the_same_data(tmp_path):
    """Read anew, as by another process."""
    (tmp_path / "training.pt").write_bytes(checkpoint()["training.pt"])
    t = Trainer(Transformer(TINY), batches_with(""), TrainingConfig(), folder=tmp_path)
    assert t.resume() == 3


texts = st.lists(st.tuples(*[st.text("ab", max_size=2)] * 2), min_size=1, max_size=3)


@given(texts, texts)
def test_a_fingerprint_tells_data_apart(one, two):
    """It is the same exactly if the pairs are, wherever one sentence ends and the next begins."""
    tokenizer = Tokenizer.train([], 260)
    prints = [fingerprint(TokenBatches(pairs, tokenizer, 10)) for pairs in (one, two)]
    assert (prints[0] == prints[1]) == (one == two)


# Hooks


def test_hooks_are_called_after_each_line_of_the_log():
    """With the trainer, in their order; the line is there already."""
    calls = []
    hooks = [lambda t, name=name: calls.append((name, t, t.log[-1]["step"])) for name in "ab"]
    t = trainer(hooks=hooks)
    t.train(progress=False)
    assert calls == [(name, t, step) for step in (2, 3, 4, 6, 8) for name in "ab"]
    assert t.stopped is None


def test_dropout_stays_on_whatever_a_hook_does():
    """To look at the model, it puts it into evaluation mode."""
    modes = []
    t = trainer(hooks=[lambda t: t.model.eval() and None])
    before_each_update(t, lambda step: modes.append(t.model.training))
    t.train(progress=False)
    assert modes == [True] * 8


class Sharing(Engine):
    """An engine of one of two processes, which share out the weights."""

    world_size, sharded = 2, True


def test_a_hook_is_alone(tmp_path):
    """What needs the other processes, which do not wait for it, is refused."""
    for ask, what in (
        (lambda t: t.save(), "a checkpoint needs all of them"),
        (lambda t: t.result and None, "cannot collect weights that are shared out"),
    ):
        t = trainer(folder=tmp_path, engine=Sharing(), accumulate=2, hooks=[ask])
        with pytest.raises(RuntimeError, match=f"a hook runs in one process alone, and {what}"):
            t.train(progress=False)
        assert not t.alone, "who has caught the error may save"
    t = trainer(engine=Sharing(), accumulate=2, average=1, hooks=[ask])
    t.train(progress=False)
    assert t.step == 8 and not t.alone


@pytest.mark.parametrize("step", [2, 3, 8])
def test_a_hook_may_stop_the_training(step, tmp_path):
    """It gives a reason, which is kept; a checkpoint is written. All hooks are still called."""
    called = []
    hooks = [
        lambda t: "enough" if t.step >= step else None,
        lambda t: called.append(t.step),
        lambda t: "too late",
    ]
    t = trainer(folder=tmp_path, hooks=hooks[:2])
    assert t.train(progress=False) == t.log
    assert t.step == t.saved == t.log[-1]["step"] == called[-1] == step
    assert t.stopped == "enough" and not t.model.training
    resumed = trainer(1, tmp_path)
    assert resumed.resume() == step
    whole = trainer()
    whole.train(progress=False)
    resumed.train(progress=False)  # without the hook it goes on
    assert_same(resumed, whole)
    assert resumed.stopped is None
    both = trainer(hooks=hooks)
    both.train(progress=False)
    assert both.step == 2 and both.stopped == ("enough" if step == 2 else "too late")


def test_a_training_that_a_hook_has_stopped_is_not_begun_again(tmp_path):
    """Who calls it once more with the same hooks gets no further step."""
    hooks = [lambda t: "enough" if t.step >= 3 else None]
    t = trainer(folder=tmp_path, hooks=hooks)
    t.train(progress=False)
    resumed = trainer(1, tmp_path, hooks=hooks)
    resumed.resume()
    for again in (t, resumed):
        before_each_update(again, lambda step: pytest.fail("a step was made"))
        again.train(progress=False)
        assert again.step == 3 and again.stopped == "enough" and not again.model.training


def stops_at(scores: list[float], patience: int) -> int | None:
    """Return the number, from 1, of the validation after which to stop: the naive way."""
    best, failed = math.inf, 0
    for number, score in enumerate(scores, start=1):
        failed = 0 if score < best else failed + 1
        best = min(best, score)
        if failed == patience:
            return number
    return None


@given(st.lists(st.integers(0, 5), min_size=1, max_size=12), st.integers(1, 4))
def test_early_stopping_looks_at_the_log(scores, patience):
    """It stops exactly when as many validations as it has patience have not been the best."""
    t, stop = trainer(), EarlyStopping(patience)
    assert stop(t) is None
    for number, score in enumerate(scores, start=1):
        for validation in (math.nan, float(score)):
            t.log.append({"step": number, "validation": validation})
        reason = stop(t)
        if number == stops_at(scores, patience):
            assert reason is not None, "it goes on"
            assert str(patience) in reason and f"{min(scores[:number]):.3f}" in reason
            return
        assert reason is None
    assert stops_at(scores, patience) is None


@given(
    scores=st.lists(st.integers(0, 3), min_size=4, max_size=6),
    patience=st.integers(1, 3),
    save_every=st.integers(1, 2),
    stops=st.lists(st.integers(1, 12), max_size=2),
)
def test_early_stopping_survives_interruptions(
    scores, patience, save_every, stops, tmp_path_factory
):
    """It stops at the validation at which it would have, and is not begun again after that."""
    folder = tmp_path_factory.mktemp("run")

    def resumed(seed):
        t = trainer(
            seed,
            folder,
            lambda model: float(scores[t.step // save_every - 1]),
            hooks=[EarlyStopping(patience)],
            steps=save_every * len(scores),
            save_every=save_every,
            log_every=3,
        )
        t.resume()
        return t

    number = stops_at(scores, patience)
    expected = save_every * (number or len(scores))
    for i, stop in enumerate(sorted(stops)):
        t = resumed(i)
        if t.step < stop <= expected - (stop % 2):
            stop_at(t, stop, "killed" if i and stop < expected else "SIGTERM")
    for i in range(2):
        t = resumed(5 + i)
        t.train(progress=False)
        assert t.step == expected
        assert (t.stopped is not None) == (number is not None)


@pytest.mark.parametrize("patience", [0, -1])
def test_early_stopping_needs_patience(patience):
    """With none it would stop at the best validation."""
    with pytest.raises(ValueError, match=f"patience must be at least 1, not {patience}"):
        EarlyStopping(patience)


def test_tensorboard_shows_the_log(tmp_path):
    """All that is a number, at its step; TensorBoard reads it."""
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    board = TensorBoard(tmp_path)
    t = trainer(hooks=[board], validate=lambda model: t.step / 10)
    t.train(progress=False)
    events = accumulator.EventAccumulator(str(tmp_path)).Reload()
    board.writer.close()
    names = ["learning_rate", "loss", "seconds", "tokens", "validation"]
    assert sorted(events.Tags()["scalars"]) == names
    for name in names:
        written = [(event.step, event.value) for event in events.Scalars(name)]
        expected = [(row["step"], row[name]) for row in t.log if not math.isnan(row[name])]
        assert [step for step, _ in written] == [step for step, _ in expected]
        assert [x for _, x in written] == pytest.approx([x for _, x in expected], rel=1e-6)
    assert [event.step for event in events.Scalars("validation")] == [3, 6, 8]
    assert t.stopped is None


def test_tensorboard_may_be_missing(tmp_path, monkeypatch):
    """The message says what to install."""
    for name in [name for name in sys.modules if name.startswith("torch.utils.tensorboard")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    with pytest.raises(ImportError, match=r'pip install "transformer-lit\[tensorboard\]"'):
        TensorBoard(tmp_path / "events")
    assert not (tmp_path / "events").exists()


# What a training leaves


def test_a_training_leaves_its_files(tmp_path):
    """The log has a line for each entry; a score where a checkpoint was."""
    scores = iter([50.0, 60.0, 70.0])
    modes = []

    def validate(model):
        modes.append(model.training)
        return next(scores)

    t = trainer(folder=tmp_path / "run", validate=validate)
    start = time.perf_counter()
    log = t.train(progress=False)
    assert 0 < log[0]["seconds"] <= log[-1]["seconds"] <= time.perf_counter() - start
    assert modes == [False] * 3 and not t.model.training
    files = ["config.json", "log.csv", "model.safetensors", "training.pt"]
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == files
    with (tmp_path / "run" / "log.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["step", "loss", "tokens", "seconds", "learning_rate", "validation"]
    assert [int(row["step"]) for row in rows] == [2, 3, 4, 6, 8]
    written = [float(row["validation"]) for row in rows]
    assert written == pytest.approx([math.nan, 50, math.nan, 60, 70], nan_ok=True)
    assert [float(row["loss"]) for row in rows] == [entry["loss"] for entry in log]
    loaded = Transformer.load(tmp_path / "run")
    for one, other in zip(loaded.parameters(), t.model.parameters(), strict=True):
        assert one.equal(other)


def test_the_log_counts_what_was_trained_on():
    """F36: its loss is the mean over its tokens, whatever the batches."""
    t = trainer(steps=4, log_every=3, save_every=100, model=STILL)
    other = trainer(model=STILL)
    log = t.train(progress=False)
    parts = [other.update([batch]) for batch in list(batches().epoch())[:4]]
    for entry, used in zip(log, (parts[:3], parts[3:]), strict=True):
        loss, tokens = (sum(x) for x in zip(*used, strict=True))
        assert entry["tokens"] == tokens
        assert entry["loss"] == pytest.approx(loss / tokens, rel=1e-5)
    assert log[-1]["step"] == 4, "the last step is always logged"


def test_there_may_be_nothing_to_resume(tmp_path):
    """No folder, or none with a checkpoint."""
    assert trainer().resume() == 0
    assert trainer(folder=tmp_path).resume() == 0
    assert trainer(folder=tmp_path / "nowhere").resume() == 0


def test_a_checkpoint_that_cannot_be_used_is_refused(tmp_path):
    """It is broken, or belongs to another model."""
    trainer(folder=tmp_path, steps=1).train(progress=False)
    with pytest.raises(ValueError, match=r"training.pt.* are \(.*, 8\) .*not as here \(.*, 16\)"):
        trainer(folder=tmp_path, model=dataclasses.replace(TINY, d_model=16)).resume()
    (tmp_path / "training.pt").write_bytes(b"not a checkpoint")
    with pytest.raises(ValueError, match="training.pt"):
        trainer(folder=tmp_path).resume()


def put(*place):
    """Return a function that puts its second argument at a place in its first."""

    def change(state, value):
        for name in place[:-1]:
            state = state[name]
        state[place[-1]] = value

    return change


ADAM = ("optimizer", "state", 0)


def spread(moments):
    """Give a moment the right shape, but one number in memory for all."""
    moments["exp_avg"] = torch.zeros(()).expand(moments["exp_avg"].shape)


@pytest.mark.parametrize(
    ("change", "value"),
    [
        (put(*ADAM, "exp_avg"), torch.ones(3)),  # Adam would write beyond its end
        (lambda state, _: spread(state["optimizer"]["state"][0]), None),  # likewise
        (put(*ADAM, "exp_avg_sq"), "x"),
        (put(*ADAM, "step"), torch.ones(2)),
        (put("optimizer", "state", 10**6), {}),
        (put("optimizer"), None),
        (put("snapshots"), [{}]),
        (put("snapshots"), [1]),
        (lambda state, _: state["snapshots"][0].popitem(), None),
        (lambda state, _: put("snapshots", 0, next(iter(state["model"])))(state, _), torch.ones(1)),
        (lambda state, _: put("model", next(iter(state["model"])))(state, _), torch.ones(1)),
        (put("step"), -1),
        (put("epoch"), "x"),
        (put("loss"), math.nan),
        (put("tokens"), None),
        (put("log"), [1]),
        (put("log"), [{"step": 1}]),
        (put("log", 0, "loss"), "x"),
        (put("log", 0, "other"), 1),
    ],
)
def test_a_checkpoint_of_another_form_is_refused(tmp_path, change, value):
    """Whoever made it: nothing of it is used."""
    options = {"steps": 2, "average": 1, "log_every": 1}
    trainer(folder=tmp_path, **options).train(progress=False)
    state = torch.load(tmp_path / "training.pt", weights_only=True)
    change(state, value)
    torch.save(state, tmp_path / "training.pt")
    t = trainer(1, tmp_path, **options)
    before = parameters(t)
    with pytest.raises(ValueError, match="cannot go on from .*training.pt"):
        t.resume()
    assert t.step == 0 and all(map(torch.equal, before, parameters(t)))


@pytest.mark.parametrize("score", [np.float32(0.5), np.mean([0.5]), torch.tensor(0.5)])
def test_a_checkpoint_holds_numbers_of_python_alone(tmp_path, score):
    """Those of NumPy and tensors, which come in by hand, could not be read again."""
    options = {"steps": 2, "factor": np.float64(0.5), "validate": lambda model: score}
    t = trainer(folder=tmp_path, **options)
    t.train(progress=False)
    again = trainer(1, tmp_path, **options)
    assert again.resume() == 2 and again.log == t.log and t.log[-1]["validation"] == 0.5


@pytest.mark.parametrize("trouble", [OSError, MemoryError, torch.OutOfMemoryError])
def test_trouble_that_passes_is_not_put_down_to_the_checkpoint(tmp_path, monkeypatch, trouble):
    """Who reads "begin anew" would throw a good one away."""
    trainer(folder=tmp_path, steps=1).train(progress=False)
    text = "no"

    def fail(*_, **__):
        raise trouble(text)

    with monkeypatch.context() as patch, pytest.raises(trouble):
        patch.setattr(torch, "load", fail)
        trainer(folder=tmp_path).resume()
    trouble, text = RuntimeError, "DefaultCPUAllocator: you tried to allocate 9 bytes"
    with monkeypatch.context() as patch, pytest.raises(MemoryError, match="not fit into memory"):
        patch.setattr(torch, "load", fail)
        trainer(folder=tmp_path).resume()
    assert trainer(folder=tmp_path).resume() == 1


def test_the_first_process_ends_as_told_when_another_was_told_to_stop(tmp_path):
    """It saves, and says by its exit status that the run is not over."""
    t = trainer(folder=tmp_path, steps=5, engine=Told())
    with pytest.raises(SystemExit) as stopped:
        t.train(progress=False)
    assert stopped.value.code == 143 and t.step == t.saved < 5


class Told(Engine):
    """An engine with another process, which gives one to each sum: it has had a signal."""

    def sum(self, value):
        """Add what the other process gives."""
        return value + 1


class Helping(Engine):
    """An engine of a process that writes nothing."""

    rank = 1


def test_all_processes_know_the_last_checkpoint(tmp_path):
    """Also those that wrote nothing of it name it when they fail."""
    t = trainer(folder=tmp_path, steps=1, engine=Helping())
    t.train(progress=False)
    assert t.saved == 1 and not list(tmp_path.iterdir())


def test_a_checkpoint_with_other_snapshots_is_refused(tmp_path):
    """Their mean would fail when the training is over."""
    trainer(folder=tmp_path, steps=2, average=1).train(progress=False)
    state = torch.load(tmp_path / "training.pt", weights_only=True)
    torch.save(state | {"snapshots": [{}]}, tmp_path / "training.pt")
    with pytest.raises(ValueError, match="other weights of snapshot"):
        trainer(folder=tmp_path, steps=2, average=1).resume()


def test_the_optimisers_settings_are_the_runs_own(tmp_path):
    """Those in the checkpoint could be anything."""
    trainer(folder=tmp_path, steps=2).train(progress=False)
    state = torch.load(tmp_path / "training.pt", weights_only=True)
    state["optimizer"]["param_groups"][0]["betas"] = (0.5, 0.6)
    torch.save(state, tmp_path / "training.pt")
    t = trainer(folder=tmp_path, steps=3)
    assert t.resume() == 2
    assert t.optimizer.param_groups[0]["betas"] == (0.9, 0.98)
    t.train(progress=False)


def test_the_first_checkpoint_comes_before_the_model(tmp_path, monkeypatch):
    """Killed between, a run can go on; a model alone could not, and would bar a new run."""

    def killed(*given):
        raise KeyboardInterrupt

    monkeypatch.setattr(Transformer, "save", killed)
    with pytest.raises(KeyboardInterrupt):
        trainer(folder=tmp_path).train(progress=False)
    assert [path.name for path in tmp_path.iterdir()] == ["training.pt"]
    monkeypatch.undo()
    t = trainer(1, tmp_path)
    assert t.resume() == 0 == t.saved
    t.train(progress=False)
    assert (tmp_path / "model.safetensors").exists()


@pytest.mark.parametrize(
    ("option", "value"),
    [
        *((name, 0) for name in ("steps", "warmup", "accumulate", "log_every", "save_every")),
        *(("average", value) for value in (-1, 10_001)),
        ("average_every", 0),
        ("steps", -1),
        ("label_smoothing", -0.1),
        ("label_smoothing", 1.0),
        ("label_smoothing", math.nan),
        ("factor", 0.0),
        ("clip", -1.0),
        ("factor", math.nan),
        ("factor", math.inf),
        ("clip", math.nan),
    ],
)
def test_values_out_of_range_are_refused(option, value):
    """The message names the value."""
    with pytest.raises(ValueError, match=option) as refused:
        TrainingConfig(**{option: value})
    assert str(value) in str(refused.value)


def test_numbers_of_a_configuration_are_those_of_python():
    """An update of two and a half batches would never be full."""
    config = TrainingConfig()
    for value, kept in ((1e5, 100_000), (np.int64(7), 7), (2.5, None), (math.inf, None)):
        object.__setattr__(config, "steps", value)  # as if nobody looked at types
        if kept:
            config.__post_init__()
            assert config.steps == kept and type(config.steps) is int
        else:
            with pytest.raises(ValueError, match=f"steps must be a whole number, not {value}"):
                config.__post_init__()


def test_a_model_laid_out_for_decoding_is_trained_as_any(tmp_path):
    """Also from a checkpoint by rows: the fused Adam does not look how weights and moments lie."""
    whole = trainer()
    whole.train(progress=False)
    stop_at(trainer(folder=tmp_path), 4, "SIGTERM")
    resumed = trainer(folder=tmp_path, laid_out=True)
    assert resumed.resume() == 4
    resumed.train(progress=False)
    assert_same(resumed, whole)
