"""Published models: equal to transformers' own, in both directions, and every fault by name."""

import dataclasses
import io
import json
import os
import pickle
import random
import subprocess
import sys
import warnings
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import MagicMock

import numpy as np
import pytest
import sentencepiece
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from support import generator, random_ids, random_model, seeds
from torch import Tensor

from transformer_lit import pretrained
from transformer_lit.data import BOS, EOS, PAD, Tokenizer, date_pairs
from transformer_lit.decoding import beam_search, greedy_search
from transformer_lit.embedding import sinusoidal_positions
from transformer_lit.model import Transformer, TransformerConfig
from transformer_lit.pretrained import (
    Place,
    fetch,
    fill,
    give,
    halves,
    load_marian,
    load_marian_model,
    load_marian_tokenizers,
    marian_config,
    marian_places,
    marian_values,
    read_json,
    read_weights,
    save_marian,
    save_onnx,
    take,
    write_weights,
)
from transformer_lit.recurrent import RecurrentConfig, Seq2Seq
from transformer_lit.translation import Translator

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of what it finds, or does not, beside itself
    import transformers
    from transformers import AutoTokenizer, MarianConfig, MarianMTModel
    from transformers.models.marian.modeling_marian import MarianSinusoidalPositionalEmbedding

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()

SIZES = {
    "vocab_size": 17,
    "d_model": 12,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 3,
    "decoder_attention_heads": 3,
    "encoder_ffn_dim": 7,
    "decoder_ffn_dim": 7,
    "activation_function": "swish",
    "scale_embedding": True,
    "pad_token_id": 16,
    "decoder_start_token_id": 16,
    "eos_token_id": 0,
    "forced_eos_token_id": None,
    "max_position_embeddings": 40,
}


@torch.no_grad()
def published(seed: int = 0, **changes) -> MarianMTModel:
    """Return a Marian model of transformers, all of whose parameters are random."""
    model = MarianMTModel(MarianConfig(**SIZES | changes)).eval()
    numbers = generator(seed)
    for name, x in [
        *model.named_parameters(),
        ("final_logits_bias", model.final_logits_bias),
    ]:
        if "embed_positions" not in name:
            noise = torch.randn(x.shape, generator=numbers)
            size = 0.4 if x.dim() == 1 else x.size(-1) ** -0.5
            x.copy_(size * noise + ("norm" in name and name.endswith("weight")))
    return model


def carried(theirs: MarianMTModel) -> Transformer:
    """Return our model of theirs, by way of a folder."""
    with TemporaryDirectory() as folder:
        theirs.save_pretrained(folder)
        return load_marian_model(folder)


def ids_for(config: TransformerConfig, seed: int, b: int = 3) -> tuple[Tensor, Tensor]:
    """Return padded sources, and targets that open as the model wants it."""
    most = min(config.vocab_size, config.target_size, config.pad)
    src = torch.randint(1, most, (b, 6), generator=generator(seed))
    src[1, 3:] = config.pad
    tgt = torch.randint(1, most, (b, 5), generator=generator(seed + 1))
    tgt[:, 0] = config.bos
    return src, tgt


@torch.inference_mode()
def their_logits(model: MarianMTModel, src: Tensor, tgt: Tensor) -> Tensor:
    """Return what transformers computes."""
    real = (src != model.config.pad_token_id).long()
    return model(input_ids=src, attention_mask=real, decoder_input_ids=tgt).logits


@st.composite
def marian_settings(draw: st.DrawFn) -> dict:
    """Draw what may differ among Marian models that ours can be."""
    heads = draw(st.sampled_from([1, 2, 3, 5]))
    wide = draw(st.integers(1, 12))
    layers = draw(st.integers(1, 3))
    shared = draw(st.booleans())
    return {
        "d_model": heads * draw(st.integers(1, 4)),
        "encoder_attention_heads": heads,
        "decoder_attention_heads": heads,
        "encoder_ffn_dim": wide,
        "decoder_ffn_dim": wide,
        "encoder_layers": layers,
        "decoder_layers": layers,
        "activation_function": draw(st.sampled_from(list(pretrained.ACTIVATION_NAMES))),
        "scale_embedding": draw(st.booleans()),
        "share_encoder_decoder_embeddings": shared,
        "decoder_vocab_size": 17 if shared else draw(st.integers(17, 21)),
        "tie_word_embeddings": draw(st.booleans()),
        "decoder_start_token_id": draw(st.sampled_from([16, 3])),
        "eos_token_id": draw(st.sampled_from([0, 5])),
    }


@settings(max_examples=12)
@given(marian_settings(), seeds)
def test_logits_are_those_of_transformers(options, seed):
    theirs = published(seed, **options)
    ours = carried(theirs)
    src, tgt = ids_for(ours.config, seed)
    with torch.inference_mode():
        torch.testing.assert_close(
            ours(src, tgt), their_logits(theirs, src, tgt), atol=1e-5, rtol=1e-5
        )


def cut(row: Tensor, config: TransformerConfig) -> list[int]:
    """Return the ids that were generated, without the start and up to the end."""
    ids = [i for i in row.tolist()[1:] if i != config.pad]
    return ids[: ids.index(config.eos)] if config.eos in ids else ids


