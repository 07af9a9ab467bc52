"""The whole model: equal to PyTorch's, tied, counted, saved and loaded."""

import dataclasses
import json
import math

import jaxtyping
import oracles
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from support import (
    close,
    configs,
    dtypes,
    generator,
    padded_ids,
    random_ids,
    random_model,
    seeds,
    sizes,
    source_and_target,
)
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from transformer_lit.data import BOS, PAD
from transformer_lit.model import (
    SHAPES,
    Shape,
    Transformer,
    TransformerConfig,
    count_matrices,
    count_parameters,
    flops_per_token,
    matrices,
)
from transformer_lit.multi_head import record_attention

TINY = TransformerConfig(10, d_model=4, n_heads=2, d_ff=6, n_layers=2, dropout=0.0)
lengths = st.integers(1, 8)  # the shortest table of learned positions that `configs` draws


# What the model computes


@given(configs(gated=False, bias=True), seeds, dtypes, sizes, lengths, lengths, st.booleans())
def test_equals_pytorch(config, seed, dtype, b, s, t, training):
    """F22, F10: from the embeddings to the logits, padded, in both orders of the norm."""
    model = random_model(config, seed, dtype).train(training)
    src, tgt = source_and_target(config, seed, b, s, t)
    stacks = torch.nn.ModuleDict({"encoder": model.encoder, "decoder": model.decoder})
    theirs = oracles.copy_weights(stacks.train(training), oracles.transformer(config))
    expected = theirs(
        model.src_embedding(src),
        model.tgt_embedding(tgt),
        tgt_mask=oracles.future(t),
        src_key_padding_mask=src == PAD,
        tgt_key_padding_mask=tgt == PAD,
        memory_key_padding_mask=src == PAD,
    )
    close(model(src, tgt), F.linear(expected, model.output.weight, model.output.bias))


def test_a_longer_neighbour_changes_nothing():
    """F10: [7, 8] alone, and [7, 8, PAD, PAD] beside a longer sentence."""
    model, tgt = random_model(TINY, 0), torch.tensor([[BOS, 5, 6, 7]])
    alone = model(torch.tensor([[7, 8]]), tgt)
    beside = model(torch.tensor([[7, 8, PAD, PAD], [3, 4, 5, 6]]), tgt.expand(2, -1))
    close(beside[:1], alone)


@given(configs(), seeds, sizes, lengths, lengths, st.integers(0, 2), st.integers(0, 2))
def test_neighbours_and_padding_change_nothing(config, seed, b, s, t, more_s, more_t):
    """F10: each sentence alone, cut to its length, has the logits that it has in the batch."""
    config = dataclasses.replace(config, max_len=12)
    model = random_model(config, seed)
    src, tgt = source_and_target(config, seed, b, s, t)
    filled = [
        torch.nn.functional.pad(x, (0, n), value=PAD) for x, n in ((src, more_s), (tgt, more_t))
    ]
    logits = model(*filled)
    for row in range(b):
        own_src, own_tgt = (x[row, x[row] != PAD][None] for x in (src, tgt))
        close(logits[row, : own_tgt.size(1)], model(own_src, own_tgt)[0])


@given(configs(), seeds, lengths, lengths)
def test_an_empty_source_gives_finite_logits(config, seed, s, t):
    """F03: a row of padding alone, which no query may attend to, spoils nothing."""
    model = random_model(config, seed).train()
    src, tgt = source_and_target(config, seed, 2, s, t)
    src[1] = PAD
    logits = model(src, tgt)
    assert logits.isfinite().all()
    logits.sum().backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


def test_the_last_target_token_does_not_leak():
    """F17: decode [3, 4, 5, 6] and [3, 4, 5, 9]."""
    model, src = random_model(TINY, 0), torch.tensor([[7, 8]])
    one, other = (model(src, torch.tensor([[3, 4, 5, last]])) for last in (6, 9))
    close(one[:, :3], other[:, :3])
    assert not torch.allclose(one[:, 3], other[:, 3])


