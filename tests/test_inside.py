"""Looking into a model: what is read off it is right, and what is taken out comes back."""

import copy
import importlib
import json
import math
import re
import sys
from functools import cache
from importlib.resources import files
from pathlib import Path

import matplotlib
import matplotlib.pyplot as plt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from jaxtyping import TypeCheckError
from support import close, configs, random_model, random_tensor, randomise, seeds, sizes

from transformer_lit.data import BOS, EOS, PAD, Batch, Tokenizer, pad
from transformer_lit.decoding import Hypothesis, greedy_search
from transformer_lit.descendants import LanguageModel, LanguageModelConfig
from transformer_lit.inside import (
    Maps,
    Reference,
    all_heads,
    all_right,
    as_batch,
    attention_maps,
    attention_statistics,
    entropy,
    erasure,
    find_word,
    head_means,
    plot_heads,
    pointing,
    probe,
    rollout,
    without_heads,
    without_parts,
)
from transformer_lit.layers import FeedForward
from transformer_lit.model import Transformer, TransformerConfig
from transformer_lit.multi_head import MultiHeadAttention, record_attention
from transformer_lit.translation import Translator

matplotlib.use("Agg")
ROOT = Path(__file__).resolve().parent.parent
SENTENCES = ["a cat, it sat", "the dog saw it", "no"]
TRANSLATIONS = ["猫", "狗 7", "not at all"]
PAIRS = list(zip(SENTENCES, TRANSLATIONS, strict=True))


@cache
def translator(seed: int = 0, norm_first: bool = False) -> Translator:
    """Return a translator with random weights."""
    config = TransformerConfig(
        260, d_model=8, n_heads=2, d_ff=8, n_layers=2, norm_first=norm_first, dropout=0.0
    )
    return Translator(random_model(config, seed), Tokenizer.train([], 260))


def some_batch(config: TransformerConfig, seed: int, b: int = 3) -> Batch:
    """Draw sentence pairs of several lengths, as a batch has them."""
    numbers = torch.Generator().manual_seed(seed)

    def row(begin: list[int], size: int) -> list[int]:
        n = int(torch.randint(1, 5, (), generator=numbers))
        return [*begin, *torch.randint(4, size, (n,), generator=numbers).tolist(), EOS]

    src = pad([row([], config.vocab_size) for _ in range(b)])
    return Batch(src, pad([row([BOS], config.target_size) for _ in range(b)]))


def logits(model, batch):
    with torch.inference_mode():
        return model(batch.src, batch.tgt_in)


@settings(max_examples=10)
@given(configs(), seeds, st.data())
def test_without_heads_is_zeroed_columns_of_the_output_projection(config, seed, data):
    """And afterwards, the model is whole."""
    model, batch = random_model(config, seed), some_batch(config, seed)
    heads = all_heads(model)
    assert len(set(heads)) == 3 * config.n_layers * config.n_heads
    gone = data.draw(st.sets(st.sampled_from(heads)))
    by_hand, k = copy.deepcopy(model), config.d_model // config.n_heads
    for name, i in gone:
        by_hand.get_submodule(name).out_proj.weight.data[:, i * k : (i + 1) * k] = 0
    before = logits(model, batch)
    with without_heads(model, gone):
        close(logits(model, batch), logits(by_hand, batch))
    assert logits(model, batch).equal(before)


def test_heads_may_be_wider_than_their_share():
    """As in the language models, where a head has a width of its own."""
    config = LanguageModelConfig.llama(
        20, d_model=12, n_heads=3, d_k=10, n_kv_heads=1, d_ff=8, n_layers=1
    )
    model, ids = LanguageModel(config).eval(), torch.tensor([[1, 5, 6]])
    by_hand = copy.deepcopy(model)
    name, i = all_heads(model)[1]
    by_hand.get_submodule(name).out_proj.weight.data[:, 10 * i : 10 * (i + 1)] = 0
    with torch.inference_mode(), without_heads(model, [(name, i)], {name: torch.zeros(30)}):
        close(model(ids), by_hand(ids))


