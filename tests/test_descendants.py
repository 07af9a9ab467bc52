"""Descendants: equal to GPT-2, BERT and Llama of ``transformers``, in both directions."""

import dataclasses
import json
import os
import pickle
import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from jaxtyping import TypeCheckError
from safetensors.torch import load_file, save_file
from support import close, generator, padded_ids, random_tensor, seeds, sizes
from torch import nn

from transformer_lit.attention import padding_mask
from transformer_lit.decoding import beam_search, greedy_search, sample
from transformer_lit.descendants import (
    FAMILIES,
    Continuation,
    LanguageModel,
    LanguageModelConfig,
    SelfAttention,
    cache_bytes,
    fit,
    hidden_token_loss,
    hide_tokens,
    load_language_model,
    next_token_loss,
    published_config,
    rms_norm,
    rotary_frequencies,
    rotate,
    save_language_model,
)
from transformer_lit.encoder import Encoder
from transformer_lit.layers import ACTIVATIONS
from transformer_lit.model import Shape, count_parameters
from transformer_lit.multi_head import KeyValueCache, MultiHeadAttention
from transformer_lit.translation import load_model

os.environ["TRANSFORMERS_VERBOSITY"] = "error"  # it says that our ids are not its usual ones
os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    transformers = pytest.importorskip("transformers")

