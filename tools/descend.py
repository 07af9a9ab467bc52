"""Train small language models on Python's own help texts, and record them.

    OMP_NUM_THREADS=1 .venv/bin/python tools/descend.py text
    OMP_NUM_THREADS=1 .venv/bin/python tools/descend.py changes

``text`` trains a decoder-only model for some minutes; ``changes`` trains the paper's layer, and it
with each change that large models made, for a few hundred steps, with several seeds, at one highest
learning rate (``--peak 0.001`` is the other that was recorded). Each writes a record and a table,
``recordings/descendants/NAME.json`` and ``NAME.csv``.

The texts are ``pydoc_data.topics``, which comes with Python, under the licence of the Python
Software Foundation. Every tenth topic is kept for validation. They differ between versions of
Python, so the record names version and hash.
"""

import argparse
import csv
import datetime
import hashlib
import json
import shlex
import sys
import time
from pathlib import Path
from pydoc_data.topics import topics

import torch
from record import commit, machine, versions

from transformer_lit.data import BOS, EOS, Tokenizer
from transformer_lit.decoding import sample
from transformer_lit.descendants import (
    Continuation,
    LanguageModel,
    LanguageModelConfig,
    fit,
    next_token_loss,
)

OUT = Path(__file__).parent.parent / "recordings" / "descendants"
NO_DROPOUT = {"dropout": 0.0, "embedding_dropout": 0.0, "attention_dropout": 0.0}
PAPER = {"norm_first": False, "activation": "relu", **NO_DROPOUT}
CHANGES = {  # to the paper's layer, each alone
    "the paper's layer": {},
    "pre-norm": {"norm_first": True},
    "RMSNorm": {"norm": "rms"},
    "rotary positions": {"positions": "rotary"},
    "gated feed-forward": {"gated": True, "activation": "silu", "d_ff": 172},  # as many weights
    "grouped queries": {"n_kv_heads": 2},
    "no biases": {"attention_bias": False, "ff_bias": False},
}
CHANGES["all of them"] = {k: v for change in CHANGES.values() for k, v in change.items()}


class Texts:
    """Token ids of the topics for training and for validation, each closed by EOS."""

    def __init__(self, vocab_size: int):
        names = sorted(topics)
        train = [topics[name] for i, name in enumerate(names) if i % 10 != 9]
        valid = [topics[name] for i, name in enumerate(names) if i % 10 == 9]
        self.tokenizer = Tokenizer.train(train, vocab_size)
        self.train, self.valid = (
            torch.tensor([i for text in side for i in [BOS, *self.tokenizer.encode(text), EOS]])
            for side in (train, valid)
        )
        self.about = {
            "texts": "pydoc_data.topics",
            "sha256": hashlib.sha256("".join(topics[n] for n in names).encode()).hexdigest(),
            "characters": sum(map(len, topics.values())),
            "train_tokens": len(self.train),
            "valid_tokens": len(self.valid),
            "valid_topics": [name for i, name in enumerate(names) if i % 10 == 9],
            "vocab_size": len(self.tokenizer),
            "characters_per_token": sum(map(len, valid)) / len(self.valid),
        }

    def batch(self, generator: torch.Generator, rows: int, length: int) -> torch.Tensor:
        """Return windows of the training text."""
        start = torch.randint(len(self.train) - length, (rows, 1), generator=generator)
        return self.train[start + torch.arange(length + 1)]

    @torch.no_grad()
    def loss(self, model: LanguageModel, length: int) -> float:
        """Return the mean loss of a validation token."""
        training = model.training
        rows = self.valid[: (len(self.valid) - 1) // length * length + 1].unfold(
            0, length + 1, length
        )
        losses = [next_token_loss(model.eval(), row).item() for row in rows.split(32)]
        sizes = [len(row) for row in rows.split(32)]
        model.train(training)
        return sum(x * n for x, n in zip(losses, sizes, strict=True)) / sum(sizes)