def test_the_model_is_whole_again_after_an_error():
    model, batch = translator().model, as_batch(translator(), [("a", "b")])
    before = logits(model, batch)
    with pytest.raises(RuntimeError, match="stop"), without_heads(model, all_heads(model)):
        raise RuntimeError("stop")
    with pytest.raises(RuntimeError, match="stop"), without_parts(model, {"encoder.layers.0"}):
        raise RuntimeError("stop")
    assert logits(model, batch).equal(before)


@settings(max_examples=10)
@given(configs(), seeds)
def test_head_means_are_those_of_the_real_positions(config, seed):
    """Each sentence alone, without padding: the mean over all their positions together."""
    model, batch = random_model(config, seed), some_batch(config, seed)
    rows = []
    for src, tgt in zip(batch.src, batch.tgt, strict=True):
        src, tgt = src[src != PAD][None], tgt[tgt != PAD][None]
        seen = {}
        hooks = [
            layer.out_proj.register_forward_pre_hook(
                lambda _, inputs, name=name, seen=seen: seen.update({name: inputs[0][0]})
            )
            for name, layer in model.named_modules()
            if isinstance(layer, MultiHeadAttention)
        ]
        logits(model, Batch(src, tgt))
        for hook in hooks:
            hook.remove()
        rows.append(seen)
    means = head_means(model, batch)
    assert set(means) == set(rows[0]) == {name for name, _ in all_heads(model)}
    for name, mean in means.items():
        close(mean, torch.cat([row[name] for row in rows]).mean(dim=0))


def test_a_mean_stands_in_for_its_own_head_alone():
    model, batch = translator().model, as_batch(translator(), PAIRS)
    means, name = head_means(model, batch), "decoder.layers.1.cross_attention"
    seen = []
    layer = model.get_submodule(name).out_proj
    hooks = [layer.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))]
    logits(model, batch)
    with without_heads(model, {(name, 1)}, means):
        hooks.append(layer.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0])))
        logits(model, batch)
    for hook in hooks:
        hook.remove()
    whole, changed = seen[0], seen[-1]
    assert changed[..., :4].equal(whole[..., :4]) and not changed.equal(whole)
    close(changed[..., 4:], means[name][4:].expand_as(changed[..., 4:]))


@pytest.mark.parametrize(
    ("heads", "means", "message"),
    [
        ({("encoder.layers.0.self_attention", 2)}, None, "no head"),
        ({("encoder.layers.0.self_attention", -1)}, None, "no head"),
        ({("encoder.layers.0", 0)}, None, r"all_heads\(model\) lists them"),
        ({("encoder.layers.0.self_attention", 0)}, {}, "no means for encoder.layers.0"),
    ],
)
def test_heads_that_are_not_there_are_refused(heads, means, message):
    with (
        pytest.raises(ValueError, match=message),
        without_heads(translator().model, heads, means),
    ):
        pass


def test_means_of_another_size_are_refused():
    """A single number would be put in everywhere, any other fail in the middle of a pass."""
    name = "encoder.layers.0.self_attention"
    for size in (1, 4):
        with (
            pytest.raises(ValueError, match="not those of this model"),
            without_heads(translator().model, {(name, 0)}, {name: torch.zeros(size)}),
        ):
            pass


@pytest.mark.parametrize("heads", [("encoder.layers.0.self_attention", 1), ["decoder"]])
def test_a_head_that_is_given_alone_is_refused(heads):
    """In a list whose items the check of annotations in the tests does not see."""

    class Items(list):
        def __len__(self):
            return 0

    with (
        pytest.raises(ValueError, match=r"pairs such as \(name, 0\), in a list, not"),
        without_heads(translator().model, Items(heads)),
    ):
        pass