@pytest.mark.parametrize("seed", range(4))
def test_searches_are_those_of_transformers(seed):
    """Untied, so that random weights do not repeat themselves; some sentences end, some do not."""
    tied = seed == 3
    theirs = published(seed, tie_word_embeddings=tied, decoder_start_token_id=16 - seed % 2)
    ours = carried(theirs)
    c = ours.config
    src, _ = ids_for(c, seed, b=6)
    options = {
        "input_ids": src,
        "attention_mask": (src != c.pad).long(),
        "max_length": 15,
        "do_sample": False,
        "bad_words_ids": [[token] for token in {c.pad, c.bos}],
        "renormalize_logits": True,
    }
    greedy = theirs.generate(num_beams=1, **options)
    found = [h.ids for h in greedy_search(ours, src, 14)]
    assert found == [cut(row, c) for row in greedy]
    for beam in (2, 4):
        best = theirs.generate(num_beams=beam, length_penalty=0.0, **options)
        found = [h[0].ids for h in beam_search(ours, src, beam, alpha=0.0, max_len=14)]
        assert found == [cut(row, c) for row in best]


@st.composite
def givable(draw: st.DrawFn) -> TransformerConfig:
    """Draw a model of ours that a Marian model can be."""
    heads = draw(st.integers(1, 3))
    tie = draw(st.sampled_from(["all", "output", "none"]))
    return TransformerConfig(
        vocab_size=11,
        tgt_vocab_size=None if tie == "all" else 13,
        d_model=heads * draw(st.integers(1, 5)),
        n_heads=heads,
        d_ff=draw(st.integers(1, 9)),
        n_layers=draw(st.integers(1, 2)),
        activation=draw(st.sampled_from(["relu", "gelu", "gelu_tanh", "silu"])),
        bias=draw(st.booleans()),
        output_bias=draw(st.booleans()),
        tie=tie,
    )


@settings(max_examples=8)
@given(givable(), seeds)
def test_transformers_loads_what_we_save(config, seed):
    ours = random_model(config, seed)
    with TemporaryDirectory() as path:
        save_marian(ours, path)
        theirs, report = MarianMTModel.from_pretrained(path, output_loading_info=True)
        again = load_marian_model(path)
    assert not any(report.values())
    src, tgt = ids_for(dataclasses.replace(config, pad=10), seed)
    src[src == 10], tgt[:, 0] = config.pad, config.bos
    with torch.inference_mode():
        logits = ours(src, tgt)
    torch.testing.assert_close(their_logits(theirs.eval(), src, tgt), logits, atol=1e-5, rtol=1e-5)
    there = dict(again.named_parameters())
    for name, parameter in ours.named_parameters():
        assert torch.equal(parameter, there.pop(name))
    assert not any(x.any() for x in there.values())  # biases that ours had not


def weights_and_places() -> tuple[dict[str, Tensor], TransformerConfig]:
    """Return a checkpoint as transformers keeps it in memory, and its configuration."""
    theirs = published(encoder_layers=1, decoder_layers=1)
    values = theirs.config.to_dict()
    kept = {n: x for n, x in theirs.state_dict().items() if not n.endswith("tokens.weight")}
    kept = {n: x for n, x in kept.items() if "positions" not in n and n != "lm_head.weight"}
    return kept, marian_config(values)


def fits(weights, config) -> dict[str, Tensor]:
    """Take the weights for a configuration."""
    others = pretrained.marian_others(config, shared=True)
    return take(weights, marian_places(config), others, prefix="model.")


def test_each_tensor_that_is_amiss_is_named():
    weights, config = weights_and_places()
    assert len(weights) == 2 + 16 + 26
    for number, (name, tensor) in enumerate(weights.items()):
        nan, inf = tensor.clone(), tensor.clone()
        nan.view(-1)[-1], inf.view(-1)[0] = torch.nan, -torch.inf
        others = [inf, tensor[None], tensor.long(), tensor.to_sparse(), tensor.to("meta")]
        for amiss in (None, nan, tensor.flatten()[1:], others[number % len(others)]):
            changed = {n: x for n, x in weights.items() if n != name}
            if amiss is not None:
                changed[name] = amiss
            with pytest.raises(ValueError, match=name.replace(".", r"\.") + " "):
                fits(changed, config)
    for name in ("model.encoder.layers.1.fc1.bias", "lm_head.bias", "shared.weight"):
        with pytest.raises(ValueError, match=f"{name} has no place"):
            fits(weights | {name: torch.zeros(3)}, config)