CLASSES = {
    "gpt2": (transformers.GPT2Config, transformers.GPT2LMHeadModel),
    "bert": (transformers.BertConfig, transformers.BertForMaskedLM),
    "llama": (transformers.LlamaConfig, transformers.LlamaForCausalLM),
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
no_tokens = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"))
acts = st.sampled_from(["relu", "gelu", "gelu_new", "gelu_fast", "gelu_pytorch_tanh", "silu"])


@st.composite
def gpt2_values(draw):
    n_head = draw(st.integers(1, 5))
    return {
        "vocab_size": draw(st.integers(5, 40)),
        "n_positions": draw(st.integers(9, 20)),
        "n_embd": n_head * draw(st.integers(1, 5)),
        "n_layer": draw(st.integers(1, 3)),
        "n_head": n_head,
        "n_inner": draw(st.none() | st.integers(1, 20)),
        "activation_function": draw(acts),
        "layer_norm_epsilon": draw(st.sampled_from([1e-5, 1e-3])),
        "scale_attn_weights": draw(st.booleans()),
        "scale_attn_by_inverse_layer_idx": draw(st.booleans()),
        "reorder_and_upcast_attn": draw(st.booleans()),
        "tie_word_embeddings": draw(st.booleans()),
        **no_tokens,
    }


@st.composite
def bert_values(draw):
    heads = draw(st.integers(1, 5))
    return {
        "vocab_size": draw(st.integers(5, 40)),
        "max_position_embeddings": draw(st.integers(9, 20)),
        "hidden_size": heads * draw(st.integers(1, 5)),
        "num_hidden_layers": draw(st.integers(1, 3)),
        "num_attention_heads": heads,
        "intermediate_size": draw(st.integers(1, 20)),
        "type_vocab_size": draw(st.integers(1, 3)),
        "hidden_act": draw(acts),
        "layer_norm_eps": draw(st.sampled_from([1e-12, 1e-3])),
        "tie_word_embeddings": draw(st.booleans()),
        "is_decoder": draw(st.booleans()),
        **no_tokens,
    }


@st.composite
def llama_values(draw):
    kv, each, width = draw(st.integers(1, 3)), draw(st.integers(1, 3)), draw(st.integers(1, 3))
    rope = draw(st.sampled_from([None, {"rope_type": "linear", "factor": 2.5}, LLAMA3]))
    return {
        "vocab_size": draw(st.integers(5, 40)),
        "hidden_size": kv * each * 2 * width,
        "num_hidden_layers": draw(st.integers(1, 3)),
        "num_attention_heads": kv * each,
        "num_key_value_heads": kv,
        "head_dim": draw(st.none() | st.sampled_from([2, 4, 10])),
        "intermediate_size": draw(st.integers(1, 20)),
        "hidden_act": draw(acts),
        "attention_bias": draw(st.booleans()),
        "mlp_bias": draw(st.booleans()),
        "rms_norm_eps": draw(st.sampled_from([1e-6, 1e-3])),
        "tie_word_embeddings": draw(st.booleans()),
        "rope_theta": draw(st.sampled_from([10_000.0, 500.0])),
        "rope_scaling": rope,
        **no_tokens,
    }


published = st.one_of(
    st.tuples(st.just("gpt2"), gpt2_values()),
    st.tuples(st.just("bert"), bert_values()),
    st.tuples(st.just("llama"), llama_values()),
)


def randomise(model: nn.Module, seed: int) -> nn.Module:
    """Every number is drawn, so that none can be left out or put elsewhere unseen."""
    g = generator(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=g)
            wide = parameter.size(-1) if parameter.dim() > 1 else 16
            parameter.copy_(noise / wide**0.5 + (1 if parameter.dim() == 1 else 0) * 0.5)
    return model.eval()


def theirs_of(kind: str, values: dict, seed: int = 0) -> nn.Module:
    """Return a model of ``transformers`` with random weights."""
    config, model = CLASSES[kind]
    return randomise(model(config(**values)), seed)


@settings(max_examples=30)
@given(published, seeds, sizes, sizes)
def test_equals_transformers_in_both_directions(tmp_path_factory, case, seed, b, t):
    """Saved there and loaded here, and saved here and loaded there, with equal logits."""
    kind, values = case
    folder = tmp_path_factory.mktemp(kind)
    theirs = theirs_of(kind, values, seed)
    theirs.save_pretrained(folder)
    ours = load_language_model(folder)
    ids = torch.randint(values["vocab_size"], (b, min(t, 9)), generator=generator(seed))
    with torch.no_grad():
        expected = theirs(ids).logits
    close(ours(ids), expected)

    if kind == "bert":
        types = torch.randint(values["type_vocab_size"], ids.shape, generator=generator(seed))
        real = padded_ids(seed, *ids.shape, vocab_size=9) != 0
        with torch.no_grad():
            other = theirs(ids, attention_mask=real.long(), token_type_ids=types).logits
        close(ours(ids, real[:, None, None], types=types)[real], other[real])

    save_language_model(ours, folder / "back", kind)
    again, info = CLASSES[kind][1].from_pretrained(folder / "back", output_loading_info=True)
    assert not any(info.values()), info
    with torch.no_grad():
        close(again.eval()(ids).logits, expected)
    assert load_language_model(folder / "back").config == ours.config
    ours.save(folder / "own")
    assert LanguageModel.load(folder / "own")(ids).equal(ours(ids))


# What does not fit is refused by name


def files_of(kind: str, folder, **changes):
    """Save a model of ``transformers``; return its weights and settings, for a fault."""
    values = {
        "gpt2": {"vocab_size": 20, "n_embd": 12, "n_head": 3, "n_layer": 2, "n_positions": 9},
        "bert": {
            "vocab_size": 20,
            "hidden_size": 12,
            "num_attention_heads": 3,
            "num_hidden_layers": 2,
            "intermediate_size": 7,
            "max_position_embeddings": 9,
        },
        "llama": {
            "vocab_size": 20,
            "hidden_size": 12,
            "num_attention_heads": 3,
            "num_hidden_layers": 2,
            "intermediate_size": 7,
        },
    }[kind]
    theirs_of(kind, values | no_tokens | changes).save_pretrained(folder)
    settings_ = json.loads((folder / "config.json").read_text())
    return load_file(folder / "model.safetensors"), settings_


@pytest.mark.parametrize("kind", FAMILIES)
def test_faulty_weights_are_named(kind, tmp_path):
    """Each tensor in turn: missing, of another shape, with a NaN; and one too many."""
    weights, _ = files_of(kind, tmp_path)
    path = tmp_path / "model.safetensors"
    for name, weight in weights.items():
        if ".0." in name:  # its layer is as the next one
            continue
        for faulty in (
            {n: w for n, w in weights.items() if n != name},
            weights | {name: weight[..., :-1].contiguous()},
            weights | {name: torch.where(torch.arange(weight.size(-1)) == 0, torch.nan, weight)},
            weights | {f"{name}.more": weight.clone()},
        ):
            save_file(faulty, path)
            with pytest.raises(ValueError, match=name.replace(".", r"\.")):
                load_language_model(tmp_path)
    save_file(weights, path)
    load_language_model(tmp_path)


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        ("gpt2", {"add_cross_attention": True}),
        ("gpt2", {"activation_function": "quick_gelu"}),
        ("gpt2", {"n_head": 5}),
        ("gpt2", {"n_head": "3"}),
        ("gpt2", {"n_layer": 10**9}),
        ("gpt2", {"n_embd": 3 * 10**9}),
        ("gpt2", {"n_inner": 10**9}),
        ("gpt2", {"vocab_size": 10**12}),
        ("gpt2", {"n_positions": 10**12}),
        ("gpt2", {"layer_norm_epsilon": "1e-5"}),
        ("gpt2", {"layer_norm_epsilon": 0}),
        ("gpt2", {"resid_pdrop": 1.0}),
        ("gpt2", {"tie_word_embeddings": None}),
        ("gpt2", {"scale_attn_weights": "yes"}),
        ("gpt2", {"hidden_size": 24}),
        ("gpt2", {"quantization_config": {"bits": 4}}),
        ("gpt2", {"model_type": "gpt_neo"}),
        ("gpt2", {"model_type": None}),
        ("bert", {"position_embedding_type": "relative_key"}),
        ("bert", {"hidden_act": "tanh"}),
        ("bert", {"add_cross_attention": True}),
        ("bert", {"type_vocab_size": -1}),
        ("bert", {"type_vocab_size": 10**19}),
        ("bert", {"intermediate_size": None}),
        ("bert", {"num_hidden_layers": 0}),
        ("bert", {"num_hidden_layers": True}),
        ("llama", {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}),
        ("llama", {"rope_scaling": {"rope_type": "linear"}}),
        ("llama", {"rope_scaling": {"rope_type": "llama3", "factor": 2.0}}),
        ("llama", {"rope_scaling": {"rope_type": "linear", "factor": -1.0}}),
        ("llama", {"rope_scaling": {"rope_type": "linear", "factor": 10**400}}),
        ("llama", {"rope_scaling": "linear"}),
        ("llama", {"partial_rotary_factor": 0.5}),
        ("llama", {"num_key_value_heads": 2}),
        ("llama", {"head_dim": 3}),
        ("llama", {"head_dim": 2 * 10**9}),
        ("llama", {"hidden_act": ["silu"]}),
    ],
)
def test_what_ours_is_not_is_refused_by_name(kind, change, tmp_path):
    """Before anything is built, whatever the sizes that are promised."""
    _, values = files_of(kind, tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(values | change))
    (name,) = change
    detail = change[name].get("rope_type") if isinstance(change[name], dict) else None
    with pytest.raises(ValueError, match=name) as caught:
        load_language_model(tmp_path)
    assert "config.json" in str(caught.value)
    assert detail in (None, "linear", "llama3") or detail in str(caught.value)