def test_no_hook_is_left():
    """Not after an error, a wrong name among right ones, or one block in another."""
    model, name = translator().model, "encoder.layers.0.self_attention"
    head, other = (name, 0), (name, 1)

    def hooks() -> int:
        return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())

    assert hooks() == 0
    with pytest.raises(KeyError), without_heads(model, {head}), without_heads(model, {head, other}):
        assert hooks() == 2
        raise KeyError
    for context in (
        without_heads(model, [head, ("encoder.layers.9.self_attention", 0)]),
        without_parts(model, ["encoder.layers.0", "encoder.layers.9"]),
    ):
        with pytest.raises(ValueError, match=r"layers\.9"), context:
            pass
    assert hooks() == 0


def test_one_block_in_another():
    """Heads add up, in the order of the blocks; leaving the inner one gives the outer one back."""
    model, batch = translator().model, as_batch(translator(), PAIRS)
    first, second = all_heads(model)[:2]
    with without_heads(model, {first, second}):
        both = logits(model, batch)
    with without_heads(model, {first}):
        one = logits(model, batch)
        with without_heads(model, {second}):
            close(logits(model, batch), both)
        assert logits(model, batch).equal(one)


def test_a_model_in_training_mode_is_refused():
    own = copy.copy(translator())
    own.model = copy.deepcopy(own.model).train()
    batch = as_batch(own, PAIRS)
    for use in (
        lambda: all_right(own.model, batch),
        lambda: head_means(own.model, batch),
        lambda: erasure(own.model, batch),
        lambda: attention_maps(own, ["a"], ["b"]),
        lambda: attention_maps(own, ["a"]),
    ):
        with pytest.raises(ValueError, match=r"training mode.*call model\.eval\(\)"):
            use()


@settings(max_examples=4)
@given(st.booleans())
def test_a_skipped_layer_hands_on_and_a_cut_branch_adds_nothing(norm_first):
    own = translator(1, norm_first)
    model, batch = own.model, as_batch(own, PAIRS)
    shorter = copy.deepcopy(model)
    del shorter.encoder.layers[0], shorter.decoder.layers[1]
    with without_parts(model, {"encoder.layers.0", "decoder.layers.1"}):
        close(logits(model, batch), logits(shorter, batch))
    for name, part in model.named_modules():
        if isinstance(part, MultiHeadAttention | FeedForward):
            silent = copy.deepcopy(model)
            last = silent.get_submodule(name)
            last = last.out_proj if isinstance(part, MultiHeadAttention) else last.linear2
            for p in last.parameters():
                p.data.zero_()
            with without_parts(model, {name}):
                close(logits(model, batch), logits(silent, batch))


def test_a_part_that_is_given_alone_is_refused():
    with (
        pytest.raises(TypeError, match=r"such as \{'encoder.layers.0'\}"),
        without_parts(translator().model, "encoder.layers.0"),
    ):
        pass


@pytest.mark.parametrize("norm_first", [False, True])
def test_parts_and_heads_are_gone_word_by_word_too(norm_first):
    """With the cache of the decoder, as a search reads it."""
    own = translator(2, norm_first)
    model, batch = own.model, as_batch(own, PAIRS)
    memory, mask = model.encode(batch.src)
    cache, steps = model.new_cache(), []
    with (
        torch.no_grad(),
        without_parts(model, {"decoder.layers.0", "decoder.layers.1.feed_forward"}),
        without_heads(model, {("decoder.layers.1.self_attention", 1)}),
    ):
        for i in range(batch.tgt_in.size(1)):
            steps.append(model.decode(batch.tgt_in[:, i : i + 1], memory, mask, cache))
        real = batch.gold != PAD
        close(torch.cat(steps, dim=1)[real], model.decode(batch.tgt_in, memory, mask)[real])


@pytest.mark.parametrize("name", ["encoder", "encoder.layers.7", "decoder.layers.0.residual1", ""])
def test_other_parts_are_refused(name):
    with (
        pytest.raises(ValueError, match=f"called {name!r}"),
        without_parts(translator().model, {"encoder.layers.0", name}),
    ):
        pass