def test_copies_and_positions_are_compared():
    weights, config = weights_and_places()
    table = weights["model.shared.weight"]
    positions = published().model.encoder.embed_positions.weight
    more = {
        "lm_head.weight": table.clone(),
        "model.encoder.embed_tokens.weight": table,
        "model.decoder.embed_tokens.weight": table,
        "model.encoder.embed_positions.weight": positions,
        "model.decoder.embed_positions.weight": positions.half()[:9],
    }
    plain = fits(weights, config)
    full = fits(weights | more, config)
    assert plain.keys() == full.keys() and all(torch.equal(plain[n], full[n]) for n in plain)
    bare = {n.removeprefix("model."): x for n, x in (weights | more).items()}
    assert all(torch.equal(plain[n], x) for n, x in fits(bare, config).items())
    # safetensors keeps one of several copies, and which is not said
    moved = {n: x for n, x in weights.items() if n != "model.shared.weight"}
    moved["lm_head.weight"] = table
    assert all(torch.equal(plain[n], x) for n, x in fits(moved, config).items())
    for name, tensor in more.items():
        wrong = tensor.clone()
        wrong[2, 3] += 0.01
        with pytest.raises(ValueError, match=f"{name} is "):
            fits(weights | more | {name: wrong}, config)
    for name in list(more)[-2:]:
        for wrong in (positions[:, 1:], positions[None], positions.long()):
            with pytest.raises(ValueError, match=f"{name} is not what is computed"):
                fits(weights | {name: wrong}, config)


def test_half_precision_becomes_single():
    weights, config = weights_and_places()
    half = fits({n: x.half() for n, x in weights.items()}, config)
    whole = fits(weights, config)
    assert {x.dtype for x in half.values()} == {torch.float32}
    assert all(torch.allclose(half[n], whole[n], atol=2e-3) for n in whole)
    double = {n: x.double() for n, x in weights.items()}
    double["final_logits_bias"][0, 0] = 1e300  # infinite, once it is single
    with pytest.raises(ValueError, match="final_logits_bias holds NaN or infinity"):
        fits(double, config)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "bart"}, "model_type must be 'marian', not 'bart'"),
        ({"model_type": None}, "model_type must be 'marian'"),
        ({"encoder_layers": 3}, "encoder_layers is 3 and decoder_layers is 2"),
        ({"decoder_attention_heads": 4}, "decoder_attention_heads is 4"),
        ({"decoder_ffn_dim": 8}, "decoder_ffn_dim is 8"),
        ({"activation_function": "tanh"}, "activation_function must be one of .*, not 'tanh'"),
        ({"activation_function": ["relu"]}, "activation_function must be"),
        ({"normalize_before": True}, "normalize_before must be False"),
        ({"normalize_embedding": True}, "normalize_embedding must be False"),
        ({"add_final_layer_norm": True}, "add_final_layer_norm must be False"),
        ({"static_position_embeddings": False}, "static_position_embeddings must be True"),
        ({"is_encoder_decoder": False}, "is_encoder_decoder must be True"),
        ({"tie_encoder_decoder": True}, "tie_encoder_decoder must be False"),
        ({"quantization_config": {"bits": 4}}, "quantization_config must be None"),
        ({"d_model": 13}, "d_model=13 must be a multiple of encoder_attention_heads=3"),
        ({"d_model": "12"}, "d_model must be a whole number from 1, not '12'"),
        ({"d_model": True}, "d_model must be a whole number"),
        ({"hidden_size": 13}, "hidden_size is 13, but d_model is 12"),
        ({"vocab_size": 0}, "vocab_size must be a whole number from 1"),
        ({"decoder_vocab_size": 18}, "decoder_vocab_size is 18 and vocab_size 17"),
        ({"decoder_vocab_size": -1}, "decoder_vocab_size must be a whole number"),
        ({"scale_embedding": 1}, "scale_embedding must be true or false"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings must be true or false"),
        ({"pad_token_id": 17}, "pad_token_id is 17, and a vocabulary has 17 tokens"),
        ({"pad_token_id": None}, "pad_token_id must be a whole number from 0"),
        ({"eos_token_id": [0, 1]}, "eos_token_id must be a whole number"),
        ({"eos_token_id": 16}, "pad_token_id and eos_token_id are both 16"),
        ({"decoder_start_token_id": 0}, "decoder_start_token_id and eos_token_id are both 0"),
        ({"dropout": 1.5}, "dropout must be"),
    ],
)
def test_what_our_model_is_not_is_refused_by_name(changes, message):
    with pytest.raises(ValueError, match=message):
        marian_config({"model_type": "marian", **SIZES, **changes})


def test_a_configuration_that_says_little_means_what_transformers_says():
    c, theirs = marian_config({"model_type": "marian"}), MarianConfig()
    assert (c.vocab_size, c.d_model, c.n_layers) == (58101, theirs.d_model, theirs.encoder_layers)
    assert (c.pad, c.bos, c.eos, c.activation) == (58100, 58100, 0, "gelu")
    for name, value in pretrained.MARIAN_DEFAULTS.items():
        if name != "decoder_vocab_size":
            assert getattr(theirs, name) == value, name
    one = marian_config({"model_type": "marian", **SIZES, "eos_token_id": [5], "hidden_size": 12})
    assert one.eos == 5


