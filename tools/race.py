"""Train a Transformer and two recurrent translators on dates, in turns, and record the race.

    OMP_NUM_THREADS=1 .venv/bin/python tools/race.py --seconds 90 --search-seconds 20 --dates 400

All models have about as many weights, see the same batches, and run in one process and one
thread. The next slice of updates goes to the model that has used least processor time, so that at
each moment all have had as much, whatever else the machine does. Peak and warm-up of the learning
rate come from a search before, on the validation dates, which is recorded too. Writes
``recordings/race/``: ``race.csv``, ``search.csv``, ``groups.csv`` and ``race.json``.

The same race with another seed, with the rates that were found before, to the ninth moment:

    OMP_NUM_THREADS=1 .venv/bin/python tools/race.py --rates recordings/race/race.json \
        --seed 1 --seconds 58.46 --points 9 --out recordings/race/seed1
"""

import argparse
import csv
import dataclasses
import json
import shlex
import sys
import time
from pathlib import Path

import torch
from record import commit, machine, versions

from transformer_lit.data import TokenBatches, Tokenizer, date_pairs
from transformer_lit.model import Model, Transformer, TransformerConfig
from transformer_lit.recurrent import RecurrentConfig, Seq2Seq
from transformer_lit.training import Trainer, TrainingConfig
from transformer_lit.translation import (
    DATE_RECIPE,
    Translator,
    exact_match,
    unusual_dates,
    validation_loss,
)

ROOT = Path(__file__).parent.parent
SLICE = 10  # updates of a turn
MODELS = {  # widths that give all about as many weights
    "Transformer": lambda v: Transformer(TransformerConfig.tiny(v, **DATE_RECIPE.model)),
    "LSTM with attention": lambda v: Seq2Seq(RecurrentConfig(v, d_model=116, dropout=0.0)),
    "LSTM without attention": lambda v: Seq2Seq(
        RecurrentConfig(v, d_model=120, dropout=0.0, attention=False)
    ),
}
PEAKS = {  # highest learning rates, and
    "Transformer": (1.3e-3, 1.8e-3, 2.6e-3),
    "LSTM with attention": (5e-3, 1e-2),
    "LSTM without attention": (5e-3, 1e-2),
}
WARMUPS = (50, 100)  # warm-ups that are tried, each with each
CLIP = {"Transformer": 0.0, "LSTM with attention": 1.0, "LSTM without attention": 1.0}


class Runner:
    """One model in the race."""

    def __init__(
        self, name: str, peak: float, warmup: int, train: TokenBatches, vocab_size: int, seed: int
    ):
        torch.manual_seed(seed)
        model = MODELS[name](vocab_size)
        d = model.config.d_model
        self.config = TrainingConfig(
            steps=10**6,
            warmup=warmup,
            factor=peak * d**0.5 * warmup**0.5,
            clip=CLIP[name],
            average=5,
            average_every=20,
            seed=seed,
        )
        self.name, self.peak, self.warmup = name, peak, warmup
        self.trainer = Trainer(model, train, self.config)
        self.batches = (batch for epoch in range(10**6) for batch in train.epoch(epoch))
        self.seconds = self.cpu = 0.0
        self.tokens = 0
        self.loss = float("nan")

    def turn(self) -> None:
        """Do a slice of updates, and count the time."""
        self.trainer.model.train()
        wall, cpu = time.perf_counter(), time.process_time()
        loss, tokens = 0.0, 0
        for _ in range(SLICE):
            more, n = self.trainer.update([next(self.batches)])
            loss, tokens = loss + more, tokens + n
        self.seconds += time.perf_counter() - wall
        self.cpu += time.process_time() - cpu
        self.tokens += tokens
        self.loss = loss / tokens

    def result(self) -> Model:
        """Return the mean of the last snapshots, or the weights, if there are none yet."""
        return self.trainer.result.eval()


def race(runners: list[Runner], points: list[float], look) -> None:
    """Let all train, by turns, to each of these processor times; ``look`` at each model there."""
    for point in points:
        while behind := [runner for runner in runners if runner.cpu < point]:
            min(behind, key=lambda runner: runner.cpu).turn()
        for runner in runners:
            look(runner, point)