@settings(max_examples=10)
@given(configs(), seeds, st.sets(st.integers(0, 2)))
def test_all_right_says_what_greedy_search_would_write(config, seed, spoilt):
    """A reference that greedy search wrote is right, another is not, wherever it differs."""
    model, batch = random_model(config, seed), some_batch(config, seed)
    with torch.no_grad():
        model.output.weight[EOS] *= 3
    written = [h.ids[:3] for h in greedy_search(model, batch.src, 4)]
    ended = [h.ids for h in greedy_search(model, batch.src, 4)]
    for i in spoilt:
        place = i % (len(written[i]) or 1)
        begun, rest = written[i][:place], written[i][place:]
        written[i] = [*begun, 4 if rest != [4] else 5, *rest]
    target = pad([[BOS, *ids, EOS] for ids in written])
    found = all_right(model, Batch(batch.src, target)).tolist()
    assert found == [ids == w and len(ids) < 4 for ids, w in zip(ended, written, strict=True)]


def test_all_right_by_hand():
    """Wrong at one place of one sentence. Padding does not count, and is never written."""

    class Copies(Transformer):
        def forward(self, src, tgt):
            return torch.nn.functional.one_hot(src, 9).float() + 2 * torch.eye(9)[[PAD, BOS]].sum(0)

    model = Copies(TransformerConfig.tiny(9)).eval()

    gold = torch.tensor([[5, 6, EOS, PAD], [5, 6, 7, EOS], [5, EOS, PAD, PAD]])
    says = torch.tensor([[5, 6, EOS, 8], [5, 6, 8, EOS], [5, EOS, 4, 4]])
    begun = torch.cat([torch.full((3, 1), BOS), gold], dim=1)
    found = all_right(model, Batch(says, begun))
    assert found.tolist() == [True, False, True]


@given(seeds, sizes, st.integers(1, 5), st.integers(1, 8))
def test_entropy_is_that_of_the_library(seed, b, t, s):
    weights = random_tensor(seed, b, t, s).mul(3).softmax(dim=-1)
    found = entropy(weights)
    close(found, torch.distributions.Categorical(probs=weights).entropy())
    assert (found.exp() < s + 1e-4).all()
    close(entropy(torch.full((s,), 1 / s)), math.log(s))
    assert entropy(torch.eye(s)).abs().max() == 0  # 0 log 0 is 0


def test_maps_are_those_of_each_sentence_alone():
    """Padded to the longest, and 0 where there is none; the labels fit."""
    own = translator()
    together = attention_maps(own, SENTENCES, TRANSLATIONS)
    assert set(together) == {"encoder", "decoder", "cross"}
    source, target = own.tokenizers
    for b, pair in enumerate(PAIRS):
        alone = as_batch(own, [pair])
        with torch.inference_mode(), record_attention(own.model) as layers:
            own.model(alone.src, alone.tgt_in)
        for kind, maps in together.items():
            stack, of = ("decoder", "cross") if kind == "cross" else (kind, "self")
            name = f"{stack}.layers.{{}}.{of}_attention"
            t, s = len(maps.queries[b]), len(maps.keys[b])
            for n in range(2):
                close(maps.weights[b, n, :, :t, :s], layers[name.format(n)].weights[0])
            assert maps.weights[b, :, :, t:].abs().sum() == 0
            assert maps.weights[b, :, :, :, s:].abs().sum() == 0
        read = [*source.pieces(source.encode(pair[0])), "<eos>"]
        written = [*target.pieces(target.encode(pair[1])), "<eos>"]
        assert together["encoder"].queries[b] == together["encoder"].keys[b] == read
        assert together["cross"].queries[b] == written and together["cross"].keys[b] == read
        assert together["decoder"].queries[b] == ["<bos>", *written[:-1]]
        assert together["decoder"].keys[b] == together["decoder"].queries[b]