def test_an_opus_configuration():
    """As published: with settings of the search and of the conversion, which change nothing."""
    c = marian_config(
        {
            **{"model_type": "marian", "vocab_size": 58101, "decoder_vocab_size": 58101},
            **{"d_model": 512, "encoder_layers": 6, "decoder_layers": 6, "num_hidden_layers": 6},
            **{"encoder_attention_heads": 8, "decoder_attention_heads": 8},
            **{"encoder_ffn_dim": 2048, "decoder_ffn_dim": 2048, "dropout": 0.1},
            **{"activation_function": "swish", "scale_embedding": True, "num_beams": 6},
            **{"pad_token_id": 58100, "eos_token_id": 0, "decoder_start_token_id": 58100},
            **{"normalize_before": False, "static_position_embeddings": True},
            **{"add_bias_logits": False, "bad_words_ids": [[58100]], "bos_token_id": 0},
        }
    )
    assert c == TransformerConfig.base(
        58101, activation="silu", output_bias=True, pad=58100, bos=58100, eos=0
    )


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"norm_first": True}, "norm_first is True, and every Marian model has False"),
        ({"gated": True}, "gated is True"),
        ({"positions": "learned"}, "positions is 'learned'"),
        ({"eos": 9}, "eos_token_id is 9, and a vocabulary has 9 tokens"),
    ],
)
def test_what_a_marian_model_is_not_is_refused_by_name(tmp_path, config, message):
    model = Transformer(TransformerConfig.tiny(9, d_model=8, n_heads=2, n_layers=1, **config))
    with pytest.raises(ValueError, match=message):
        save_marian(model, tmp_path)
    assert not list(tmp_path.iterdir())


def test_configurations_come_back():
    for seed in range(20):
        rng = random.Random(seed)
        tie = rng.choice(["all", "output", "none"])
        config = TransformerConfig(
            vocab_size=rng.randint(5, 9),
            tgt_vocab_size=None if tie == "all" else rng.randint(5, 9),
            d_model=6,
            n_heads=rng.choice([1, 2, 3]),
            d_ff=rng.randint(1, 9),
            n_layers=rng.randint(1, 3),
            dropout=rng.choice([0.0, 0.3]),
            activation=rng.choice(["relu", "gelu", "gelu_tanh", "silu"]),
            tie=tie,
            output_bias=True,
            **dict(zip(("pad", "bos", "eos"), rng.sample(range(5), 3), strict=True)),
        )
        if tie == "none" and config.tgt_vocab_size is None:
            continue
        assert marian_config(marian_values(config)) == config


@settings(max_examples=8)
@given(st.integers(1, 40))
def test_halves_are_marians_positions(d_model):
    table = MarianSinusoidalPositionalEmbedding(40, d_model).create_weight()
    torch.testing.assert_close(table[:, halves(d_model)], sinusoidal_positions(40, d_model))


def test_places_by_hand():
    """Numbers small enough to write down what should come out, one option at a time."""
    a, b = torch.arange(6.0).view(2, 3), 10 + torch.arange(3.0).view(1, 3)
    stack = Place("x", {"a": (2, 3), "b": (1, 3)})
    assert stack.size() == (3, 3)
    assert torch.equal(stack.join([a, b]), torch.cat([a, b]))
    turned = Place("x", {"a": (2, 3)}, transpose=True, order=torch.tensor([2, 0, 1]), scale=2.0)
    assert turned.size() == (3, 2)
    assert turned.join([a]).tolist() == [[4, 10], [0, 6], [2, 8]]
    columns = Place("x", {"b": (1, 3)}, shape=(3,), order=torch.tensor([1, 2, 0]))
    assert columns.join([b]).tolist() == [11, 12, 10]
    for place, parts in ((stack, {"a": a, "b": b}), (turned, {"a": a}), (columns, {"b": b})):
        back = place.split(place.join(list(parts.values())))
        assert list(back) == list(parts)
        assert all(torch.equal(back[n], x) and back[n].is_contiguous() for n, x in parts.items())


def test_give_and_fill_name_what_is_amiss():
    model = random_model(TransformerConfig.tiny(9, d_model=4, n_heads=2, output_bias=True), 0)
    weights = {n: p.detach() for n, p in model.named_parameters()}
    places = list(marian_places(model.config))
    assert take(give(weights, places), places).keys() == weights.keys()
    name = "output.bias"
    for wrong, message in (
        ({n: x for n, x in weights.items() if n != name}, f"{name} is missing"),
        (weights | {"y": weights[name]}, "y has no place"),
        (weights | {name: torch.zeros(8)}, rf"{name} has the shape \(8,\)"),
        (weights | {name: torch.full((9,), torch.nan)}, f"{name} holds NaN"),
    ):
        with pytest.raises(ValueError, match=message):
            give(wrong, places)
    with pytest.raises(ValueError, match=f"{name} is missing"):
        fill(model, {n: x for n, x in weights.items() if n != name})
    with pytest.raises(ValueError, match=name):
        fill(model, weights | {name: torch.zeros(8)})


def test_an_absurd_configuration_ends_at_once(tmp_path):
    path = tmp_path
    published().save_pretrained(path)
    values = read_json(path / "config.json")
    for changes, message in (
        ({"encoder_layers": 10**9, "decoder_layers": 10**9}, "layers.2.* is missing"),
        ({"d_model": 3 * 10**12}, "d_model is 3000000000000, and no tensor is as wide"),
        ({"vocab_size": 10**12, "decoder_vocab_size": 10**12}, "shared.weight has the shape"),
        ({"encoder_ffn_dim": 10**12, "decoder_ffn_dim": 10**12}, "fc1.weight has the shape"),
    ):
        (path / "config.json").write_text(json.dumps(values | changes))
        with pytest.raises(ValueError, match=message):
            load_marian_model(path)