def test_old_files_are_read(tmp_path):
    """Names without a prefix, gamma and beta, copies, buffers, and heads for other tasks."""
    weights, _ = files_of("gpt2", tmp_path)
    expected = load_language_model(tmp_path)
    bare = {n.removeprefix("transformer."): w for n, w in weights.items()}
    bare["lm_head.weight"] = bare["wte.weight"].clone()
    for i in range(2):
        bare[f"h.{i}.attn.bias"] = torch.ones(9, 9, dtype=torch.uint8).tril()[None, None]
        bare[f"h.{i}.attn.masked_bias"] = torch.tensor(-1e4)
    save_file(bare, tmp_path / "model.safetensors")
    ids = torch.randint(20, (2, 9), generator=generator(0))
    close(load_language_model(tmp_path)(ids), expected(ids))
    square = torch.ones(1, 1, 9, 9)
    for name, wrong in (
        ("lm_head.weight", bare["lm_head.weight"] + 1),
        ("h.1.attn.bias", square),
        ("h.1.attn.bias", square[0, 0, 0, 0]),
        ("h.1.attn.bias", square[..., :5].tril()),
        ("h.1.attn.bias", square.tril().repeat(2, 1, 1, 1)),
    ):
        save_file(bare | {name: wrong}, tmp_path / "model.safetensors")
        with pytest.raises(ValueError, match=name):
            load_language_model(tmp_path)

    folder = tmp_path / "bert"
    weights, _ = files_of("bert", folder)
    expected = load_language_model(folder)
    names = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
    old = {}
    for name, weight in weights.items():
        for new_name, old_name in names.items():
            name = name.replace(new_name, old_name)
        old[name] = weight
    old["bert.pooler.dense.weight"] = old["cls.seq_relationship.weight"] = torch.ones(2, 2)
    old["bert.pooler.dense.bias"] = old["cls.seq_relationship.bias"] = torch.ones(2)
    old["bert.embeddings.position_ids"] = torch.arange(9)[None]
    old["cls.predictions.decoder.bias"] = old["cls.predictions.bias"].clone()
    old = {n: w.clone() for n, w in old.items()}
    save_file(old, folder / "model.safetensors")
    close(load_language_model(folder)(ids), expected(ids))