def test_maps_of_the_models_own_translation():
    """They agree with Translator.align, which writes it too."""
    own = Translator.dates()
    sentences = ["Saturday, November 28, 2026", "3 May 1999"]
    maps = attention_maps(own, sentences)["cross"]
    for b, sentence in enumerate(sentences):
        aligned = own.align(sentence)
        assert (maps.queries[b], maps.keys[b]) == (aligned.target, aligned.source)
        t, s = len(aligned.target), len(aligned.source)
        close(maps.weights[b, :, :, :t, :s], aligned.weights)


def test_the_models_own_tokens_are_read(monkeypatch):
    """Also none, or bytes that are no text: it wrote them, so they need not be cut from a text."""
    own = translator()
    for ids in ([], [7, 8], [200, 201]):
        found = [Hypothesis(ids, 0.0)] * 2
        monkeypatch.setattr(
            "transformer_lit.inside.greedy_search", lambda model, src, found=found: found
        )
        maps = attention_maps(own, ["a cat", "no"])
        written = own.tokenizers[1].pieces([*ids, EOS])
        assert maps["cross"].queries == [written] * 2
        assert maps["decoder"].queries == [["<bos>", *written[:-1]]] * 2
        close(maps["cross"].weights.sum(dim=-1), torch.ones(2, 2, 2, len(ids) + 1))


def test_what_has_no_maps_is_refused():
    own = translator()
    with pytest.raises(ValueError, match="not empty"):
        attention_maps(own, [])
    with pytest.raises(ValueError, match="not empty"):
        attention_maps(own, ["a", " "], ["b", "c"])
    with pytest.raises(TypeError, match="a list of texts"):
        attention_maps(own, "a cat")
    with pytest.raises(ValueError, match="2 sentences, but 1 translations"):
        attention_maps(own, ["a", "b"], ["c"])
    other = copy.copy(own)
    other.model = torch.nn.Linear(2, 2)
    with pytest.raises(TypeError, match=r"a Linear has no heads.*Translator\.align"):
        attention_maps(other, ["a"])


def test_statistics_by_hand():
    """Two sentences of 3 and 2 tokens; one layer, one head; padding must not count."""
    weights = torch.zeros(2, 1, 1, 3, 3)
    weights[0, 0, 0] = torch.tensor([[1.0, 0.0, 0.0], [0.5, 0.5, 0.0], [0.0, 0.25, 0.75]])
    weights[1, 0, 0, :2] = torch.tensor([[0.0, 1.0, 0.0], [0.0, 1.0, 0.0]])
    keys = [["<bos>", ",", "a"], ["5", "␣"]]
    found = attention_statistics(Maps(weights, keys, keys))
    third = -(0.25 * math.log(0.25) + 0.75 * math.log(0.75))
    expected = {
        "places": (1 + 2 + math.exp(third) + 1 + 1) / 5,
        "distance": (0 + 0.5 + 0.25 + 1 + 0) / 5,
        "previous": (0 + 0.5 + 0.25 + 0 + 0) / 5,
        "same": (1 + 0.5 + 0.75 + 0 + 1) / 5,
        "next": (0 + 0 + 0 + 1 + 0) / 5,
        "special": (1 + 0.5 + 0 + 0 + 0) / 5,
        "punctuation": (0 + 0.5 + 0.25 + 1 + 1) / 5,
    }
    assert set(found) == set(expected)
    for name, value in expected.items():
        close(found[name], [[value]])


def test_statistics_of_a_model_are_shares():
    for maps in attention_maps(translator(), SENTENCES, TRANSLATIONS).values():
        found = attention_statistics(maps)
        for name, values in found.items():
            assert values.shape == (2, 2)
            if name not in ("places", "distance"):
                assert (values >= 0).all() and (values <= 1 + 1e-5).all()
        assert (found["places"] >= 1 - 1e-5).all()
        near = found["previous"] + found["same"] + found["next"]
        assert (near <= 1 + 1e-5).all()