def write(path: Path, rows: list[dict]) -> None:
    """Write rows as a table."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def main() -> None:
    """Search, race, score, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=ROOT / "recordings/race")
    parser.add_argument("--seconds", type=float, default=90, help="of processor time, each")
    parser.add_argument("--search-seconds", type=float, default=20, help="for each rate")
    parser.add_argument("--points", type=int, default=12, help="at which all are scored")
    parser.add_argument("--dates", type=int, default=400, help="to score on")
    parser.add_argument("--seed", type=int, default=0, help="of the weights at the start")
    parser.add_argument("--rates", type=Path, help="race.json with the rates: search for none")
    parser.add_argument("--note", default="", help="what else must be known")
    asked = parser.parse_args()
    torch.set_num_threads(1)

    train_pairs, valid_pairs = date_pairs(40_000), date_pairs(500, split="valid")
    test_pairs = date_pairs(asked.dates, split="test")
    tokenizer = Tokenizer.train(
        (text for pair in train_pairs for text in pair), DATE_RECIPE.vocab_size
    )
    train = TokenBatches(train_pairs, tokenizer, DATE_RECIPE.max_tokens)
    valid = TokenBatches(valid_pairs, tokenizer, DATE_RECIPE.max_tokens)

    def score(model: Model, pairs) -> float:
        sources, references = map(list, zip(*pairs, strict=True))
        return exact_match(Translator(model, tokenizer).translate(sources), references)

    searched: list[dict] = []

    def look_at_search(runner: Runner, point: float) -> None:
        model = runner.trainer.model.eval()
        searched.append(
            {
                "model": runner.name,
                "peak": runner.peak,
                "warmup": runner.warmup,
                "updates": runner.trainer.step,
                "cpu_seconds": round(runner.cpu, 2),
                "validation": round(validation_loss(model, valid), 4),
                "exact_match": round(score(model, valid_pairs[:300]), 2),
            }
        )
        print(searched[-1], flush=True)

    if asked.rates:
        known = json.loads(asked.rates.read_text(encoding="utf-8"))["models"]
        rates = {
            name: (known[name]["peak_learning_rate"], known[name]["training"]["warmup"])
            for name in MODELS
        }
    else:
        tried = [
            Runner(name, peak, warmup, train, len(tokenizer), asked.seed)
            for name in MODELS
            for peak in PEAKS[name]
            for warmup in WARMUPS
        ]
        race(tried, [asked.search_seconds], look_at_search)
        worst_first = sorted(searched, key=lambda row: -row["validation"])  # the last one stays
        rates = {row["model"]: (row["peak"], row["warmup"]) for row in worst_first}
        del tried

    rows: list[dict] = []

    def look(runner: Runner, point: float) -> None:
        rows.append(
            {
                "model": runner.name,
                "updates": runner.trainer.step,
                "tokens": runner.tokens,
                "cpu_seconds": round(runner.cpu, 2),
                "seconds": round(runner.seconds, 2),
                "loss": round(runner.loss, 4),
                "exact_match": round(score(runner.result(), test_pairs), 2),
                "last_weights": round(score(runner.trainer.model.eval(), test_pairs), 2),
            }
        )
        print(rows[-1], flush=True)

    runners = [Runner(name, *rates[name], train, len(tokenizer), asked.seed) for name in MODELS]
    # closer together at the beginning, where most happens
    race(
        runners,
        [asked.seconds * ((i + 1) / asked.points) ** 1.5 for i in range(asked.points)],
        look,
    )
    groups = [
        {
            "model": runner.name,
            "group": group,
            "dates": len(pairs),
            "exact_match": round(score(runner.result(), pairs), 2),
        }
        for runner in runners
        for group, pairs in unusual_dates().items()
    ]
    record = {
        "question": "which learns to translate dates of unseen years sooner?",
        "command": shlex.join(["tools/race.py", *sys.argv[1:]]),
        "commit": commit(),
        "date": time.strftime("%Y-%m-%d"),
        "machine": machine(),
        "versions": versions(),
        "threads": torch.get_num_threads(),
        "note": asked.note,
        "seed": asked.seed,
        "test_dates": asked.dates,
        "validation_dates": len(valid_pairs),
        "max_tokens": DATE_RECIPE.max_tokens,
        "updates_of_a_turn": SLICE,
        "scored": "exact_match with the mean of the last 5 snapshots, 20 updates apart",
        "models": {
            runner.name: {
                "parameters": sum(p.numel() for p in runner.trainer.model.parameters()),
                "config": json.loads(runner.trainer.model.config.to_json()),
                "peak_learning_rate": runner.peak,
                "training": {
                    name: value
                    for name, value in dataclasses.asdict(runner.config).items()
                    if name not in ("steps", "log_every", "save_every")
                },
            }
            for runner in runners
        },
    }
    asked.out.mkdir(parents=True, exist_ok=True)
    write(asked.out / "race.csv", rows)
    if searched:
        write(asked.out / "search.csv", searched)
    write(asked.out / "groups.csv", groups)
    text = json.dumps(record, indent=2, ensure_ascii=False)
    (asked.out / "race.json").write_text(text + "\n", encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