def test_random_tokens_cannot_be_predicted():
    """F17: trained on them, the loss stays near ln(vocab); with a leak it would fall."""
    torch.manual_seed(0)
    config = TransformerConfig(12, d_model=32, n_heads=2, d_ff=32, n_layers=1, dropout=0.0)
    model, numbers, losses = Transformer(config), generator(0), []
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(150):
        src, tgt = torch.randint(4, 12, (2, 32, 7), generator=numbers)
        loss = torch.nn.functional.cross_entropy(
            model(src, tgt[:, :-1]).flatten(0, 1), tgt[:, 1:].flatten()
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert sum(losses[-20:]) / 20 > 0.97 * math.log(8)  # 8 of the 12 tokens occur


@given(configs(), seeds, lengths, st.lists(st.integers(1, 3), min_size=1, max_size=4))
def test_step_by_step_equals_teacher_forced(config, seed, s, pieces):
    """F17: with the cache, each position from the one before it, at its own place."""
    config = dataclasses.replace(config, max_len=12)
    model = random_model(config, seed)
    src = padded_ids(seed, 2, s, config.vocab_size)
    tgt = random_ids(seed + 2, 2, sum(pieces), vocab_size=config.target_size)
    memory, memory_mask = model.encode(src)
    cache = model.new_cache()
    parts = [model.decode(part, memory, memory_mask, cache) for part in tgt.split(pieces, dim=1)]
    close(torch.cat(parts, dim=1), model(src, tgt))
    for n in range(1, tgt.size(1)):  # and the beginning does not depend on what follows
        close(model(src, tgt[:, :n]), model(src, tgt)[:, :n])


@pytest.mark.parametrize("norm_first", [False, True])
def test_nothing_is_written_to_the_page(norm_first, recwarn, capfd):
    """F12: no warning, in both modes, with and without padding, forward and backward."""
    model = Transformer(dataclasses.replace(TINY, dropout=0.1, norm_first=norm_first))
    padded, full = torch.tensor([[5, 6, PAD], [7, 8, 9]]), torch.tensor([[5, 6, 4], [7, 8, 9]])
    for training in (True, False):
        model.train(training)
        model(padded, padded).sum().backward()
        with torch.no_grad():
            model(full, full)
    assert not recwarn.list
    assert capfd.readouterr() == ("", "")


def test_dropout_is_off_in_evaluation():
    """F31: of every kind, with p = .9."""
    src = torch.tensor([[5, 6, 7]])
    for option in ("dropout", "attention_dropout"):
        model = Transformer(dataclasses.replace(TINY, **{option: 0.9}))
        torch.manual_seed(0)
        assert not model(src, src).equal(model(src, src)), option
        model.eval()
        assert model(src, src).equal(model(src, src)), option


# How it is built


@given(configs(), seeds)
def test_the_seed_determines_the_weights(config, seed):
    """Another seed gives others."""
    models = []
    for s in (seed, seed, seed + 1):
        torch.manual_seed(s)
        models.append(list(Transformer(config).parameters()))
    for one, same, other in zip(*models, strict=True):
        assert one.equal(same)
        assert one.dim() == 1 or not one.equal(other)


def test_weights_start_as_described():
    """Glorot's uniform for each matrix, W^Q, W^K and W^V one by one; 1/d for tables."""
    torch.manual_seed(0)
    d, f = 64, 96
    shape = {"d_model": d, "n_heads": 4, "d_ff": f, "n_layers": 1, "positions": "learned"}
    model = Transformer(TransformerConfig(500, **shape))
    for name, p in model.named_parameters():
        if name.endswith("bias"):
            assert (p == 0).all(), name
        elif name.endswith("norm.weight"):
            assert (p == 1).all(), name
        elif name.endswith(("tokens.weight", "positions.table")):
            assert p.std().item() == pytest.approx(d**-0.5, rel=0.05), name
        else:
            limit = math.sqrt(6 / (d + f if "feed_forward" in name else 2 * d))
            for part in p.chunk(3) if "in_proj" in name else [p]:
                assert limit * 0.98 < part.abs().max() <= limit, name


def test_tying_shares_one_matrix(tmp_path):
    """F28: V = 10 and d = 4, before and after it was saved and loaded."""
    for tie, count in [("all", 40), ("output", 80), ("none", 120)]:
        model = Transformer(dataclasses.replace(TINY, tie=tie))
        model.save(tmp_path)
        for m in (model, Transformer.load(tmp_path)):
            uses = m.src_embedding.tokens, m.tgt_embedding.tokens, m.output
            assert 40 * len({id(use.weight) for use in uses}) == count
            assert count_parameters(m.config)["embedding"] == count


def test_tied_weights_get_the_gradients_of_all_their_uses():
    """F28: as the sum over three tables that start equal."""
    tied = Transformer(TINY)
    untied = Transformer(dataclasses.replace(TINY, tie="none"))
    untied.load_state_dict(tied.state_dict())
    src, tgt = source_and_target(TINY, 0, 3, 4, 5)
    for model in (tied, untied):
        model(src, tgt).square().sum().backward()
    tables = untied.src_embedding.tokens, untied.tgt_embedding.tokens, untied.output
    close(tied.output.weight.grad, sum(table.weight.grad for table in tables))


@given(configs())
def test_parameters_are_counted_right(config):
    """F23, F28: by kind, from the configuration alone."""
    real = dict.fromkeys(("embedding", "attention", "feed_forward", "norm"), 0)
    for name, p in Transformer(config).named_parameters():
        kind = next((k for k in ("attention", "feed_forward", "norm") if k in name), "embedding")
        real[kind] += p.numel()
    assert count_parameters(config) == {**real, "total": sum(real.values())}


@given(configs())
def test_matrices_are_counted_right(config):
    """W^Q, W^K and W^V, which lie in one tensor, count as three."""
    real = sum(
        3 if name.endswith("in_proj.weight") else 1
        for name, p in Transformer(config).named_parameters()
        if p.dim() == 2
    )
    counts = count_matrices(config)
    assert counts.pop("total") == sum(counts.values()) == real


# What it weighs


def test_parameters_of_the_paper():
    """Table 3: 65 and 213 million, with a vocabulary of 37000; added up here by hand."""
    base, big = TransformerConfig.base(37_000), TransformerConfig.big(37_000)
    assert count_parameters(base)["total"] == 63_082_496
    assert count_parameters(big)["total"] == 214_245_376
    assert (big.d_model, big.n_heads, big.d_ff, big.dropout) == (1024, 16, 4096, 0.3)
    assert dataclasses.astuple(base)[2:7] == (512, 8, 2048, 6, 0.1)
    assert TransformerConfig.tiny(100, n_layers=2).n_layers == 2


@given(configs(), st.integers(2, 8))
def test_operations_are_counted_right(config, length):
    """As PyTorch counts them while the model runs; training takes three times as many."""
    ids = random_ids(0, 1, length, vocab_size=8)
    model = Transformer(config)
    with FlopCounterMode(display=False) as counter, record_attention(model):
        logits = model(ids, ids)
        forward = counter.get_total_flops()
        logits.sum().backward()
    flops = flops_per_token(config, length)
    assert flops.pop("total") == sum(flops.values()) == forward / length
    assert counter.get_total_flops() == 3 * forward


class Attention(nn.Module):
    """Attention of any shape, from linear layers alone, to be counted."""

    def __init__(self, s: Shape):
        super().__init__()
        self.h, self.g = s.n_heads, s.n_heads if s.n_kv_heads is None else s.n_kv_heads
        width = s.d_model // s.n_heads
        k, v = width if s.d_k is None else s.d_k, width if s.d_v is None else s.d_v
        self.q = nn.Linear(s.d_model, self.h * k, bias=s.bias)
        self.k = nn.Linear(s.d_model, self.g * k, bias=s.bias)
        self.v = nn.Linear(s.d_model, self.g * v, bias=s.bias)
        self.o = nn.Linear(self.h * v, s.d_model, bias=s.bias)

    def forward(self, x, memory):
        q, k, v = self.q(x), self.k(memory), self.v(memory)
        q = q.unflatten(-1, (self.h, -1)).transpose(0, 1)  # (h, t, k)
        k, v = (
            y.unflatten(-1, (self.g, -1)).transpose(0, 1).repeat_interleave(self.h // self.g, dim=0)
            for y in (k, v)
        )
        return self.o(((q @ k.mT).softmax(dim=-1) @ v).transpose(0, 1).flatten(1))


class Layers(nn.Module):
    """All layers of a shape, with its tables and norms, written down without the package."""

    def __init__(self, s: Shape):
        super().__init__()
        d, f, bias = s.d_model, s.d_ff, s.bias
        attentions, networks = s.n_layers + 2 * s.n_cross_layers, s.n_layers + s.n_cross_layers
        norm = nn.LayerNorm if s.norm_shift else nn.RMSNorm
        self.tables = nn.ModuleList(nn.Embedding(rows, d) for rows in s.tables)
        self.attention = nn.ModuleList(Attention(s) for _ in range(attentions))
        self.feed_forward = nn.ModuleList(
            nn.ModuleList(
                [nn.Linear(d, f, bias=bias)]
                + ([nn.Linear(d, f, bias=bias)] if s.gated else [])
                + [nn.Linear(f, d, bias=bias)]
            )
            for _ in range(networks)
        )
        self.norms = nn.ModuleList(
            norm(d) for _ in range(attentions + networks + s.n_last_norms)
        )  # one for each sublayer

    def forward(self, ids):
        x = self.tables[0](ids)
        for attention in self.attention:
            x = attention(x, x)
        for first, *gate, last in self.feed_forward:
            y = first(x)
            for g in gate:
                y = y * g(x)
            x = last(y)
        return x @ self.tables[0].weight.mT


@st.composite
def measures(draw: st.DrawFn) -> dict:
    """Draw what describes the shape of a small model of any family."""
    groups, kv_heads = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    heads, v = groups * kv_heads, draw(st.integers(2, 20))
    return dict(
        vocab_size=v,
        d_model=heads * draw(st.integers(1, 4)),
        n_heads=heads,
        d_ff=draw(st.integers(1, 12)),
        n_layers=draw(st.integers(1, 3)),
        tables=draw(st.sampled_from([(v,), (v, v), (v, 7), (v, v, 5)])),
        n_cross_layers=draw(st.integers(0, 2)),
        n_kv_heads=draw(st.sampled_from([None, kv_heads])),
        d_k=draw(st.none() | st.integers(1, 5)),
        d_v=draw(st.none() | st.integers(1, 5)),
        gated=draw(st.booleans()),
        bias=draw(st.booleans()),
        norm_shift=draw(st.booleans()),
        n_last_norms=draw(st.integers(0, 2)),
    )


@given(measures(), st.integers(1, 6))
def test_models_of_any_family_are_counted_right(values, length):
    """By kind: parameters, matrices, and operations forward and backward."""
    shape = Shape(**values)
    with torch.device("meta"):
        model = Layers(shape)
    kinds = {"embedding": "tables", "norm": "norms", "attention": "attention"}
    kinds["feed_forward"] = "feed_forward"
    real = {
        kind: sum(p.numel() for p in getattr(model, part).parameters())
        for kind, part in kinds.items()
    }
    assert count_parameters(shape) == {**real, "total": sum(real.values())}
    real = {
        kind: sum(p.dim() == 2 for p in getattr(model, part).parameters())
        for kind, part in kinds.items()
        if kind != "norm"
    }
    assert count_matrices(shape) == {**real, "total": sum(real.values())}
    with FlopCounterMode(display=False) as counter:
        logits = model(torch.zeros(length, dtype=torch.long, device="meta"))
        forward = counter.get_total_flops()
        logits.sum().backward()
    flops = flops_per_token(shape, length)
    assert flops.pop("total") == sum(flops.values()) == forward / length
    assert counter.get_total_flops() == 3 * forward


def test_parameters_of_published_models():
    """To the last one where the files are public; GPT-3 as its Table D.1 rounds it."""
    totals = {name: count_parameters(shape)["total"] for name, shape in SHAPES.items()}
    assert totals.pop("GPT-2") == 124_439_808
    assert totals.pop("Llama 3 8B") == 8_030_261_248
    assert totals.pop("Llama 3 70B") == 70_553_706_496
    assert round(totals.pop("GPT-3") / 1e8) == 1746
    assert not totals
    found = {name: count_matrices(shape)["total"] for name, shape in SHAPES.items()}
    assert found == {"GPT-2": 74, "GPT-3": 578, "Llama 3 8B": 226, "Llama 3 70B": 562}


def test_variants_of_the_paper():
    """Table 3: rows (A) weigh the same; rows (B) lose 18 times 2 d h (64 - d_k), and biases."""
    base = Shape.of(TransformerConfig.base(37_000))
    for heads in (1, 4, 16, 32):
        assert count_parameters(dataclasses.replace(base, n_heads=heads)) == count_parameters(base)
    for d_k in (16, 32):
        less = 18 * 2 * (512 + 1) * 8 * (64 - d_k)
        total = count_parameters(dataclasses.replace(base, d_k=d_k))["total"]
        assert total == 63_082_496 - less
    assert Shape.of(base) is base


def test_matrices_are_listed_one_kind_a_line():
    """The gate counts with W1, the output matrix with the tables."""
    listed = matrices(dataclasses.replace(TINY, tie="none", gated=True))
    assert [(m.name, m.n_in, m.n_out, m.number) for m in listed] == [
        ("table", 10, 4, 1),
        ("table", 10, 4, 1),
        ("table", 10, 4, 1),
        ("W^Q", 4, 4, 6),
        ("W^K", 4, 4, 6),
        ("W^V", 4, 4, 6),
        ("W^O", 4, 4, 6),
        ("W1", 4, 6, 8),
        ("W2", 6, 4, 4),
    ]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_heads": 5}, "d_model=12 must be a multiple of n_heads=5, or d_k and d_v"),
        ({"n_heads": 5, "d_k": 3}, "d_model=12 must be a multiple of n_heads=5"),
        ({"n_heads": 6, "n_kv_heads": 4}, "n_heads=6 must be a multiple of n_kv_heads=4"),
        *(
            ({name: 0}, f"{name} must be at least 1, not 0")
            for name in ("d_model", "n_heads", "n_kv_heads", "d_k", "d_v", "d_ff", "vocab_size")
        ),
        ({"n_layers": -1}, "n_layers must be at least 0, not -1"),
    ],
)
def test_shapes_that_do_not_fit_are_refused(options, message):
    """The message names the value."""
    values = {"vocab_size": 9, "d_model": 12, "n_heads": 3, "d_ff": 5, "n_layers": 1}
    with pytest.raises(ValueError, match=message):
        Shape(**{**values, "tables": (9,), **options})
    Shape(**{**values, "tables": (9,), "n_heads": 5, "d_k": 3, "d_v": 2})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        *(
            ({name: value}, name)
            for name in ("vocab_size", "d_model", "n_heads")
            for value in (0, -4)
        ),
        *(({name: 0}, name) for name in ("d_ff", "n_layers", "max_len")),
        *(
            ({name: value}, name)
            for name in ("dropout", "attention_dropout")
            for value in (-0.1, 1.0, math.nan)
        ),
        ({"d_model": 6, "n_heads": 4}, "d_model=6 must be a multiple of n_heads=4"),
        ({"tie": "both"}, "tie must be .*all, output or none"),
        ({"tgt_vocab_size": 12}, "one vocabulary.*tie='output'"),
        ({"activation": "tanh"}, "activation must be"),
        ({"positions": "rotary"}, "positions must be"),
        ({"tgt_vocab_size": 0, "tie": "output"}, "tgt_vocab_size must be"),
        ({"tgt_vocab_size": 3, "tie": "output", "pad": 3}, "pad=3 must be below"),
        ({"pad": 10}, "pad=10 must be below"),
        ({"pad": -1}, "pad must be"),
        ({"pad": 2, "eos": 2}, "eos=2 must be neither pad=2 nor bos=1"),
        ({"bos": 2}, "eos=2 must be neither pad=0 nor bos=2"),
    ],
)
def test_values_out_of_range_are_refused(options, message):
    """The message names the value."""
    with pytest.raises(ValueError, match=message):
        Transformer(dataclasses.replace(TINY, **options))


