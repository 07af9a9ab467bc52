"""Text in, text out."""

from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support import random_model, seeds

from transformer_lit.data import EOS, Tokenizer, date_pairs
from transformer_lit.model import TransformerConfig
from transformer_lit.translation import Alignment, Translator, exact_match

SENTENCES = ["28 November 2026", "", "Q3 2000", " ", "Saturday, 1 May 1999", "<pad>", "日"]


@cache
def tokenizer() -> Tokenizer:
    """Return a tokeniser of bytes alone."""
    return Tokenizer.train([], 260)


def translator(seed: int = 0, eos: float = 30.0) -> Translator:
    """Return a translator with random weights: what it says has no sense, but is determined.

    The more the row of EOS in the last matrix is multiplied by, the sooner it comes.
    """
    config = TransformerConfig(260, d_model=8, n_heads=2, d_ff=8, n_layers=2, tie="none")
    model = random_model(config, seed).train()
    with torch.no_grad():
        model.output.weight[EOS] *= eos
    return Translator(model, tokenizer())


@settings(max_examples=5)
@given(seeds, st.permutations(SENTENCES), st.integers(1, 100), st.sampled_from([1, 2]))
def test_translations_come_in_order(seed, sentences, max_tokens, beam):
    """F10: each as if it were alone, in chunks of any size; an empty one stays empty."""
    own = translator(seed)
    alone = [own.translate([sentence], beam=beam) for sentence in sentences]
    assert [[t] for t in own.translate(sentences, max_tokens=max_tokens, beam=beam)] == alone
    assert alone[sentences.index("")] == [""]


@pytest.mark.parametrize("beam", [1, 2])
def test_a_neighbour_does_not_lengthen_a_translation(beam):
    """F10: one that finds no end stops 50 tokens after its own source's length."""
    own = translator(eos=0.0)
    short, long = "a", "a much longer one"
    assert own.translate([short, long], beam=beam)[:1] == own.translate([short], beam=beam)


@pytest.mark.xfail(strict=True, raises=ZeroDivisionError, reason="divided by before it is checked")
def test_a_beam_of_nothing_is_refused():
    """As `beam_search` refuses it."""
    with pytest.raises(ValueError, match="beam must be at least 1, not 0"):
        translator().translate(["a"], beam=0)


def test_no_sentences_have_no_translations():
    """An empty list goes in and comes out."""
    assert translator().translate([]) == []
    assert translator().translate(["", ""]) == ["", ""]


def test_progress_is_drawn_only_if_asked_for(capfd):
    """It must not end up in a page or a pipe."""
    translator().translate(["a", ""])
    assert capfd.readouterr() == ("", "")
    translator().translate(["a", ""], progress=True)
    assert "2/2" in capfd.readouterr().err


def test_a_translator_evaluates():
    """F31: whatever mode its model came in."""
    assert not translator().model.training


@settings(max_examples=10)
@given(seeds, st.sampled_from([s for s in SENTENCES if s]))
def test_an_alignment_has_a_row_for_each_target_token(seed, sentence):
    """And a column for each source token, ends of sentence included; rows add up to 1."""
    own = translator(seed)
    alignment = own.align(sentence)
    assert isinstance(alignment, Alignment)
    assert alignment.source == own.tokenizer.pieces([*own.tokenizer.encode(sentence), EOS])
    assert alignment.target[-1] == "<eos>"
    shape = (2, 2, len(alignment.target), len(alignment.source))
    assert alignment.weights.shape == shape
    torch.testing.assert_close(alignment.weights.sum(-1), torch.ones(shape[:-1]))


def test_nothing_cannot_be_aligned():
    """An empty sentence has no tokens."""
    with pytest.raises(ValueError, match="empty sentence"):
        translator().align("")


def test_a_loaded_translator_is_the_saved_one(tmp_path):
    """With its tokeniser, in a folder that need not be there."""
    own = translator()
    own.save(tmp_path / "new")
    files = ["config.json", "model.safetensors", "tokenizer.json"]
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == files
    loaded = Translator.load(tmp_path / "new")
    assert loaded.translate(SENTENCES) == own.translate(SENTENCES)
    for name in files:
        (tmp_path / "new" / name).rename(tmp_path / "aside")
        with pytest.raises(FileNotFoundError, match=name):
            Translator.load(tmp_path / "new")
        (tmp_path / "aside").rename(tmp_path / "new" / name)


def test_a_tokeniser_larger_than_the_model_is_refused():
    """Its ids would be out of range."""
    large = Tokenizer.train((text for pair in date_pairs(100) for text in pair), 270)
    with pytest.raises(ValueError, match="270 tokens, but the model only 260"):
        Translator(translator().model, large)


def test_exact_match_in_per_cent():
    """Of equal pairs."""
    assert exact_match(["a", "b", "c", "d"], ["a", "b", "c", "x"]) == 75
    assert exact_match(["a"], ["a "]) == 0
    for hypotheses, references in [([], []), (["a"], []), (["a"], ["a", "b"])]:
        with pytest.raises(ValueError, match=f"{len(hypotheses)} hyp.*{len(references)} ref"):
            exact_match(hypotheses, references)