def test_no_program_of_a_file_is_run(tmp_path):
    """A pickle that would touch a file is refused, and the file is not there."""

    class Program:
        def __reduce__(self):
            return (open, (str(tmp_path / "touched"), "w"))

    files_of("gpt2", tmp_path)
    (tmp_path / "model.safetensors").unlink()
    torch.save({"transformer.wte.weight": Program()}, tmp_path / "pytorch_model.bin")
    with pytest.raises(ValueError, match="pytorch_model.bin"):
        load_language_model(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(pickle.dumps(Program()))
    with pytest.raises(ValueError, match="pytorch_model.bin"):
        load_language_model(tmp_path)
    assert not (tmp_path / "touched").exists()


def test_a_file_that_promises_more_than_it_holds_is_refused(tmp_path):
    """A pickle can say that one number stands everywhere in a table of any size."""
    weights, values = files_of("gpt2", tmp_path)
    (tmp_path / "model.safetensors").unlink()
    table = torch.ones(1, 1).expand(10**11, 12)
    torch.save(weights | {"transformer.wte.weight": table}, tmp_path / "pytorch_model.bin")
    (tmp_path / "config.json").write_text(json.dumps(values | {"vocab_size": 10**11}))
    with pytest.raises(ValueError, match=r"transformer\.wte\.weight"):
        load_language_model(tmp_path)


def test_what_changes_nothing_is_passed_over(tmp_path):
    weights, values = files_of("llama", tmp_path)
    ids = torch.randint(20, (2, 9), generator=generator(0))
    expected = load_language_model(tmp_path)(ids)
    (tmp_path / "config.json").write_text(json.dumps(values | {"partial_rotary_factor": 1.0}))
    close(load_language_model(tmp_path)(ids), expected)


@pytest.mark.parametrize(
    ("kind", "config", "named"),
    [
        ("bert", LanguageModelConfig.bert(20, n_types=0), "n_types"),
        ("llama", LanguageModelConfig.llama(20, n_heads=5, d_k=4), "multiple of n_heads"),
        ("gpt2", LanguageModelConfig.llama(20), "positions"),
        ("gpt2", LanguageModelConfig.gpt2(20, n_kv_heads=4), "n_kv_heads"),
        ("gpt2", LanguageModelConfig.gpt2(20, d_k=4), "d_k"),
        ("gpt2", LanguageModelConfig.gpt2(20, attention_bias=False), "attention_bias"),
        ("bert", LanguageModelConfig.gpt2(20), "norm_first"),
        ("bert", LanguageModelConfig.bert(20, dropout=0.2), "dropout"),
        ("llama", LanguageModelConfig.llama(20, causal=False), "causal"),
        ("t5", LanguageModelConfig.gpt2(20), "kind must be one of"),
    ],
)
def test_what_they_are_not_is_refused_by_name(kind, config, named, tmp_path):
    """Nothing is written."""
    heads = min(config.n_heads, 12)
    small = dataclasses.replace(config, n_layers=1, d_model=24, d_ff=8, n_heads=heads)
    with pytest.raises(ValueError, match=named):
        save_language_model(LanguageModel(small), tmp_path, kind)
    assert not list(tmp_path.iterdir())


# The model by itself


@st.composite
def own_configs(draw, **fixed):
    kv = draw(st.integers(1, 2))
    heads = kv * draw(st.integers(1, 2))
    options = {
        "vocab_size": 11,
        "n_heads": heads,
        "d_model": 4 * heads,
        "n_kv_heads": kv,
        "d_k": draw(st.none() | st.sampled_from([2, 6])),
        "d_ff": draw(st.integers(1, 8)),
        "n_layers": draw(st.integers(1, 3)),
        "causal": draw(st.booleans()),
        "activation": draw(st.sampled_from(sorted(ACTIVATIONS))),
        "gated": draw(st.booleans()),
        "norm": draw(st.sampled_from(["layer", "rms"])),
        "norm_first": draw(st.booleans()),
        "attention_bias": draw(st.booleans()),
        "ff_bias": draw(st.booleans()),
        "positions": draw(st.sampled_from(["learned", "rotary"])),
        "max_len": 12,
        "n_types": draw(st.integers(0, 2)),
        "embedding_norm": draw(st.booleans()),
        "transform": draw(st.booleans()),
        "output_bias": draw(st.booleans()),
        "tie": draw(st.booleans()),
    }
    return LanguageModelConfig(**(options | fixed))


@given(own_configs(), seeds)
def test_counts_saves_and_loads(tmp_path_factory, config, seed):
    """The formulas of 08 count it, and its own files give it back."""
    model = randomise(LanguageModel(config), seed)
    built = sum(p.numel() for p in model.parameters())
    d = config.d_model
    if config.transform:
        built -= d * d + d + d * (1 + (config.norm == "layer"))
    if config.attention_bias == config.ff_bias:
        assert count_parameters(config.shape())["total"] == built
    else:
        with pytest.raises(ValueError, match="attention_bias"):
            config.shape()
    folder = tmp_path_factory.mktemp("own")
    model.save(folder)
    again = LanguageModel.load(folder)
    ids = torch.randint(11, (2, 5), generator=generator(seed))
    assert again.config == config and again(ids).equal(model(ids))
    wrong = dataclasses.replace(config, d_ff=config.d_ff + 1)
    (folder / "config.json").write_text(wrong.to_json())
    with pytest.raises(ValueError, match="feed_forward"):
        LanguageModel.load(folder)
    (folder / "config.json").write_text(dataclasses.replace(config, n_layers=10**9).to_json())
    with pytest.raises(ValueError, match="n_layers is 1000000000"):
        LanguageModel.load(folder)
    for name in ("vocab_size", "d_ff", "d_k", "n_types", "max_len"):
        if name == "max_len" and config.positions == "rotary":
            continue  # it limits nothing there
        (folder / "config.json").write_text(
            dataclasses.replace(config, **{name: 2 * 10**19}).to_json()
        )
        with pytest.raises(ValueError, match=f"{name} is 2"):
            LanguageModel.load(folder)


@settings(max_examples=5)
@given(own_configs(positions="rotary"), seeds)
def test_a_model_built_without_numbers_can_be_filled(config, seed):
    """Its angles are no parameters, so they must be there from the beginning."""
    model = randomise(LanguageModel(config), seed)
    with torch.device("meta"):
        empty = LanguageModel(config).eval()
    filled = empty.to_empty(device="cpu")
    filled.load_state_dict(model.state_dict())
    ids = torch.randint(11, (2, 5), generator=generator(seed))
    assert filled(ids).equal(model(ids))


@given(own_configs(causal=True), seeds, st.integers(1, 8))
def test_step_by_step_equals_at_once(config, seed, cut):
    """With the cache, in pieces of any length; and nothing sees what comes after it."""
    model = randomise(LanguageModel(config), seed)
    ids = torch.randint(11, (2, 9), generator=generator(seed))
    logits, cache = model(ids), model.new_cache()
    with torch.no_grad():
        parts = [model(piece, cache=cache) for piece in ids.split(cut, dim=1)]
    close(torch.cat(parts, dim=1), logits)
    held = sum(c.self_attention.key.nbytes + c.self_attention.value.nbytes for c in cache.layers)
    assert held == 2 * cache_bytes_of(config, 9, number=4)
    other = ids.clone()
    other[:, cut:] = (other[:, cut:] + 1) % 11
    close(model(other)[:, :cut], logits[:, :cut])


def cache_bytes_of(config, length, number):
    same = dataclasses.replace(config, attention_bias=True, ff_bias=True)
    return cache_bytes(same.shape(), length, number)


@given(own_configs(causal=False), seeds)
def test_padding_has_no_influence_on_a_reader(config, seed):
    """And it has no cache."""
    model = randomise(LanguageModel(config), seed)
    ids = padded_ids(seed, 3, 6, vocab_size=11)
    logits = model(ids, padding_mask(ids))
    for row, own in zip(ids, logits, strict=True):
        n = int((row != 0).sum())
        close(model(row[None, :n]), own[None, :n])
    with pytest.raises(ValueError, match="looks ahead"):
        model.new_cache()


def test_inputs_that_do_not_fit_are_named():
    model = LanguageModel(LanguageModelConfig.gpt2(11, d_model=8, n_heads=2, n_layers=1, max_len=4))
    with pytest.raises(IndexError, match="token id 11"):
        model(torch.tensor([[1, 11]]))
    with pytest.raises(ValueError, match="max_len=4"):
        model(torch.ones(1, 5, dtype=torch.long))
    with pytest.raises(ValueError, match="n_types is 0"):
        model(torch.ones(1, 2, dtype=torch.long), types=torch.zeros(1, 2, dtype=torch.long))
    with pytest.raises(TypeError, match="boolean|bool"):
        model(torch.ones(1, 2, dtype=torch.long), torch.ones(1, 2))
    with pytest.raises(ValueError, match="3 caches for 2 layers"):
        Encoder(2, 8, 2, 8)(torch.ones(1, 2, 8), caches=[KeyValueCache() for _ in range(3)])


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"n_layers": 0}, "n_layers must be a whole number of at least 1"),
        ({"d_model": 10}, "d_model=10 must be a multiple of n_heads=4"),
        ({"n_kv_heads": 3}, "n_kv_heads=3"),
        ({"n_kv_heads": 0}, "n_kv_heads must be"),
        ({"norm": "batch"}, "norm must be one of layer or rms"),
        ({"positions": "rotary", "d_k": 3}, "rotary positions turn pairs"),
        ({"positions": "rotary", "rotary_scaling": {"rope_type": "yarn"}}, "yarn"),
        ({"rotary_base": 0.0}, "rotary_base"),
        ({"eps": float("nan")}, "eps"),
        ({"causal": 1}, "causal must be true or false"),
        ({"dropout": "0"}, "dropout must be a number"),
    ],
)
def test_configurations_that_cannot_be_are_named(change, named):
    with pytest.raises((ValueError, TypeCheckError), match=named.split()[0]):
        LanguageModelConfig(**({"vocab_size": 5, "d_model": 8, "n_heads": 4} | change))