@settings(max_examples=10)
@given(seeds, st.integers(2, 4), st.integers(1, 6))
def test_a_probe_reads_what_is_there_and_not_what_is_not(seed, n, d):
    """Classes along a direction are read; labels that have nothing to do with it are not."""
    y = torch.randint(n, (60 * n,), generator=torch.Generator().manual_seed(seed))
    y[:n] = torch.arange(n)  # each class is there
    x = torch.cat([torch.nn.functional.one_hot(y, n), random_tensor(seed, len(y), d)], dim=1)
    x = 5 * x + 100 * torch.arange(n + d)  # far from 0: it has a bias
    half = len(y) // 2
    assert probe(x[:half], y[:half], x[half:], y[half:]) > 0.95
    noise = random_tensor(seed + 1, len(y), d)
    assert probe(noise[:half], y[:half], noise[half:], y[half:]) < 1 / n + 0.35


@given(seeds, st.integers(1, 4))
def test_a_probe_is_ridge_regression(seed, d):
    """By gradient descent's fixed point: the normal equations, solved by least squares."""
    x, y = random_tensor(seed, 12, d), torch.arange(12) % 3
    test_x, test_y = random_tensor(seed + 1, 9, d), torch.arange(9) % 3
    z = torch.cat([(x - x.mean(0)) / x.std(0, correction=0), torch.ones(12, 1)], dim=1).double()
    ridge = 2.5
    # ridge regression is least squares with sqrt(ridge) times the identity as further rows
    rows = torch.cat([z, ridge**0.5 * torch.eye(d + 1, dtype=torch.float64)])
    right = torch.cat([torch.nn.functional.one_hot(y, 3).double(), torch.zeros(d + 1, 3)])
    weights = torch.linalg.lstsq(rows, right.double()).solution
    w = torch.cat([(test_x - x.mean(0)) / x.std(0, correction=0), torch.ones(9, 1)], dim=1).double()
    expected = ((w @ weights).argmax(dim=1) == test_y).double().mean().item()
    assert probe(x, y, test_x, test_y, ridge=ridge) == pytest.approx(expected)


def test_a_probe_is_judged_on_the_others():
    x, y = random_tensor(0, 30, 3), torch.arange(30) % 2
    x[:, 0] = 5.0 * y
    assert probe(x, y, x, y) == 1.0 and probe(x, y, x, 1 - y) == 0.0


def test_a_probe_has_a_bias():
    """One class is far more frequent, and the vectors say nothing."""
    x, y = torch.zeros(10, 2), torch.tensor([1] * 9 + [0])
    assert probe(x, y, x, y) == 0.9


def test_a_constant_number_does_not_disturb_a_probe():
    y = torch.tensor([0, 1, 0, 1])
    x = torch.stack([y.float(), torch.ones(4)], dim=1)
    assert probe(x, y, x, y) == 1.0


def test_a_probe_needs_data_and_a_penalty():
    x, y = torch.ones(2, 3), torch.tensor([0, 1])
    with pytest.raises(ValueError, match="others to be judged on"):
        probe(x, y, x[:0], y[:0])
    with pytest.raises(ValueError, match="vectors to fit on"):
        probe(x[:0], y[:0], x, y)
    for ridge in (0, -1.0, math.nan):
        with pytest.raises(ValueError, match=f"ridge must be above 0, not {ridge}"):
            probe(x, y, x, y, ridge=ridge)


def test_a_probe_takes_classes_of_any_whole_type():
    y = torch.tensor([0, 1, 0, 1])
    x = y[:, None].float()
    for of in (torch.int32, torch.int16, torch.int8):
        assert probe(x, y.to(of), x.double(), y.to(of)) == 1.0


def test_a_probe_wants_a_class_for_each_vector():
    """A single one would be compared with all."""
    x, y = torch.ones(3, 2), torch.tensor([0, 1, 0])
    for uneven in ((x, y[:2], x, y), (x, y, x, y[:1])):
        with pytest.raises((ValueError, TypeCheckError), match=r"3 vectors, but|n=|m="):
            probe(*uneven)


