"""Loss, schedule, and a trainer that can stop and go on."""

import csv
import dataclasses
import math
import time
from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support import close, dtypes, random_model, random_tensor, seeds, sizes

from transformer_lit.data import PAD, Batch, TokenBatches, Tokenizer, date_pairs
from transformer_lit.model import Transformer, TransformerConfig
from transformer_lit.training import (
    Trainer,
    TrainingConfig,
    learning_rate,
    smoothed_cross_entropy,
    token_accuracy,
)

TINY = TransformerConfig(300, d_model=8, n_heads=2, d_ff=8, n_layers=1, dropout=0.2)
STILL = dataclasses.replace(TINY, dropout=0.0)


@cache
def batches() -> TokenBatches:
    """Return a few batches of dates."""
    return TokenBatches(date_pairs(20), Tokenizer.train([], 260), max_tokens=150)


def trainer(model_seed: int = 0, folder=None, validate=None, model=TINY, **config) -> Trainer:
    """Return a trainer of a new model, which the seed determines."""
    torch.manual_seed(model_seed)
    options = {"steps": 8, "warmup": 4, "save_every": 3, "log_every": 2} | config
    return Trainer(
        Transformer(model), batches(), TrainingConfig(**options), folder=folder, validate=validate
    )


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
    t.update = lambda made: used.extend(made) or update(made)
    t.train(progress=False)
    for batch, expected in zip(used, epochs[:-1], strict=True):
        assert batch.src.equal(expected.src) and batch.tgt.equal(expected.tgt)


# One update


class Prescribed(Transformer):
    """A model that gives the true token, 1, the loss that stands in the source."""

    def forward(self, src, tgt):
        """Return logits that are 0 but for token 1."""
        others = self.config.vocab_size - 1
        p = (-src[:, :1].double()).exp()
        logits = torch.zeros(*tgt.shape, self.config.vocab_size, dtype=torch.float64)
        logits[:, :, 1] = (p * others / (1 - p)).log()
        return (logits + 0 * self.output.weight.sum()).float()


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


def test_a_loss_that_is_not_finite_stops_the_training():
    """F05: the message says where, and the weights are as before the step."""
    t = trainer()
    t.train(progress=False)
    with torch.no_grad():
        t.model.output.weight[5, 0] = torch.inf
    before = [p.clone() for p in t.model.parameters()]
    with pytest.raises(FloatingPointError, match=r"step 9 .*factor.*warmup.*clip"):
        t.update([next(batches().epoch())])
    for old, new in zip(before, t.model.parameters(), strict=True):
        assert old.equal(new)


def test_training_learns():
    """The loss falls from near ln(vocab) or above to far below it."""
    small = dataclasses.replace(STILL, d_model=32)
    log = trainer(model=small, steps=60, warmup=20, log_every=10).train(progress=False)
    assert log[-1]["loss"] < log[0]["loss"] - 1


# Averaging


def test_the_result_is_the_mean_of_the_last_weights():
    """Section 6.1: the last two multiples of three in eleven steps are 6 and 9."""
    t = trainer(steps=11, average=2, average_every=3)
    kept, update = {}, t.update

    def update_and_keep(made):
        outcome = update(made)
        kept[t.step] = [p.detach().clone() for p in t.model.parameters()]
        if t.step < 6:
            assert t.result is t.model, "the average has not begun"
        return outcome

    t.update = update_and_keep
    t.train(progress=False)
    assert not t.result.training
    for mean, sixth, ninth in zip(t.result.parameters(), kept[6], kept[9], strict=True):
        close(mean, (sixth + ninth) / 2)
    for last, eleventh in zip(t.model.parameters(), kept[11], strict=True):
        assert last.equal(eleventh)


def test_an_average_stays_tied_and_is_what_is_saved(tmp_path):
    """F28: section 6.1, in the folder that a translator reads."""
    t = trainer(folder=tmp_path, average=3)
    t.train(progress=False)
    assert t.result.output.weight is t.result.src_embedding.tokens.weight
    loaded = Transformer.load(tmp_path)
    for one, other in zip(loaded.parameters(), t.result.parameters(), strict=True):
        assert one.equal(other)
    assert any(
        not a.equal(b) for a, b in zip(t.model.parameters(), t.result.parameters(), strict=True)
    )


def test_an_average_takes_long_sentences():
    """F26: the model's table of positions grows while it trains, and the average's must follow."""
    trainer(average=2, model=dataclasses.replace(TINY, max_len=4)).train(progress=False)


def test_a_longer_training_averages_its_own_last_weights(tmp_path):
    """Resumed with more steps: the weights of steps 2 and 3 do not count at step 8."""
    trainer(folder=tmp_path, steps=3, average=2).train(progress=False)
    t = trainer(folder=tmp_path, steps=8, average=2)
    t.resume()
    t.train(progress=False)
    assert t.average.n_averaged == 2


# Stopping and going on


class Killed(Exception):
    """What stops a training in the middle."""


@settings(max_examples=10)
@given(
    seed=seeds,
    killed=st.integers(1, 11),
    save_every=st.integers(1, 5),
    accumulate=st.integers(1, 2),
    average=st.sampled_from([0, 3]),
)
def test_a_resumed_run_ends_as_one_never_stopped(
    seed, killed, save_every, accumulate, average, tmp_path_factory
):
    """With the same weights, bit for bit, and the same log."""
    config = {"steps": 12, "save_every": save_every, "accumulate": accumulate, "seed": seed}
    config |= {"average": average, "average_every": 2}
    whole = trainer(seed, tmp_path_factory.mktemp("whole"), **config)
    whole.train(progress=False)

    folder = tmp_path_factory.mktemp("stopped")
    stopped = trainer(seed, folder, **config)
    update = stopped.update

    def update_until_killed(made):
        if stopped.step == killed:
            raise Killed
        return update(made)

    stopped.update = update_until_killed
    with pytest.raises(Killed):
        stopped.train(progress=False)

    resumed = trainer(seed + 1, folder, **config)  # its own weights are others
    if killed < save_every:
        assert resumed.resume() == 0
        return
    assert resumed.resume() == killed // save_every * save_every
    resumed.train(progress=False)
    for one, other in zip(resumed.model.parameters(), whole.model.parameters(), strict=True):
        assert one.equal(other)
    kept = ("step", "loss", "tokens", "learning_rate")
    logs = [[[entry[k] for k in kept] for entry in t.log] for t in (resumed, whole)]
    assert logs[0] == logs[1]
    weights = [(t.folder / "model.safetensors").read_bytes() for t in (resumed, whole)]
    assert weights[0] == weights[1]


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
    with pytest.raises(ValueError, match="training.pt"):
        trainer(folder=tmp_path, model=dataclasses.replace(TINY, d_model=16)).resume()
    (tmp_path / "training.pt").write_bytes(b"not a checkpoint")
    with pytest.raises(ValueError, match="training.pt"):
        trainer(folder=tmp_path).resume()


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
    with pytest.raises(ValueError, match=option):
        TrainingConfig(**{option: value})