# Its parts


@given(seeds, sizes, sizes)
def test_rms_norm_equals_pytorch(seed, b, d):
    x, weight = 3 * random_tensor(seed, b, d), random_tensor(seed + 1, d)
    norm = nn.RMSNorm(d, eps=1e-5)
    norm.weight.data = weight
    close(rms_norm(x, weight), norm(x))
    assert rms_norm(x.half()).dtype == torch.float16


@given(seeds, st.sampled_from([2, 4, 10]), st.integers(0, 10_000), st.integers(0, 10_000))
def test_rotary_scores_know_the_distance_alone(seed, d_k, start, other):
    """Any two words moved by as much have the same score, and turning changes no length."""
    q, k = random_tensor(seed, 2, 1, 2, 5, d_k, dtype=torch.float64)
    turns = rotary_frequencies(d_k)
    scores = [rotate(q, turns, p) @ rotate(k, turns, p).mT for p in (start, other)]
    torch.testing.assert_close(*scores, atol=1e-9, rtol=1e-9)
    close(rotate(q, turns, start).norm(dim=-1), q.norm(dim=-1))
    pairs = torch.view_as_complex(torch.stack(q.chunk(2, dim=-1), dim=-1).contiguous())
    angle = (start + torch.arange(5.0, dtype=torch.float64))[:, None] * turns
    turned = torch.view_as_real(pairs * torch.polar(torch.ones_like(angle), angle))
    close(rotate(q, turns, start), torch.cat(turned.unbind(-1), dim=-1))


