"""Devices, precisions, and several processes that train as one."""

import atexit
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from functools import cache
from pathlib import Path

import pytest
import several
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from support import padded_ids, randomise, seeds
from torch.torch_version import TorchVersion

from transformer_lit.data import BOS, Batch
from transformer_lit.gpu import (
    Accelerator,
    count,
    cut,
    extra_memory,
    measure_training,
    peak_flops,
    pick_device,
    pick_precision,
    product_flops,
    time_of,
    utilisation,
)
from transformer_lit.model import Transformer, TransformerConfig, flops_per_token
from transformer_lit.training import Engine, Trainer, TrainingConfig

TESTS = Path(__file__).parent
CPU = torch.device("cpu")
STILL = TransformerConfig(40, d_model=8, n_heads=2, d_ff=8, n_layers=1, dropout=0.0)


def random_batch(seed: int, b: int, length: int = 5) -> Batch:
    """Return a batch of padded sentences."""
    tgt = padded_ids(seed + 7, b, length + 1, STILL.vocab_size)
    tgt[:, 0] = BOS
    return Batch(padded_ids(seed, b, length, STILL.vocab_size), tgt)


def gradients(engine: Engine, model: Transformer, batches: list[Batch]) -> list[torch.Tensor]:
    """Return the gradients that an engine finds for a model."""
    engine.prepare(model)
    model.zero_grad()
    engine.gradient(batches, range(len(batches)), sum(b.n_tokens for b in batches), 0.1)
    return [p.grad.clone() for p in model.parameters()]


# Devices and precisions


def test_cpu_is_what_there_always_is():
    """And ``auto`` finds something."""
    assert pick_device("cpu") == CPU
    assert pick_device().type in ("cpu", "cuda", "mps")


@pytest.mark.parametrize("name", ["gpu", "", "tpu:0", "cuda:x"])
def test_a_device_nobody_knows_is_refused(name):
    """With the names that are known."""
    with pytest.raises(ValueError, match="auto, cpu, cuda or mps"):
        pick_device(name)


@pytest.mark.parametrize("name", ["cuda:99", "meta", "xpu", "cpu:1"])
def test_a_device_that_is_not_there_is_refused(name):
    """Whether it is the kind or the number."""
    with pytest.raises(ValueError, match="there is no device"):
        pick_device(name)


def pretend_gpus(monkeypatch) -> list[bool]:
    """Make PyTorch say that there are two GPUs; return how cuDNN's attention is switched."""
    switched: list[bool] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.backends.cuda, "enable_cudnn_sdp", switched.append)
    return switched


def test_each_process_gets_a_gpu_of_its_own(monkeypatch):
    """Also where the device is named; and there must be enough."""
    pretend_gpus(monkeypatch)
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert pick_device("cuda") == pick_device("auto") == torch.device("cuda:1")
    assert pick_device("cuda:0") == torch.device("cuda:0")
    monkeypatch.setenv("LOCAL_RANK", "2")
    with pytest.raises(ValueError, match="no more processes than devices"):
        pick_device("auto")
    monkeypatch.delenv("LOCAL_RANK")
    assert pick_device("auto") == torch.device("cuda:0")


def test_attention_on_a_gpu_does_not_plan_for_each_shape(monkeypatch):
    """As cuDNN's does, which PyTorch prefers on newer ones."""
    switched = pretend_gpus(monkeypatch)
    pick_device("cpu")
    assert switched == []
    pick_device("cuda")
    assert switched == [False]


def test_a_gpu_whose_driver_is_too_old_is_not_there(monkeypatch):
    """PyTorch counts it, and then cannot use it."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert pick_device("auto") == CPU
    with pytest.raises(ValueError, match="no device 'cuda:0' here, but 0 of CUDA that can be used"):
        pick_device("cuda")


def test_a_gpu_for_which_pytorch_is_not_built_is_left_out(monkeypatch):
    """As a P100, which it counts too, and on which the first kernel fails."""
    pretend_gpus(monkeypatch)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: ["sm_75", "sm_90a", "compute_120"])
    for capability, device in (
        ((6, 0), "cpu"),
        ((7, 0), "cpu"),
        ((7, 5), "cuda"),
        ((8, 6), "cuda"),
    ):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda gpu, c=capability: c)
        assert pick_device("auto").type == device
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda gpu: (6, 0))
    message = "nothing for cuda:1, a GPU of capability 6.0; it is built for sm_75"
    with pytest.raises(ValueError, match=message):
        pick_device("cuda:1")


def test_mps_needs_a_pytorch_that_computes_attention_rightly_there(monkeypatch):
    """What was fixed in 2.13."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    for version, device in (("2.13.0", "mps"), ("2.20.1", "mps"), ("2.12.1", "cpu")):
        monkeypatch.setattr(torch, "__version__", TorchVersion(version))
        assert pick_device("auto").type == device
    with pytest.raises(ValueError, match=r"MPS needs PyTorch 2\.13, and this is 2\.12\.1"):
        pick_device("mps")