def test_tensors_that_promise_numbers_are_refused(tmp_path):
    """A view of one number, or of none, may have any shape: nothing is allocated from it."""
    theirs, many = published(), 3 * 10**12
    weights = {n: x for n, x in theirs.state_dict().items() if "positions" not in n}
    values = {"model_type": "marian", **SIZES, "d_model": many}
    (tmp_path / "config.json").write_text(json.dumps(values))
    save_file({"x": torch.zeros(0, many)}, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match=f"d_model is {many}, and no tensor is as wide"):
        load_marian_model(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "marian", **SIZES}))
    name = "model.encoder.embed_positions.weight"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # nested and sparse tensors are experimental
        promises = [
            torch.zeros(1).expand(many, 12),
            torch.zeros(2, 12).to_sparse(),
            torch.zeros(2, 12, device="meta"),
            torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)]),
        ]
    for promise in promises:
        torch.save(weights | {name: promise}, tmp_path / "pytorch_model.bin")
        with pytest.raises(ValueError, match=f"{name}', something that is no plain tensor"):
            load_marian_model(tmp_path)
    kept, config = weights_and_places()
    for promise in promises:  # nor where no file was read
        with pytest.raises(ValueError, match=f"{name} is not what is computed in its place"):
            fits(kept | {name: promise}, config)
        with pytest.raises(ValueError, match=r"shared\.weight holds torch.float32, and not plain"):
            fits(kept | {"model.shared.weight": promise}, config)


# -- files


def test_weights_in_every_form(tmp_path):
    weights = {"a": torch.randn(2, 3), "b": torch.randn(4), "c": torch.randn(1)}
    whole, pieces, pickled = (tmp_path / name for name in ("whole", "pieces", "pickled"))
    write_weights(whole, {"x": 1}, weights)
    assert read_json(whole / "config.json") == {"x": 1}
    for folder in (pieces, pickled):
        folder.mkdir()
    save_file({"a": weights["a"]}, pieces / "model-1.safetensors")
    save_file({"b": weights["b"], "c": weights["c"]}, pieces / "model-2.safetensors")
    where = {"a": "model-1.safetensors", "b": "model-2.safetensors", "c": "model-2.safetensors"}
    index = pieces / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": where}))
    torch.save(weights, pickled / "pytorch_model.bin")
    for folder in (whole, pieces, pickled):
        found = read_weights(folder)
        assert found.keys() == weights.keys()
        assert all(torch.equal(found[n], x) for n, x in weights.items())

    for lie, message in (
        (where | {"d": "model-1.safetensors"}, "d is not in"),
        ({"a": where["a"], "b": where["b"]}, "c is in"),
        (where | {"a": "../whole/model.safetensors"}, "weight_map"),
        (where | {"a": 3}, "weight_map"),
        (None, "weight_map"),
    ):
        index.write_text(json.dumps({"weight_map": lie}))
        with pytest.raises(ValueError, match=message):
            read_weights(pieces)
    index.write_text(json.dumps({"weight_map": where | {"d": "model-3.safetensors"}}))
    with pytest.raises(FileNotFoundError, match="model-3.safetensors is missing"):
        read_weights(pieces)
    with pytest.raises(FileNotFoundError, match="holds no weights"):
        read_weights(tmp_path)
    with pytest.raises(FileNotFoundError, match="config.json is missing"):
        read_json(tmp_path / "config.json")


def test_every_form_that_transformers_writes(tmp_path):
    theirs = published(3)
    whole, pieces, pickled = (tmp_path / name for name in ("whole", "pieces", "pickled"))
    theirs.save_pretrained(whole)
    theirs.save_pretrained(pieces, max_shard_size="2KB")
    theirs.config.save_pretrained(pickled)
    torch.save(theirs.state_dict(), pickled / "pytorch_model.bin")  # copies and positions, too
    assert len(list(pieces.glob("*.safetensors"))) > 5
    first = load_marian_model(whole).state_dict()
    for folder in (pieces, pickled):
        found = load_marian_model(folder).state_dict()
        assert found.keys() == first.keys()
        assert all(torch.equal(found[name], x) for name, x in first.items())


class Trap:
    """What a pickle may hold."""

    def __reduce__(self):
        return (os.mkdir, ("it-ran",))


@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_a_pickle_is_never_run(tmp_path, monkeypatch, protocol):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "pytorch_model.bin"
    plain = pickle.dumps({"a": Trap()}, protocol=protocol)
    zipped = io.BytesIO()
    torch.save({"a": torch.zeros(2), "b": Trap()}, zipped)
    for content in (plain, zipped.getvalue(), b"", b"no pickle", zipped.getvalue()[:99]):
        path.write_bytes(content)
        with pytest.raises(ValueError, match="is damaged, or holds more than numbers") as caught:
            read_weights(tmp_path)
        assert "weights_only" not in str(caught.value)  # torch would recommend to run it
    assert not (tmp_path / "it-ran").exists()
    for content, message in (
        ([torch.zeros(2)], "holds no tensors with names, but list"),
        ({"a": torch.zeros(2), "b": 3}, "'b', something that is no plain tensor"),
        ({3: torch.zeros(2)}, "3, something"),
    ):
        torch.save(content, path)
        with pytest.raises(ValueError, match=message):
            read_weights(tmp_path)