@pytest.fixture
def unchecked():
    """Switch off the check of annotations, for what is refused by the package itself."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *((name, value) for name in ("vocab_size", "d_ff") for value in ("10", 2.0, True, None)),
        ("tgt_vocab_size", 10.0),
        ("dropout", "0.1"),
        ("dropout", True),
        ("bias", 1),
        ("tie", None),
        ("pad", 0.0),
    ],
)
def test_values_of_another_type_are_refused(name, value, unchecked):
    """As a file written by hand may have them."""
    with pytest.raises(ValueError, match=f"{name} must be .*, not {value!r}"):
        dataclasses.replace(TINY, **{name: value})


# How it is saved


@settings(max_examples=10)
@given(config=configs(), seed=seeds)
def test_a_loaded_model_is_the_saved_one(config, seed, tmp_path_factory):
    """To the last bit, in evaluation mode."""
    folder = tmp_path_factory.mktemp("model") / "deeper"
    model = random_model(config, seed)
    model.save(folder)
    assert sorted(p.name for p in folder.iterdir()) == ["config.json", "model.safetensors"]
    loaded = Transformer.load(folder)
    assert loaded.config == config and not loaded.training
    src, tgt = source_and_target(config, seed, 2, 5, 4)
    assert loaded(src, tgt).equal(model(src, tgt))
    random_model(config, seed + 1).save(folder)  # over the old one
    assert not Transformer.load(folder)(src, tgt).equal(model(src, tgt))


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_missing_file_is_named(name, tmp_path):
    """And so is the folder."""
    Transformer(TINY).save(tmp_path)
    (tmp_path / name).unlink()
    with pytest.raises(FileNotFoundError, match=name):
        Transformer.load(tmp_path)
    with pytest.raises(FileNotFoundError, match="nowhere"):
        Transformer.load(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("config.json", b""),
        ("config.json", b"[1, 2]"),
        ("config.json", b'{"vocab_size": 10, "colour": "red"}'),
        ("config.json", b'{"vocab_size": 0}'),
        ("config.json", b'{"d_model": 8}'),
        ("config.json", b"[" * 100_000),
        ("config.json", b"\xff\xfe\x00"),
        ("model.safetensors", b""),
        ("model.safetensors", b"not a model"),
    ],
)
def test_a_broken_file_is_named(name, content, tmp_path):
    """Whatever is wrong with it."""
    Transformer(TINY).save(tmp_path)
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=name):
        Transformer.load(tmp_path)


def test_a_truncated_file_is_named(tmp_path):
    """As a full disk leaves it."""
    Transformer(TINY).save(tmp_path)
    path = tmp_path / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(ValueError, match="model.safetensors"):
        Transformer.load(tmp_path)


def change_config(folder, **changes):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_files_that_do_not_fit_each_other_are_refused(tmp_path):
    """The message names what does not fit."""
    for changes, message in (
        ({"d_model": 8}, r"d_model is 8, but src_embedding.tokens.weight is \(10, 4\)"),
        ({"n_layers": 3}, "n_layers is 3, but the encoder has 2"),
        ({"n_layers": 1}, "n_layers is 1, but the encoder has 2"),
        ({"tie": "none"}, "tgt_vocab_size is 10, but tgt_embedding.tokens.weight is missing"),
        ({"positions": "learned"}, "max_len is 512, but src_embedding.positions.table is missing"),
        ({"gated": True}, "feed_forward.gate.bias is missing"),
        ({"bias": False}, "in_proj.bias has no place"),
    ):
        Transformer(TINY).save(tmp_path)
        change_config(tmp_path, **changes)
        with pytest.raises(ValueError, match=f"do not fit its configuration: .*{message}"):
            Transformer.load(tmp_path)


def test_files_that_lack_a_weight_are_refused(tmp_path):
    """The message names it."""
    for missing in ("src_embedding.tokens.weight", "decoder.layers.1."):
        Transformer(TINY).save(tmp_path)
        path = tmp_path / "model.safetensors"
        save_file({n: w for n, w in load_file(path).items() if not n.startswith(missing)}, path)
        with pytest.raises(ValueError, match=f"do not fit its configuration: .*{missing}"):
            Transformer.load(tmp_path)


def test_an_absurd_size_is_compared_before_anything_is_built(tmp_path, monkeypatch):
    """So that no slip in a file can ask for more memory than there is."""
    sizes = ("vocab_size", "tgt_vocab_size", "d_model", "d_ff", "n_layers", "max_len")
    Transformer(dataclasses.replace(TINY, tie="none", positions="learned")).save(tmp_path)
    written = (tmp_path / "config.json").read_text()

    def build(*args):
        pytest.fail("built before it was compared")

    monkeypatch.setattr(Transformer, "__init__", build)
    for name in sizes:
        for size in (10**9, 10**30):
            (tmp_path / "config.json").write_text(written)
            change_config(tmp_path, **{name: size})
            with pytest.raises(ValueError, match=f"configuration: {name} is {size}, but"):
                Transformer.load(tmp_path)


def test_sinusoids_need_no_longest_length(tmp_path):
    """A number that is not used asks for no memory."""
    tables = [
        Transformer(dataclasses.replace(TINY, max_len=n)).src_embedding.positions.table
        for n in (1, 5000)
    ]
    assert tables[0].equal(tables[1])
    Transformer(TINY).save(tmp_path)
    change_config(tmp_path, max_len=10**12)
    assert Transformer.load(tmp_path).config.max_len == 10**12


def test_a_compiled_model_is_saved_under_plain_names(tmp_path):
    """F51: compiled whole or in part; and a file with the prefix is understood."""
    for tie in ("all", "output", "none"):
        model = random_model(dataclasses.replace(TINY, tie=tie), 0)
        src, tgt = source_and_target(TINY, 0, 2, 5, 4)
        expected, weights = model(src, tgt), {n: p.detach() for n, p in model.named_parameters()}
        try:
            torch.compile(model).save(tmp_path / "whole")
            model.encoder.layers[0] = torch.compile(model.encoder.layers[0])
            model.decoder = torch.compile(model.decoder)
            model.save(tmp_path / "part")
        except ValueError as error:  # under other names it is refused
            pytest.fail(str(error))
        for name in ("whole", "part"):
            path = tmp_path / name / "model.safetensors"
            assert load_file(path).keys() == weights.keys()
            assert Transformer.load(path.parent)(src, tgt).equal(expected)
        save_file({f"_orig_mod.{n}": w for n, w in weights.items()}, path)
        loaded = Transformer.load(path.parent)
        assert loaded(src, tgt).equal(expected)
        assert loaded.state_dict().keys() == Transformer(model.config).state_dict().keys()


@pytest.mark.parametrize("preset", ["tiny", "base", "big"])
def test_presets_take_changes(preset):
    make = getattr(TransformerConfig, preset)
    changed = make(50, n_layers=5, d_model=96, n_heads=3, dropout=0.4)
    assert changed.n_layers == 5 and changed.d_model == 96 and changed.n_heads == 3
    assert changed.dropout == 0.4 and changed.d_ff == make(50).d_ff


def test_a_model_is_saved_into_a_folder_that_is_made(tmp_path):
    folder = tmp_path / "runs" / "first"
    Transformer(TransformerConfig.tiny(20, n_layers=1)).save(folder)
    assert Transformer.load(folder).config.vocab_size == 20


@pytest.mark.parametrize(
    "name, parameters",
    [
        ("GPT-2", 124_439_808),
        ("GPT-3", 174_604_259_328),  # the paper's Table D.1 says 174,600 million
        ("Llama 3 8B", 8_030_261_248),
        ("Llama 3 70B", 70_553_706_496),
    ],
)
def test_published_shapes_have_the_published_parameters(name, parameters):
    assert count_parameters(SHAPES[name])["total"] == parameters
    with pytest.raises(dataclasses.FrozenInstanceError):
        SHAPES[name].d_model = 1


@given(configs(), seeds)
def test_padding_among_new_tokens_is_not_hidden(config, seed):
    """With a cache, what is fed is what is seen; a caller who feeds PAD means it."""
    model = random_model(config, seed, torch.float64)
    src, tgt = source_and_target(config, seed, 2, 3, 4)
    tgt[:, 1:] = random_ids(seed, 2, 3, vocab_size=config.target_size)
    tgt[0, 2] = PAD
    memory, memory_mask = model.encode(src)
    cache = model.new_cache()
    steps = [model.decode(tgt[:, i : i + 1], memory, memory_mask, cache) for i in range(4)]
    seen = model.decoder(model.tgt_embedding(tgt), memory, None, memory_mask)
    close(torch.cat(steps, dim=1), model.output(seen))


def test_a_width_that_the_heads_do_not_divide_is_refused_by_the_configuration():
    """Before anything is built."""
    with pytest.raises(ValueError, match="d_model=10 must be a multiple of n_heads=3"):
        TransformerConfig(20, d_model=10, n_heads=3)


@pytest.mark.parametrize("tie", ["none", "output", "all"])
@pytest.mark.parametrize("positions", ["sinusoidal", "learned"])
def test_tables_begin_with_variance_one_over_the_width(tie, positions):
    """The output matrix too, tied or not; times the root of the width, entries have size 1."""
    config = TransformerConfig(
        600, d_model=64, n_heads=2, d_ff=8, n_layers=1, tie=tie, positions=positions, max_len=600
    )
    model = Transformer(config)
    tables = {n: p for n, p in model.named_parameters() if p.shape == (600, 64)}
    assert len(tables) == {"all": 1, "output": 2, "none": 3}[tie] + 2 * (positions == "learned")
    for name, table in tables.items():
        assert 0.95 < table.std().item() * 8 < 1.05, name