def test_the_precision_is_one_that_the_device_has(monkeypatch):
    """A T4 says that it supports bf16, and imitates it."""
    cases = [
        ("cuda", (6, 0), "float32"),  # P100
        ("cuda", (7, 0), "fp16"),  # V100
        ("cuda", (7, 5), "fp16"),  # T4
        ("cuda", (8, 0), "bf16"),  # A100
        ("cuda", (9, 0), "bf16"),  # H100
        ("mps", None, "float32"),
        ("cpu", None, "float32"),
    ]
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda *a, **b: True)
    for name, capability, expected in cases:
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda d, c=capability: c)
        device = torch.device(name)
        assert pick_precision(device) == expected
        assert pick_precision(device, "float32") == "float32"
        for wanted in ("bf16", "tf32"):
            if name == "cuda" and capability < (8, 0):
                with pytest.raises(ValueError, match=f"has no {wanted}"):
                    pick_precision(device, wanted)
            elif name == "cuda":
                assert pick_precision(device, wanted) == wanted
    with pytest.raises(ValueError, match="not 'half'"):
        pick_precision(CPU, "half")


def test_what_a_device_lacks_is_refused():
    """With the way out."""
    with pytest.raises(ValueError, match="cpu has no tf32; choose float32 or auto"):
        pick_precision(CPU, "tf32")
    with pytest.raises(ValueError, match="mps has no fp16"):
        pick_precision(torch.device("mps"), "fp16")


def test_ways_to_share_that_do_not_go_are_refused(monkeypatch):
    """Before any other process is waited for."""
    with pytest.raises(ValueError, match="ddp or fsdp, not 'tensor'"):
        Accelerator("cpu", parallel="tensor")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ValueError, match="fsdp does not scale the loss"):
        Accelerator("cpu", "fp16", parallel="fsdp")
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    with pytest.raises(ValueError, match="MPS"):
        Accelerator("mps")


def test_shards_are_never_in_fp16(monkeypatch):
    """Which is what suits a T4 otherwise."""
    pretend_gpus(monkeypatch)
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    monkeypatch.setattr(dist, "is_initialized", lambda: True)  # nobody is to be waited for
    engine = Accelerator("cuda")
    assert engine.precision == "fp16"
    # the loss is multiplied by the number of processes, and nothing else may differ from one alone
    assert engine.world_size * engine.scaler.get_scale() == 2**16
    assert Accelerator("cuda", parallel="fsdp").precision == "float32"


def test_the_scale_in_a_checkpoint_is_that_of_one_process(monkeypatch):
    """Else a run that goes on in others would be another one until the scale has settled."""
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    weight = torch.nn.Parameter(torch.ones(1))
    adam = torch.optim.Adam([weight])
    one = Accelerator("cpu", "fp16")
    monkeypatch.setenv("WORLD_SIZE", "8")
    eight = Accelerator("cpu", "fp16")
    assert eight.state(adam)["scaler"] == one.state(adam)["scaler"]
    one.scaler.load_state_dict({**one.scaler.state_dict(), "scale": 2.0**10})
    monkeypatch.setattr(Engine, "load", lambda *given: None)  # weights are not looked at here
    eight.load({}, adam, one.state(adam))
    assert eight.scaler.get_scale() == 2.0**7


def test_several_processes_are_not_measured():
    """Each would make a number of steps of its own, and wait for the others."""
    engine = Engine()
    engine.world_size = 8
    with pytest.raises(ValueError, match="measures one process, not 8; take seconds"):
        measure_training(Transformer(STILL), [random_batch(0, 4)], engine)