@settings(max_examples=10)
@given(configs(), seeds)
def test_erasure_by_hand(config, seed):
    """One source token and one target token at a time."""
    model, batch = random_model(config, seed), some_batch(config, seed)
    found = erasure(model, batch)
    whole = logits(model, batch).log_softmax(dim=-1)
    for b, t, s in ((0, 0, 0), (1, 1, 1), (2, 0, 0)):
        src = batch.src.clone()
        src[b, s] = PAD
        hidden = logits(model, Batch(src, batch.tgt)).log_softmax(dim=-1)
        gold = batch.gold[b, t]
        close(found[b, t, s], whole[b, t, gold] - hidden[b, t, gold])
    assert found[(batch.gold == PAD)[:, :, None].expand_as(found)].abs().sum() == 0
    assert found[(batch.src == PAD)[:, None].expand_as(found)].abs().sum() == 0


@given(seeds, sizes, st.integers(1, 3), st.integers(1, 3), st.integers(1, 5))
def test_rollout_multiplies_layers(seed, b, n, h, s):
    weights = random_tensor(seed, b, n, h, s, s).softmax(dim=-1)
    found = rollout(weights)
    close(found.sum(dim=-1), torch.ones(b, s))
    expected = torch.eye(s).expand(b, s, s)
    for i in range(n):
        expected = (weights[:, i].mean(dim=1) / 2 + torch.eye(s) / 2) @ expected
    close(found, expected)
    identity = torch.eye(s).expand(b, n, h, s, s)
    close(rollout(identity), torch.eye(s).expand(b, s, s))


@pytest.mark.parametrize(
    ("pieces", "word", "places"),
    [
        (["the", "␣cat", "␣and", "␣it"], "it", [3]),
        (["wa", "it", ",", "␣it", "."], "it", [3]),  # not within a word
        (["␣an", "im", "al", "␣it"], "animal", [0, 1, 2]),
        (["it", "␣is", "␣it"], "it", [0]),  # the first
        (["the", "␣", "c", "at"], "cat", [2, 3]),
        (["a", ".", "b"], "a.b", [0, 1, 2]),
        (["it", "_", "is"], "it", [0]),  # a line under it is no letter
    ],
)
def test_find_word(pieces, word, places):
    assert find_word(pieces, word) == places


def test_it_is_not_found_in_wait():
    assert find_word(["wa", "it", ",", "␣it"], "it") == [3]


def test_a_word_that_is_not_there_is_named():
    with pytest.raises(ValueError, match=r"no word 'dog' in 'the cat'"):
        find_word(["the", "␣cat"], "dog")


def test_pointing_by_hand():
    """Weights on a word's tokens add up; those from them are averaged."""
    keys = ["cat", "␣saw", "␣mi", "lk", "␣i", "t"]
    weights = torch.zeros(1, 1, 2, 6, 6)
    weights[0, 0, 0, 4] = torch.tensor([0.1, 0.2, 0.3, 0.4, 0.0, 0.0])
    weights[0, 0, 0, 5] = torch.tensor([0.3, 0.4, 0.1, 0.0, 0.0, 0.2])
    weights[0, 0, 1, 4:, 0] = 1.0
    reference = Reference("cat saw milk it", "it", "milk", "cat")
    points = pointing(Maps(weights, [keys], [keys]), [reference])
    close(points.right, [[[0.4, 0.0]]])
    close(points.wrong, [[[0.2, 1.0]]])
    close(points.other, [[[0.3, 0.0]]])


def test_pointing_on_a_model():
    told = "a cat, it sat"
    references = [Reference(told, "it", "cat", "a"), Reference(told, "sat", "a", "cat")]
    maps = attention_maps(translator(), [r.sentence for r in references], ["x", "y"])["encoder"]
    points = pointing(maps, references)
    assert points.right.shape == points.wrong.shape == points.other.shape == (2, 2, 2)
    with pytest.raises(ValueError, match="1 references for the maps of 2 sentences"):
        pointing(maps, references[:1])