def test_damaged_files_are_named(tmp_path):
    (tmp_path / "model.safetensors").write_bytes(b"\x08\x00\x00\x00\x00\x00\x00\x00{}")
    with pytest.raises(ValueError, match="model.safetensors cannot be read"):
        read_weights(tmp_path)
    for content in ("[1]", "{", "[" * 100_000, "\x00"):
        (tmp_path / "config.json").write_text(content)
        with pytest.raises(ValueError, match="config.json"):
            read_json(tmp_path / "config.json")
        with pytest.raises(ValueError, match="config.json"):
            load_marian_model(tmp_path)


# -- text


def train_pieces(texts, size: int) -> bytes:
    """Return a small SentencePiece model."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts),
        model_writer=model,
        vocab_size=size,
        num_threads=1,
        minloglevel=2,
    )
    return model.getvalue()


def pieces_of(model: bytes) -> list[str]:
    """Return the pieces of a SentencePiece model, without its own special ones."""
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    return [processor.id_to_piece(i) for i in range(3, len(processor))]


@pytest.fixture(scope="module")
def texts(tmp_path_factory) -> tuple[Path, Path]:
    """Return two folders with tokenisers: of one vocabulary with languages, and of two."""
    pairs = date_pairs(300)
    english, chinese = zip(*pairs, strict=True)
    source, target = train_pieces(english, 90), train_pieces(chinese, 55)
    names = ["</s>", "<unk>", ">>zho<<", ">>deu_Latn<<"]
    joint = [*names, *dict.fromkeys(pieces_of(source) + pieces_of(target)), "<pad>"]
    tables = {
        "one": {"vocab.json": joint},
        "two": {
            "vocab.json": ["</s>", "<unk>", "<pad>", *pieces_of(source)],
            "target_vocab.json": ["</s>", "<unk>", "<pad>", *pieces_of(target)],
        },
    }
    folders = []
    for name, files in tables.items():
        folder = tmp_path_factory.mktemp(name)
        (folder / "source.spm").write_bytes(source)
        (folder / "target.spm").write_bytes(target)
        for file, table in files.items():
            ids = {piece: i for i, piece in enumerate(table)}
            (folder / file).write_text(json.dumps(ids))
        folders.append(folder)
    return folders[0], folders[1]


def their_tokenizer(folder: Path) -> transformers.MarianTokenizer:
    """Return the tokeniser of transformers for a folder."""
    two = (folder / "target_vocab.json").exists()
    files = ["source.spm", "target.spm", "vocab.json", *["target_vocab.json"] * two]
    paths = [str(folder / name) for name in files]
    return transformers.MarianTokenizer(*paths, separate_vocabs=two)


@pytest.mark.parametrize("which", [0, 1])
def test_text_is_cut_as_by_transformers(texts, which):
    theirs, (source, target) = their_tokenizer(texts[which]), load_marian_tokenizers(texts[which])
    rng = random.Random(0)
    letters = "abcXYZ 019,/.é漢\u00a0\u3000ｆﬁ년\t年月"
    for pair in date_pairs(60, seed=1):
        noise = "".join(rng.choice(letters) for _ in range(rng.randrange(20)))
        for text in (*pair, noise, f"  {pair[0]}  ", *[f">>zho<< {noise}"] * (which == 0)):
            assert [*source.encode(text), source.eos] == theirs(text)["input_ids"]
            ids = theirs(text_target=text)["input_ids"]
            assert [*target.encode(text), target.eos] == ids
            assert target.decode(ids) == theirs.decode(ids, skip_special_tokens=True)


def test_special_tokens_of_marian(texts):
    tokenizer, _ = load_marian_tokenizers(texts[0])
    n = len(tokenizer)
    assert (tokenizer.eos, tokenizer.unk, tokenizer.pad, tokenizer.bos) == (0, 1, n - 1, n - 1)
    assert tokenizer.n_rows == n and tokenizer.languages == [">>zho<<", ">>deu_Latn<<"]
    ids = tokenizer.encode(">>deu_Latn<< May 1")
    assert ids[0] == 3 and tokenizer.pieces(ids)[:2] == [">>deu_Latn<<", "␣M"]
    assert tokenizer.decode([n - 1, *ids[1:], 0, 1, n + 5]) == "May 1"
    assert tokenizer.pieces([0, n + 5]) == ["</s>", f"<{n + 5}>"]
    with pytest.raises(ValueError, match=r"no language >>fra<<; it knows >>zho<<, >>deu_Latn<<"):
        tokenizer.encode(">>fra<< May 1")
    with pytest.raises(ValueError, match="not valid Unicode"):
        tokenizer.encode("\ud800")
    assert tokenizer.encode("") == []
    plain, _ = load_marian_tokenizers(texts[1])
    assert plain.languages == [] and len(plain.encode(">>fra<< May 1")) > 4  # a text like others
    assert 0 not in plain.encode("</s> <pad> <unk>")


def test_what_is_no_tokeniser_is_named(texts, tmp_path):
    model, ids = (texts[0] / "source.spm").read_bytes(), read_json(texts[0] / "vocab.json")
    for pieces, table, message in (
        (b"nonsense", ids, "this is no SentencePiece model"),
        (model, {n: i for n, i in ids.items() if n != "<unk>"}, "the vocabulary lacks <unk>"),
        (model, ids | {"x": "3"}, "the id of 'x' is no whole number"),
        (model, ids | {"x": -3}, "the id of 'x' is no whole number"),
    ):
        (tmp_path / "source.spm").write_bytes(pieces)
        (tmp_path / "target.spm").write_bytes(pieces)
        (tmp_path / "vocab.json").write_text(json.dumps(table))
        with pytest.raises(ValueError, match=f"source.spm, vocab.json: {message}"):
            load_marian_tokenizers(tmp_path)


@pytest.mark.parametrize("which", [0, 1])
def test_a_published_folder_translates(texts, tmp_path, which):
    theirs_cut = their_tokenizer(texts[which])
    sizes = [len(read_json(path)) for path in sorted(texts[which].glob("*vocab.json"))]
    shared = len(sizes) == 1
    theirs = published(
        vocab_size=sizes[-1],
        decoder_vocab_size=sizes[0],
        share_encoder_decoder_embeddings=shared,
        tie_word_embeddings=shared,
        pad_token_id=theirs_cut.pad_token_id,
        decoder_start_token_id=theirs_cut.pad_token_id,
        max_position_embeddings=128,
    )
    theirs.save_pretrained(tmp_path)
    for path in texts[which].iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    translator = load_marian(tmp_path)
    sentences = [source for source, _ in date_pairs(4, seed=2)]
    ours = [h.text for (h,) in translator.n_best(sentences, 1, beam=2, alpha=0.0)]
    inputs = theirs_cut(sentences, return_tensors="pt", padding=True)
    for i, sentence in enumerate(sentences):
        real = int(inputs.attention_mask[i].sum())
        row = {name: x[i : i + 1, :real] for name, x in inputs.items()}
        found = theirs.generate(
            **row,
            num_beams=2,
            length_penalty=0.0,
            bad_words_ids=[[theirs_cut.pad_token_id]],
            renormalize_logits=True,
            max_length=51 + real,
        )
        assert theirs_cut.decode(found[0], skip_special_tokens=True) == ours[i], sentence
    assert len(translator.sample(sentences[:1], 2)[0]) == 2
    alignment = translator.align("May 1")
    assert alignment.source[-1] == "</s>" == alignment.source[-1]
    assert alignment.weights.shape[:2] == (2, 3)

    save_marian(translator, tmp_path / "again")
    again = load_marian(tmp_path / "again")
    assert again.translate(sentences) == translator.translate(sentences)
    cutter = AutoTokenizer.from_pretrained(tmp_path / "again")
    assert type(cutter).__name__ == "MarianTokenizer"
    assert cutter(sentences)["input_ids"] == theirs_cut(sentences)["input_ids"]


def test_a_tokeniser_of_another_model_is_refused(texts, tmp_path):
    theirs = published(vocab_size=500, pad_token_id=499, decoder_start_token_id=499)
    theirs.save_pretrained(tmp_path)
    for path in texts[0].iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    with pytest.raises(ValueError, match="pad is 499 in the model"):
        load_marian(tmp_path)
    (tmp_path / "vocab.json").unlink()
    with pytest.raises(FileNotFoundError, match="vocab.json is missing"):
        load_marian(tmp_path)


def test_the_date_model_speaks_through_transformers(tmp_path):
    dates = Translator.dates()
    (tmp_path / "source.spm").write_bytes(b"of a model that was here before")
    save_marian(dates, tmp_path)
    sentences = [source for source, _ in date_pairs(12, split="test")]
    model = MarianMTModel.from_pretrained(tmp_path).eval()
    cutter = AutoTokenizer.from_pretrained(tmp_path)
    for text in (*sentences, "<pad> <eos>", "é漢  x"):
        assert cutter(text)["input_ids"] == [*dates.tokenizers[0].encode(text), 2]
    for beam in (1, 3):
        found = model.generate(
            **cutter(sentences, return_tensors="pt", padding=True),
            num_beams=beam,
            length_penalty=0.0,
        )
        texts = cutter.batch_decode(found, skip_special_tokens=True)
        assert texts == dates.translate(sentences, beam=beam, alpha=0.0)
    again = load_marian(tmp_path)
    assert again.translate(sentences) == dates.translate(sentences)


def test_two_tokenisers_of_the_course(tmp_path):
    sides = [Tokenizer.train(side, 280) for side in zip(*date_pairs(20), strict=True)]
    config = TransformerConfig.tiny(
        len(sides[0]), tgt_vocab_size=len(sides[1]), tie="output", d_model=8, n_layers=1
    )
    translator = Translator(random_model(config, 0), *sides)
    save_marian(translator, tmp_path)
    again = load_marian(tmp_path)
    for text in date_pairs(3)[1]:
        for old, new in zip(translator.tokenizers, again.tokenizers, strict=True):
            assert old.encode(text) == new.encode(text)


# -- where the files come from


def test_a_name_is_fetched_from_the_hub(tmp_path, monkeypatch):
    import huggingface_hub

    asked = []

    def snapshot_download(name, allow_patterns):
        asked.append((name, allow_patterns))
        if "pytorch_model.bin" in allow_patterns:
            (tmp_path / "pytorch_model.bin").touch()
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    assert fetch("Helsinki-NLP/opus-mt-en-de") == tmp_path
    assert [name for name, _ in asked] == ["Helsinki-NLP/opus-mt-en-de"] * 2
    assert "model.safetensors" in asked[0][1] and "pytorch_model.bin" not in asked[0][1]
    assert not any(pattern.endswith((".py", "*")) for _, files in asked for pattern in files)
    (tmp_path / "model.safetensors.index.json").touch()
    fetch("a/b")
    assert len(asked) == 3  # safetensors are enough

    def fails(name, allow_patterns):
        raise RuntimeError("no network\nand a long story")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fails)
    with pytest.raises(OSError, match="a/b is no folder here, and cannot be fetched: no network$"):
        fetch("a/b")
    for name in ("nothing", "a/b/c", "../x y"):
        with pytest.raises(FileNotFoundError, match="is no folder, and no name on the hub"):
            fetch(name)
    assert fetch(tmp_path) == tmp_path


def test_without_the_extra_the_error_names_it(texts, tmp_path, monkeypatch):
    def fails(name):
        raise ImportError(name)

    monkeypatch.setattr(pretrained.importlib, "import_module", fails)
    wanted = r'pip install "transformer-lit\[pretrained\]"'
    for use in (
        lambda: load_marian_tokenizers(texts[0]),
        lambda: fetch("a/b"),
        lambda: save_onnx(random_model(TransformerConfig.tiny(9), 0), tmp_path),
    ):
        with pytest.raises(ImportError, match=wanted):
            use()


# -- and where they go


def test_onnx_computes_the_same(tmp_path):
    """Exported by a process of its own, since checked annotations get in the exporter's way."""
    import onnxruntime

    config = TransformerConfig(
        vocab_size=23,
        tgt_vocab_size=19,
        d_model=6,
        n_heads=3,
        d_ff=5,
        n_layers=1,
        tie="none",
        output_bias=True,
        bos=0,
    )
    model = random_model(config, 0)
    model.half().float().save(tmp_path)  # of half the precision, and so it is exported
    model = Transformer.load(tmp_path)
    program = (
        "import sys\n"
        "from transformer_lit.model import Transformer\n"
        "from transformer_lit.pretrained import save_onnx\n"
        "save_onnx(Transformer.load(sys.argv[1]).half(), sys.argv[1], max_len=600)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert done.stdout == done.stderr == ""
    encoder, decoder = (
        onnxruntime.InferenceSession(tmp_path / f"{name}.onnx") for name in ("encoder", "decoder")
    )
    for seed, (b, s, t) in enumerate([(2, 3, 4), (1, 1, 1), (4, 7, 2), (1, 600, 9), (3, 2, 600)]):
        src = random_ids(seed, b, s, vocab_size=23)
        tgt = random_ids(seed + 9, b, t, vocab_size=19)
        src[0, 5:], tgt[:, 0] = config.pad, config.bos
        (memory,) = encoder.run(None, {"src": src.numpy()})
        inputs = {"tgt": tgt.numpy(), "memory": memory, "src": src.numpy()}
        (logits,) = decoder.run(None, inputs)
        with torch.inference_mode():
            np.testing.assert_allclose(logits, model(src, tgt).numpy(), atol=1e-4)


def test_what_is_not_exported(tmp_path):
    model = random_model(TransformerConfig.tiny(9, d_model=4, n_heads=2, n_layers=1), 0)
    with pytest.raises(ValueError, match="training mode"):
        save_onnx(model.train(), tmp_path)
    with pytest.raises(ValueError, match="max_len must be at least 4"):
        save_onnx(model.eval(), tmp_path, max_len=3)
    other = Seq2Seq(RecurrentConfig(300, d_model=4))
    translator = Translator(other, Tokenizer.train(["a b"], 300))
    with pytest.raises(TypeError, match="only a Transformer can be a Marian model, not a Seq2Seq"):
        save_marian(translator, tmp_path)
    foreign = MagicMock(pad=PAD, bos=BOS, eos=EOS, n_rows=9)  # somebody's own tokeniser
    with pytest.raises(TypeError, match="can be saved, not MagicMock and MagicMock"):
        save_marian(Translator(model, foreign), tmp_path)
    assert not list(tmp_path.iterdir())


def test_files_are_those_that_were_promised(tmp_path):
    config = TransformerConfig.tiny(300, d_model=8, n_heads=2, n_layers=1)
    translator = Translator(random_model(config, 0), Tokenizer.train(["a b"], 300))
    save_marian(translator, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    ]
    assert "final_logits_bias" in load_file(tmp_path / "model.safetensors")