def test_restarts_that_may_fail_are_warned_of(monkeypatch):
    """PyTorch's issue 135712."""
    for name, value in {"MAX_RESTARTS": "3", "USE_AGENT_STORE": "True"}.items():
        monkeypatch.setenv(f"TORCHELASTIC_{name}", value)
    with pytest.warns(UserWarning, match="TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1"):
        Accelerator("cpu")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "False")
        Accelerator("cpu")


@given(seeds, st.sampled_from(["float32", "bf16"]))
def test_an_accelerator_has_the_gradients_of_a_plain_engine(seed, precision):
    """Bit for bit in float32, roughly in bf16; the weights stay float32."""
    batches = [random_batch(seed, 3), random_batch(seed + 1, 2)]
    model = randomise(Transformer(STILL), seed)
    expected = gradients(Engine(), model, batches)
    found = gradients(Accelerator("cpu", precision), model, batches)
    for a, b in zip(found, expected, strict=True):
        assert a.dtype == torch.float32
        assert a.equal(b) if precision == "float32" else (a - b).norm() <= 0.1 * b.norm() + 1e-3


# Half precision


def half_precision(
    folder=None, bad_calls=(), steps=5, factor=math.inf
) -> tuple[Trainer, list[int]]:
    """Return a trainer in fp16, one of whose gradients is far too large in some of its calls."""
    torch.manual_seed(0)
    model, calls = Transformer(several.TINY), []

    def spoil(gradient):
        calls.append(len(calls) + 1)
        return gradient * factor if calls[-1] in bad_calls else gradient

    model.decoder.layers[0].feed_forward.linear1.weight.register_hook(spoil)
    config = TrainingConfig(steps=steps, warmup=4, log_every=1, save_every=100)
    engine = Accelerator("cpu", "fp16")
    return Trainer(model, several.batches(), config, folder=folder, engine=engine), calls


def test_a_skipped_step_does_not_count():
    """F41: weights, Adam's counter and the schedule stand still; then all goes on."""
    t, _ = half_precision(bad_calls={2})
    batches = list(several.batches().epoch(0))
    t.update(batches[:1])
    before = {n: p.clone() for n, p in t.model.named_parameters()}
    scale, rate = t.engine.scaler.get_scale(), t.optimizer.param_groups[0]["lr"]
    loss, _ = t.update(batches[1:2])
    assert math.isfinite(loss) and t.step == 1
    assert all(p.equal(before[n]) for n, p in t.model.named_parameters())
    assert {state["step"].item() for state in t.optimizer.state.values()} == {1.0}
    assert t.engine.scaler.get_scale() == scale / 2
    t.update(batches[2:3])
    assert t.step == 2 and t.optimizer.param_groups[0]["lr"] == pytest.approx(2 * rate)
    assert {state["step"].item() for state in t.optimizer.state.values()} == {2.0}
    assert not any(p.equal(before[n]) for n, p in t.model.named_parameters() if "in_proj" not in n)


def test_training_goes_on_after_a_skipped_step():
    """F41: as many steps as asked for, each rate once."""
    t, calls = half_precision(bad_calls={1, 4})
    log = t.train(progress=False)
    assert [row["step"] for row in log] == [1, 2, 3, 4, 5] and len(calls) == 7
    rates = [row["learning_rate"] for row in log]
    assert all(a < b for a, b in zip(rates[:3], rates[1:4], strict=True))
    assert log[-1]["loss"] < log[0]["loss"]


def test_a_gradient_that_is_never_finite_ends_the_training():
    """The scale is not what is wrong with it."""
    t, calls = half_precision(bad_calls=range(1, 1000))
    with pytest.raises(FloatingPointError, match="gradient"):
        t.train(progress=False)
    assert 15 <= len(calls) <= 18 and t.step == 0
    t, calls = half_precision(bad_calls=range(1, 1000), factor=1e25)  # finite, but not their norm
    with pytest.raises(FloatingPointError, match="gradient"):
        t.train(progress=False)
    assert len(calls) == 1


def test_gradients_are_unscaled_before_they_are_clipped():
    """F41: the norm is the true one, and no step is longer than the limit."""
    batch = random_batch(0, 4)
    model = randomise(Transformer(STILL), 0)
    true = torch.cat([g.flatten() for g in gradients(Engine(), model, [batch])]).norm().item()
    for clip in (0.01 * true, 100 * true):
        engine = Accelerator("cpu", "fp16")
        gradients(engine, model, [batch])
        before = [p.detach().clone() for p in model.parameters()]
        norm = engine.step(torch.optim.SGD(model.parameters(), lr=1.0), clip)
        moved = [a - b.detach() for a, b in zip(before, model.parameters(), strict=True)]
        step = torch.cat([m.flatten() for m in moved]).norm().item()
        assert norm == pytest.approx(true, rel=0.02)
        assert step == pytest.approx(min(clip, true), rel=0.02)
        with torch.no_grad():
            for parameter, old in zip(model.parameters(), before, strict=True):
                parameter.copy_(old)