def test_a_batch_in_order_and_in_normal_form():
    own = translator()
    batch = as_batch(own, [(" cafe\u0301 ", "b"), ("a", "longer")])
    assert own.tokenizers[0].decode(batch.src[0].tolist()) == "café"
    assert own.tokenizers[1].decode(batch.tgt[1].tolist()) == "longer"
    assert batch.tgt[:, 0].tolist() == [BOS, BOS] and batch.src[1].tolist()[1] == EOS
    for pairs in ([], [("a", " ")]):
        with pytest.raises(ValueError, match="not empty"):
            as_batch(own, pairs)


def test_all_heads_are_drawn():
    maps = attention_maps(translator(), SENTENCES[:1], TRANSLATIONS[:1])["cross"]
    fig = plot_heads(maps.weights[0], maps.queries[0], maps.keys[0], "C")
    side = plt.rcParams["axes.titlelocation"]  # the book's style, if a test before has set it
    assert [ax.get_title(side) for ax in fig.axes] == ["C1.1", "C1.2", "C2.1", "C2.2"]
    for ax, shown in zip(fig.axes, maps.weights[0].flatten(0, 1), strict=True):
        close(torch.tensor(ax.images[0].get_array()), shown)
    labels = [label.get_text() for label in fig.axes[2].get_xticklabels()]
    assert labels == maps.keys[0] and re.fullmatch("<eos>", labels[-1])
    plt.close("all")


def test_heads_of_a_single_layer():
    layer = randomise(MultiHeadAttention(6, 3), 0)
    assert all_heads(torch.nn.ModuleDict({"own": layer})) == [("own", 0), ("own", 1), ("own", 2)]


def test_ablation_is_recorded_and_taken_up_again(tmp_path, monkeypatch, capsys):
    """tools/ablate.py on a few dates and heads: nothing is left out, or measured twice."""
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    ablate = importlib.import_module("ablate")
    data = tmp_path / "pairs.tsv"
    sentences = ["5 May 1999", "June 2222", "Fri, 10 Aug 1832"]
    targets = ["1999年5月5日", "2222年6月", "1832年8月10日周五"]
    rows = [f"{pair[0]}\t{pair[1]}\n" for pair in zip(sentences, targets, strict=True)]
    data.write_text("".join(rows), encoding="utf-8")
    run = str(files("transformer_lit") / "dates")
    call = ["ablate.py", run, str(data), "try", "--out", str(tmp_path)]
    call += ["--means", "--together", "3"]
    some = all_heads(Translator.dates().model)[::6]
    monkeypatch.setattr(ablate, "all_heads", lambda model: some)
    monkeypatch.setattr(sys, "argv", call)
    ablate.main()
    lines = capsys.readouterr().out.splitlines()
    record = json.loads((tmp_path / "try" / "ablation.json").read_text(encoding="utf-8"))
    assert record["whole"] == 100 and record["pairs"] == 3
    assert set(record["heads"]) == {f"{n}.{i}" for n, i in some}
    assert all(set(each) == {"zero", "mean"} for each in record["heads"].values())
    assert len(record["parts"]) == 4 + 2 * 2 + 2 * 3 and set(record["together"]) == {"2", "3"}
    assert record["parts"]["decoder.layers.1.cross_attention"] < 50
    assert len(lines) == 1 + 14 + 2 * len(some) + 2
    table = (tmp_path / "try" / "ablation.csv").read_text(encoding="utf-8").splitlines()
    assert len(table) == 1 + len(lines)
    ablate.main()
    assert not capsys.readouterr().out
    monkeypatch.setattr(sys, "argv", [*call, "--pairs", "2"])
    with pytest.raises(SystemExit, match="give another NAME"):
        ablate.main()