@given(seeds, st.integers(1, 3), st.integers(1, 3), sizes)
def test_shared_heads_are_repeated_heads(seed, kv, each, t):
    """Grouped attention is multi-head attention in which heads of a group have equal keys."""
    h, k = kv * each, 4
    grouped = randomise(SelfAttention(h * k, h, n_kv_heads=kv, d_k=k), seed)
    full = MultiHeadAttention(h * k, h)
    for name, parameter in grouped.in_proj.named_parameters():
        query, *others = parameter.split(grouped.widths)
        repeated = [
            y.unflatten(0, (kv, k)).repeat_interleave(each, dim=0).flatten(0, 1) for y in others
        ]
        full.in_proj.get_parameter(name).data = torch.cat([query, *repeated])
    full.out_proj = grouped.out_proj
    x = random_tensor(seed, 2, t, h * k)
    close(grouped(x, causal=True), full(x, causal=True))


# Writing, hiding, training


@settings(max_examples=8)
@given(own_configs(causal=True, n_types=0, max_len=40), seeds)
def test_searches_continue_a_text(config, seed):
    """Greedy search is the plain loop; a beam is at least as likely; samples hang on the seed."""
    model = randomise(LanguageModel(config), seed)
    start = torch.randint(11, (2, 3), generator=generator(seed))
    ids = start
    for _ in range(6):
        ids = torch.cat([ids, model(ids)[:, -1:].argmax(dim=-1)], dim=1)
    wide = beam_search(Continuation(model), start, 44, max_len=2)
    assert all(token < 11 for row in wide for found in row for token in found.ids)
    found = greedy_search(Continuation(model), start, max_len=6)
    assert [h.ids for h in found] == ids[:, 3:].tolist()
    (best,), _ = beam_search(Continuation(model), start, 11, alpha=0.0, max_len=2)
    two = greedy_search(Continuation(model), start, max_len=2)[0]
    assert best.score >= two.score - 1e-4
    once, more = (sample(Continuation(model, 4), start, n, max_len=5, seed=1) for n in (1, 3))
    assert [h[0].ids for h in once] == [h[0].ids for h in more]
    assert all(i != 4 for hypotheses in more for h in hypotheses for i in h.ids)