def record(name: str, what: dict, rows: list[dict]) -> None:
    """Write a record, and its table."""
    OUT.mkdir(parents=True, exist_ok=True)
    about = {
        "command": shlex.join(["tools/descend.py", *sys.argv[1:]]),
        "commit": commit(),
        "date": datetime.date.today().isoformat(),
        "machine": machine(),
        "versions": versions(),
        "threads": torch.get_num_threads(),
    }
    text = json.dumps(about | what, indent=2, ensure_ascii=False)
    (OUT / f"{name}.json").write_text(text + "\n", encoding="utf-8")
    with (OUT / f"{name}.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def text(steps: int) -> None:
    """Train one model for some minutes, and let it write."""
    rows, length, peak = 16, 96, 2e-3
    texts = Texts(1024)
    config = LanguageModelConfig(
        texts.about["vocab_size"],
        d_model=128,
        n_heads=4,
        d_ff=512,
        n_layers=4,
        max_len=length + 160,
    )
    torch.manual_seed(0)
    model, log, seen = LanguageModel(config), [], []
    start = time.process_time()

    def loss(generator: torch.Generator) -> torch.Tensor:
        value = next_token_loss(model, texts.batch(generator, rows, length))
        seen.append(value.item())
        if len(seen) % 100 == 0:
            log.append(
                {
                    "step": len(seen),
                    "tokens": len(seen) * rows * length,
                    "cpu_seconds": round(time.process_time() - start, 1),
                    "train_loss": round(sum(seen[-100:]) / 100, 4),
                    "valid_loss": round(texts.loss(model, length), 4),
                }
            )
            print(log[-1], flush=True)
        return value

    fit(model, loss, steps, peak=peak, warmup=100)
    seconds = round(time.process_time() - start, 1)
    valid = texts.loss(model.eval(), length)
    samples = []
    for beginning in ('The "for" statement', "A class is", "   >>> ", "If the expression"):
        ids = torch.tensor([texts.tokenizer.encode(beginning)])
        for temperature in (0.5, 1.0):
            (found,) = sample(
                Continuation(model, EOS), ids, temperature=temperature, top_p=0.95, max_len=120
            )
            out = texts.tokenizer.decode(found[0].ids)
            samples.append({"beginning": beginning, "temperature": temperature, "text": out})
            print("-----", beginning, temperature, out, sep="\n")
    record(
        "text",
        {
            "data": texts.about,
            "config": json.loads(config.to_json()),
            "parameters": sum(p.numel() for p in model.parameters()),
            "training": {
                "steps": steps,
                "rows": rows,
                "length": length,
                "peak": peak,
                "warmup": 100,
            },
            "cpu_seconds": seconds,
            "valid_loss": round(valid, 4),
            "sampling": {"top_p": 0.95, "max_len": 120, "seed": 0},
            "samples": samples,
        },
        log,
    )


def changes(steps: int, seeds: int, peak: float) -> None:
    """Train each change from the same beginnings, on the same batches."""
    rows, length = 8, 64
    texts, found, sizes = Texts(512), [], {}
    for seed in range(seeds):
        for name, change in CHANGES.items():
            torch.manual_seed(seed)
            shape = {"d_model": 64, "n_heads": 4, "d_ff": 256, "n_layers": 3, "max_len": length}
            config = LanguageModelConfig(texts.about["vocab_size"], **shape | PAPER | change)
            model = LanguageModel(config)
            sizes[name] = sum(p.numel() for p in model.parameters())
            start = time.process_time()
            fit(
                model,
                lambda g, m=model: next_token_loss(m, texts.batch(g, rows, length)),
                steps,
                peak=peak,
                seed=seed,
            )
            found.append(
                {
                    "change": name,
                    "seed": seed,
                    "valid_loss": round(texts.loss(model, length), 4),
                    "cpu_seconds": round(time.process_time() - start, 1),
                }
            )
            print(found[-1], flush=True)
    training = {"steps": steps, "rows": rows, "length": length, "peak": peak, "warmup": 50}
    record(
        f"changes_{peak:g}",
        {"data": texts.about, "changes": CHANGES, "parameters": sizes, "training": training},
        found,
    )


def main() -> None:
    """Train and record."""
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=["text", "changes"])
    parser.add_argument("--steps", type=int)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--peak", type=float, default=3e-3)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.what == "text":
        text(options.steps or 1000)
    else:
        changes(options.steps or 300, options.seeds, options.peak)


if __name__ == "__main__":
    main()