def test_the_scale_is_in_the_checkpoint(tmp_path):
    """Or a resumed run would begin by skipping steps again."""
    t, _ = half_precision(tmp_path, bad_calls={1, 2, 3})
    t.train(progress=False)
    assert t.engine.scaler.get_scale() == 2.0**13
    again, _ = half_precision(tmp_path)
    assert again.engine.scaler.get_scale() == 2.0**16
    assert again.resume() == 5 and again.engine.scaler.get_scale() == 2.0**13
    assert again.engine.scaler.state_dict() == t.engine.scaler.state_dict()
    plain = Trainer(again.model, several.batches(), again.config, folder=tmp_path)
    assert plain.resume() == 5  # which needs no scale


# Memory


class Cramped(Transformer):
    """A model that has room for so many ids."""

    room = 1000
    attempts = 0
    error = torch.OutOfMemoryError("no room")

    def forward(self, src, tgt, **options):
        """Fail where there is no room, after some of the work."""
        self.attempts += 1
        logits = super().forward(src, tgt, **options)
        if src.numel() + tgt.numel() > self.room:
            raise self.error
        return logits


@given(seeds, st.integers(1, 40), st.lists(st.integers(1, 7), min_size=1, max_size=3))
def test_batches_that_do_not_fit_are_halved(seed, room, sizes):
    """The same gradients, one warning, and the next update does not run into it again."""
    batches = [random_batch(seed + i, b) for i, b in enumerate(sizes)]
    model = randomise(Cramped(STILL), seed)
    expected = gradients(Engine(), model, batches)
    model.room, model.attempts = max(room, 10), 0  # a sentence of 5 and 5 ids fits
    engine = Accelerator("cpu")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = gradients(engine, model, batches)
    assert len(caught) == (max(sizes) * 10 > model.room)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, atol=1e-6, rtol=1e-5)
    model.attempts = 0
    engine.gradient(batches, range(len(batches)), 1, 0.1)
    assert model.attempts == sum(len(cut(batch, engine.most)) for batch in batches)


def test_other_errors_pass_and_that_of_mps_is_known():
    """It is an ordinary RuntimeError."""
    model = Cramped(STILL)
    model.room = 20
    model.error = RuntimeError("MPS backend out of memory (MPS allocated: 5.50 GB)")
    engine = Accelerator("cpu")
    with pytest.warns(UserWarning, match="Halving"):
        gradients(engine, model, [random_batch(0, 4)])
    model.error = RuntimeError("shapes do not fit")
    with pytest.raises(RuntimeError, match="shapes"):
        gradients(Accelerator("cpu"), model, [random_batch(0, 4)])


def test_a_sentence_that_does_not_fit_ends_the_training():
    """As does a batch where others wait; what to do stands in the error."""
    model = Cramped(STILL)
    model.room = 9
    engine = Accelerator("cpu")
    with (
        pytest.warns(UserWarning, match="Halving"),
        pytest.raises(MemoryError, match="it is a single sentence: leave out"),
    ):
        gradients(engine, model, [random_batch(0, 4)])
    engine = Accelerator("cpu")
    engine.prepare(model)
    engine.world_size = 2
    with pytest.raises(
        MemoryError,
        match=r"\(4, 5\) source .* into the memory of cpu: begin anew with half the max_tokens",
    ):
        engine.gradient([random_batch(0, 4)], [0], 1, 0.1)


@given(seeds, st.integers(1, 9), st.integers(1, 9), st.none() | st.integers(1, 200))
def test_a_batch_is_cut_into_parts_that_fit(seed, b, length, most):
    """All sentences, in order, each part as large as it may be."""
    batch = random_batch(seed, b, length)
    parts = cut(batch, most)
    assert torch.cat([part.src for part in parts]).equal(batch.src)
    assert torch.cat([part.tgt for part in parts]).equal(batch.tgt)
    if most is None:
        assert len(parts) == 1
    else:
        row = 2 * length + 1
        assert all(count(part) <= most or len(part.src) == 1 for part in parts)
        assert all(count(part) + row > most for part in parts[:-1])