def test_a_continuation_ends_where_it_is_told():
    """EOS ends it; without one, each token can be said, the first and the last of the table too."""
    model = LanguageModel(LanguageModelConfig.gpt2(5, d_model=4, n_heads=1, n_layers=1)).eval()
    start = torch.tensor([[2]])
    with torch.no_grad():
        for token in range(5):
            model.output.weight.zero_()
            model.stack.norm.bias.fill_(1.0)
            model.output.weight[token] = 1.0
            (going,) = greedy_search(Continuation(model), start, max_len=4)
            assert going.ids == [token] * 4
            (ended,) = greedy_search(Continuation(model, token), start, max_len=4)
            assert ended.ids == []
    with pytest.raises(ValueError, match="training mode"):
        greedy_search(Continuation(model.train()), start)


@given(seeds)
def test_hiding(seed):
    """Only what may be is chosen; what is not chosen stays; shares are those of the paper."""
    ids = torch.randint(4, 11, (60, 60), generator=generator(seed))
    may = torch.rand(60, 60, generator=generator(seed + 1)) < 0.8
    before = ids.clone()
    hidden = hide_tokens(ids, may, 3, 11, share=0.5, generator=generator(seed))
    assert ids.equal(before) and not (hidden.chosen & ~may).any()
    assert hidden.ids[~hidden.chosen].equal(ids[~hidden.chosen])
    n = hidden.chosen.sum()
    assert abs(n / may.sum() - 0.5) < 0.06
    masked = (hidden.ids == 3)[hidden.chosen].sum() / n
    stayed = (hidden.ids == ids)[hidden.chosen].sum() / n
    assert abs(masked - 0.8 - 0.1 / 11) < 0.05 and abs(stayed - 0.1 - 0.1 / 11) < 0.04


def test_losses():
    """By hand: padding and places that were not chosen do not count."""
    model = LanguageModel(LanguageModelConfig.gpt2(9, d_model=8, n_heads=2, n_layers=1)).eval()
    ids = torch.tensor([[1, 5, 6, 2], [1, 7, 2, 0]])
    log_p = model(ids).log_softmax(dim=-1)
    expected = [log_p[0, i, ids[0, i + 1]] for i in range(3)]
    expected += [log_p[1, i, ids[1, i + 1]] for i in range(2)]
    close(next_token_loss(model, ids, 0), -torch.stack(expected).mean())
    close(next_token_loss(model, ids[:1]), -torch.stack(expected[:3]).mean())
    reader = LanguageModel(dataclasses.replace(model.config, causal=False)).eval()
    hidden = hide_tokens(ids, ids > 2, 3, 9, share=1.0, generator=generator(0))
    log_p = reader(hidden.ids, padding_mask(ids)).log_softmax(dim=-1)
    expected = [log_p[i, j, ids[i, j]] for i, j in hidden.chosen.nonzero().tolist()]
    close(hidden_token_loss(reader, ids, hidden, padding_mask(ids)), -torch.stack(expected).mean())
    nothing = hide_tokens(ids, ids > 99, 3, 9)
    assert hidden_token_loss(reader, ids, nothing) == 0


def test_tokens_are_hidden_where_they_are():
    """On the device of the ids, whatever draws the numbers."""
    ids = torch.zeros(2, 3, dtype=torch.long, device="meta")
    for source in (None, generator(0)):
        hidden = hide_tokens(ids, ids == 0, 3, 9, generator=source)
        assert hidden.ids.device == hidden.chosen.device == ids.device


def test_fit_learns_and_stops():
    """The same seed gives the same losses; a loss that is not finite stops it."""
    losses, ids = [], torch.tensor([[1, 5, 6, 2]])
    config = LanguageModelConfig.llama(9, d_model=8, n_heads=2, d_ff=8, n_layers=1)
    for _ in range(2):
        torch.manual_seed(0)
        model = LanguageModel(config)
        losses.append(fit(model, lambda g, m=model: next_token_loss(m, ids), 60, peak=1e-2))
    assert losses[0] == losses[1] and losses[0][-1] < 0.5 * losses[0][0]
    with pytest.raises(FloatingPointError, match="step 0"):
        fit(model, lambda g: next_token_loss(model, ids) * torch.inf, 3)


def test_published_settings_by_default():
    """What a configuration does not say is what ``transformers`` takes."""
    for kind, (config, _) in CLASSES.items():
        little, all_of_it = (
            published_config(values) for values in ({"model_type": kind}, config().to_dict())
        )
        same = {"n_kv_heads": all_of_it.kv_heads, "d_k": all_of_it.head_width}
        assert dataclasses.replace(little, **same) == dataclasses.replace(all_of_it, **same)


def test_settings_that_must_be_are_read():
    """Those of which ours has no counterpart, each with another value."""
    for kind, family in FAMILIES.items():
        for name in family.must:
            with pytest.raises(ValueError, match=name):
                published_config({"model_type": kind, name: "other"})
    with pytest.raises(ValueError, match="rope_theta must be above 0, not 1000"):
        published_config({"model_type": "llama", "rope_theta": 10**400})
    scaled = {"rope_type": "linear", "factor": 10**30}  # more than 64 bits
    config = published_config({"model_type": "llama", "rope_theta": 10**30, "rope_scaling": scaled})
    assert config.frequencies().isfinite().all()


def test_nothing_to_predict_costs_nothing():
    """One token, or nothing but filling after it: 0, and not 0 / 0."""
    torch.manual_seed(0)
    model = LanguageModel(LanguageModelConfig(10, d_model=8, n_heads=2, n_layers=1, d_ff=8))
    for ids in ([[3]], [[3, 0, 0]]):
        loss = next_token_loss(model, torch.tensor(ids), pad=0)
        assert loss == 0
        loss.backward()


def test_a_memory_and_heads_of_no_width_are_refused():
    x = torch.zeros(1, 2, 8)
    with pytest.raises(ValueError, match="looks at x alone"):
        SelfAttention(8, 2, n_kv_heads=2, d_k=4)(x, x)
    for heads, width in ((0, 4), (2, 0)):
        with pytest.raises(ValueError, match=f"n_kv_heads={heads}, and this and d_k={width}"):
            SelfAttention(8, 2, n_kv_heads=heads, d_k=width)


def test_the_cache_of_two_stacks_is_not_counted():
    with pytest.raises(ValueError, match="n_cross_layers=6"):
        cache_bytes(Shape(50, 16, 2, 16, 0, (50,), n_cross_layers=6), 100)


def test_a_language_model_is_no_translation_model(tmp_path):
    LanguageModel(LanguageModelConfig(10, d_model=8, n_heads=2, n_layers=1, d_ff=8)).save(tmp_path)
    with pytest.raises(ValueError, match="read it with LanguageModel.load"):
        load_model(tmp_path)