# Measuring


def test_time_is_that_of_one_call():
    """However often it is called."""
    assert 0.01 <= time_of(lambda: time.sleep(0.01), CPU, 0.06) < 0.1
    assert time_of(lambda: None, CPU, 0.01) < 1e-4


def test_extra_memory_is_that_of_the_highest_point():
    """Not of what is left in the end, and without what was there before."""
    old, kept = torch.ones(10**6), []

    def run():
        large = torch.ones(3 * 10**6)
        kept.append(large[:10].clone() + old[:10])

    assert 12_000_000 <= extra_memory(run, CPU) < 12_100_000
    assert extra_memory(lambda: None, CPU) == 0
    assert extra_memory(lambda: old.add_(1)[:5].view(5), CPU) == 0  # in place, and a view
    assert extra_memory(lambda: torch.add(old, 1, out=old), CPU) == 0


def test_a_measured_step_has_its_tokens_and_its_memory():
    """More sentences need more memory; the same ones in parts need less."""
    batch = random_batch(0, 64, 12)
    model = Transformer(STILL)
    speed = measure_training(model, [batch], Engine(), 0.1)
    assert speed.tokens == pytest.approx(batch.n_tokens / speed.seconds)
    assert 0 < speed.seconds < 5
    parts = measure_training(model, cut(batch, count(batch) // 8), Accelerator("cpu"), 0.1)
    assert parts.memory < 0.5 * speed.memory


def test_products_are_measured_in_operations_a_second():
    """Between what any machine does, and what none does."""
    assert 1e6 < product_flops(64, CPU, seconds=0.02) < 1e15
    before = torch.get_float32_matmul_precision()
    assert 1e7 < peak_flops(CPU) < 1e15
    assert torch.get_float32_matmul_precision() == before


@given(st.integers(1, 100), st.integers(1, 8))
def test_utilisation_follows_its_formula(length, processes):
    """The forward pass and two of its like, over what the devices could do."""
    config = TransformerConfig.base(37_000)
    work = flops_per_token(config, length)["total"]
    share = utilisation(config, 1e5, length, 1e15, processes)
    assert share == pytest.approx(3 * work * 1e5 / (1e15 * processes))


# Several processes


def torchrun(*arguments: object, restarts: int = 0) -> list[str]:
    """Return the command that starts `several.py` in two processes."""
    run = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    return [*run, f"--max-restarts={restarts}", str(TESTS / "several.py"), *map(str, arguments)]


def start(command: list[str], **options) -> subprocess.Popen:
    """Start a program with this package, and one thread for each process."""
    path = os.pathsep.join([str(TESTS.parent), *filter(None, [os.environ.get("PYTHONPATH")])])
    options |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    own = {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    return subprocess.Popen(command, env={**os.environ, **own}, **options)


def finish(process: subprocess.Popen) -> tuple[int, str, str]:
    """Return exit status, output and errors of a program, or end it after two minutes."""
    try:
        output, errors = process.communicate(timeout=600)
    finally:
        process.kill()
    return process.returncode, output, errors


def new_folder() -> Path:
    """Return a folder that is there as long as the program runs."""
    folder = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


@cache
def alone() -> tuple[Path, dict[str, dict]]:
    """Return what one process finds."""
    folder, cases = new_folder(), ["one", "uneven"]
    return folder, {case: several.run(case, folder, Accelerator("cpu")) for case in cases}


@cache
def together() -> Path:
    """Return the folder in which two processes have trained."""
    folder = new_folder()
    status, output, errors = finish(start(torchrun(folder, "one", "uneven")))
    assert status == 0, output + errors
    return folder


def result(folder: Path, case: str) -> dict:
    """Return what a case has left."""
    return torch.load(folder / f"{case}.result", weights_only=True)


def same(found: dict, expected: dict) -> None:
    """Assert that weights are close, but for the biases of the keys.

    These shift all scores of a query alike, so that their gradient is 0 but for rounding. Adam
    divides it by its own size, and what remains is a random step.
    """
    assert found.keys() == expected.keys()
    for name, weights in found.items():
        other = expected[name].detach()
        if name.endswith("in_proj.bias"):
            weights, other = (torch.cat([x.chunk(3)[0], x.chunk(3)[2]]) for x in (weights, other))
        torch.testing.assert_close(weights, other, atol=1e-4, rtol=1e-4)


def test_two_processes_train_as_one():
    """Dropout, accumulation, clipping, averaging: losses to 1e-5, and the weights."""
    for case in ("one", "uneven"):
        found, expected = result(together(), case), alone()[1][case]
        assert found["losses"] == pytest.approx(expected["losses"], abs=1e-5)
        same(found["weights"], expected["weights"])


def test_every_pair_is_read_once():
    """By one process or the other, never by both."""
    for case in ("one", "uneven"):
        shares = [torch.load(together() / f"{case}.pairs.{rank}") for rank in range(2)]
        wanted = torch.load(alone()[0] / f"{case}.pairs.0")
        assert sorted(shares[0] + shares[1]) == sorted(wanted)
        assert all(shares)


def test_shards_train_as_the_whole():
    """Also from one's checkpoint to the other. To 1e-5: sums are taken in another order."""
    folder, expected = together(), result(together(), "one")
    cases = ["sharded", "whole to shards", "shards to whole", "uneven shards", "bf16 shards"]
    status, output, errors = finish(start(torchrun(folder, *cases)))
    assert status == 0, output + errors
    for case in cases[:3]:
        found = result(folder, case)
        assert found["begun"] == (0 if case == "sharded" else several.STEPS - 2)
        assert found["losses"] == pytest.approx(expected["losses"], abs=1e-5)
        assert found["validation"] == pytest.approx(expected["validation"], rel=1e-3)
        same(found["weights"], expected["weights"])
    found, uneven = result(folder, "uneven shards"), result(folder, "uneven")
    assert found["losses"] == pytest.approx(uneven["losses"], abs=1e-5)
    same(found["weights"], uneven["weights"])
    found = result(folder, "bf16 shards")
    assert found["losses"] == pytest.approx(expected["losses"], abs=0.1)
    assert {weights.dtype for weights in found["weights"].values()} == {torch.float32}
    kept = Transformer.load(folder / "sharded")  # whole, as any program reads it
    same(dict(kept.named_parameters()), expected["weights"])


def test_a_process_that_dies_ends_the_job_or_is_started_again(tmp_path):
    """The job says so, and the last checkpoint is there to go on from; the end is the same."""
    status, output, errors = finish(start(torchrun(tmp_path, "killed")))
    assert status != 0 and "goes on from step 0" in output
    assert re.search(r"rank +: 1 [^\n]*\n +exitcode +: -9", errors), errors
    checkpoint = torch.load(tmp_path / "killed/training.pt", weights_only=True)
    assert checkpoint["step"] == 2
    (tmp_path / "killed once").unlink()
    status, output, errors = finish(start(torchrun(tmp_path, "killed", restarts=1)))
    assert status == 0, output + errors
    assert output.count("goes on from step 2") == 2 and (tmp_path / "killed once").exists()
    found = torch.load(tmp_path / "killed.result", weights_only=True)
    same(found, alone()[1]["one"]["weights"])


def test_a_job_told_to_stop_saves_first(tmp_path):
    """All processes stop at the same step, though the signal reaches them at different times."""
    process = start(torchrun(tmp_path, "endless"))
    first = process.stdout.readline()
    process.send_signal(signal.SIGTERM)
    status, output, errors = finish(process)
    assert first == "step 1\n" and status != 0, errors
    checkpoint = torch.load(tmp_path / "endless/training.pt", weights_only=True)
    assert (first + output).splitlines()[-1] == f"step {checkpoint['step']}"


# Compiled models


def test_a_compiled_model_is_compiled_once_and_saved_as_any(tmp_path):
    """F51: one graph for all lengths, or two or three; no prefix in the checkpoint."""
    script = [sys.executable, str(TESTS / "several.py"), str(tmp_path), "compiled"]
    status, output, errors = finish(start(script))
    assert status == 0, output + errors
    found = result(tmp_path, "compiled")
    assert found["shapes"] >= 8 and 1 <= found["graphs"] <= 3
    assert found["losses"][-1] < found["losses"][0]
    state = torch.load(tmp_path / "compiled/training.pt", weights_only=True)
    plain = Transformer(several.TINY)
    assert state["model"].keys() == dict(plain.named_parameters()).keys()
    Transformer.load(tmp_path / "compiled")
