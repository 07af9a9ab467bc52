"""Text in, text out."""

import sys
from dataclasses import replace
from functools import cache

import pytest
import sacrebleu
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support import random_model, seeds

from transformer_lit.data import EOS, PAD, TokenBatches, Tokenizer, date_pairs
from transformer_lit.decoding import greedy_search
from transformer_lit.model import TransformerConfig, count_parameters
from transformer_lit.training import TrainingConfig
from transformer_lit.translation import (
    DATE_RECIPE,
    Alignment,
    Recipe,
    Translator,
    bleu,
    check_memory,
    exact_match,
    moses_tokens,
    start_training,
    validation_loss,
)

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
    assert alone[sentences.index("")] == alone[sentences.index(" ")] == [""]


@pytest.mark.parametrize("beam", [1, 2])
def test_a_neighbour_does_not_lengthen_a_translation(beam):
    """F10: one that finds no end stops 50 tokens after its own source's length."""
    own = translator(eos=0.0)
    short, long = "a", "a much longer one"
    assert own.translate([short, long], beam=beam)[:1] == own.translate([short], beam=beam)


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
@given(seeds, st.sampled_from([s for s in SENTENCES if s.strip()]))
def test_an_alignment_has_a_row_for_each_target_token(seed, sentence):
    """And a column for each source token, ends of sentence included; rows add up to 1."""
    own = translator(seed)
    alignment = own.align(sentence)
    assert isinstance(alignment, Alignment)
    assert alignment.source == tokenizer().pieces([*tokenizer().encode(sentence), EOS])
    assert alignment.target[-1] == "<eos>"
    shape = (2, 2, len(alignment.target), len(alignment.source))
    assert alignment.weights.shape == shape
    torch.testing.assert_close(alignment.weights.sum(-1), torch.ones(shape[:-1]))


def test_nothing_cannot_be_aligned():
    """Nor can space."""
    for sentence in ("", " "):
        with pytest.raises(ValueError, match="empty sentence"):
            translator().align(sentence)


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
    with pytest.raises(ValueError, match="270 tokens.*260"):
        Translator(translator().model, large)


def test_exact_match_in_per_cent():
    """Of equal pairs."""
    assert exact_match(["a", "b", "c", "d"], ["a", "b", "c", "x"]) == 75
    assert exact_match(["a"], ["a "]) == 0
    for hypotheses, references in [([], []), (["a"], []), (["a"], ["a", "b"])]:
        with pytest.raises(ValueError, match=f"{len(hypotheses)} hyp.*{len(references)} ref"):
            exact_match(hypotheses, references)


def test_bleu_counts_words_or_characters():
    """As the references are written."""
    for text in ("the cat sat on the mat", "我今天看见了一只猫"):
        assert bleu([text], [text])[0] == pytest.approx(100)
    assert "tok:13a" in bleu(["a b c d"], ["a b c d"])[1]
    assert "tok:zh" in bleu(["日"], ["日"])[1]
    score = bleu(["the cat sat on the hat"], ["the cat sat on the mat"])[0]
    assert score == pytest.approx(100 * (5 / 6 * 4 / 5 * 3 / 4 * 2 / 3) ** 0.25)
    with pytest.raises(ValueError, match="0 hypotheses with 1 references"):
        bleu([], ["a"])


# Training


RECIPE = Recipe(
    model={"d_model": 8, "n_heads": 2, "d_ff": 8, "n_layers": 1},
    vocab_size=300,
    max_tokens=200,
    training=TrainingConfig(steps=4, warmup=2, save_every=2, average=2),
)


def test_validation_loss_is_the_mean_over_all_tokens():
    """F36: whatever the batches, and without label smoothing."""
    model, pairs = translator().model, date_pairs(20)
    losses = [
        validation_loss(model, TokenBatches(pairs, tokenizer(), max_tokens))
        for max_tokens in (50, 5000)
    ]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    [batch] = TokenBatches(pairs, tokenizer(), 5000).epoch()
    logits = model(batch.src, batch.tgt_in).flatten(0, 1)
    right = torch.nn.functional.cross_entropy(logits, batch.gold.flatten(), ignore_index=PAD)
    assert losses[1] == pytest.approx(right.item(), rel=1e-5)


def test_a_run_can_be_started_and_taken_up(tmp_path):
    """It ends as one never stopped; its folder is a translator's; it is not overwritten."""
    pairs = date_pairs(60)
    whole, _ = start_training(RECIPE, pairs[10:], pairs[:10])
    whole.train(progress=False)
    with pytest.raises(FileNotFoundError, match="training.pt"):
        start_training(RECIPE, pairs, folder=tmp_path, resume=True)
    stopped, own = start_training(RECIPE, pairs[10:], pairs[:10], folder=tmp_path)
    stopped.config = replace(RECIPE.training, steps=2)
    stopped.train(progress=False)
    with pytest.raises(FileExistsError, match="resume"):
        start_training(RECIPE, pairs, folder=tmp_path)
    resumed, same = start_training(RECIPE, pairs[10:], pairs[:10], folder=tmp_path, resume=True)
    assert resumed.step == 2 and same[0].bpe.to_str() == own[0].bpe.to_str()
    assert same[0] is same[1] and own[0] is own[1]
    resumed.train(progress=False)
    for one, other in zip(resumed.result.parameters(), whole.result.parameters(), strict=True):
        assert one.equal(other)
    assert resumed.log[-1]["validation"] > 0
    assert len(Translator.load(tmp_path).translate(["a", "b"])) == 2


def test_each_language_may_have_a_vocabulary(tmp_path):
    """Learnt from its side alone, kept beside the other, and used for it."""
    pairs = date_pairs(60)
    recipe = replace(RECIPE, joint=False, vocab_size=300)
    trainer, (source, target) = start_training(recipe, pairs, folder=tmp_path)
    for own, texts in zip((source, target), zip(*pairs, strict=True), strict=True):
        assert own.bpe.to_str() == Tokenizer.train(texts, 300).bpe.to_str()
    config = trainer.model.config
    assert (config.vocab_size, config.target_size) == (len(source), len(target))
    assert trainer.model.output.weight is trainer.model.tgt_embedding.tokens.weight
    batch = trainer.batches.make([0])
    assert source.decode(batch.src[0].tolist()) == pairs[0][0]
    assert target.decode(batch.tgt[0].tolist()) == pairs[0][1]
    trainer.train(progress=False)
    loaded = Translator.load(tmp_path)
    assert loaded.tokenizers[1].bpe.to_str() == target.bpe.to_str()
    hypothesis = greedy_search(loaded.model, batch.src)[0]
    assert loaded.translate([pairs[0][0]]) == [target.decode(hypothesis.ids)]
    alignment = loaded.align(pairs[0][0])
    assert alignment.source == source.pieces(batch.src[0].tolist())
    assert alignment.target == target.pieces([*hypothesis.ids, EOS])
    loaded.save(tmp_path / "copy")
    assert Translator.load(tmp_path / "copy").translate(["a"]) == loaded.translate(["a"])
    larger = Tokenizer.train((text for pair in date_pairs(300) for text in pair), 400)
    with pytest.raises(ValueError, match="the tokeniser of the source has"):
        Translator(loaded.model, larger, target)
    with pytest.raises(ValueError, match="the tokeniser of the target has"):
        Translator(loaded.model, source, larger)


def test_the_score_of_the_papers():
    """Lower case, Moses tokens, nothing cut by sacreBLEU: worked out with its own functions."""
    hypotheses = ["Ein Hund läuft, der Ball rollt.", "Zwei Männer stehen auf der Straße."]
    references = ["ein Hund läuft; der Ball rollt!", "Zwei „Männer“ stehen auf der Straße."]
    cut = [
        ["ein hund läuft , der ball rollt .", "zwei männer stehen auf der straße ."],
        ["ein hund läuft ; der ball rollt !", "zwei &quot; männer &quot; stehen auf der straße ."],
    ]
    expected = sacrebleu.corpus_bleu(cut[0], [cut[1]], tokenize="none", force=True).score
    score, signature = bleu(hypotheses, references, moses="de")
    assert score == pytest.approx(expected) and "tok:none" in signature
    assert moses_tokens(references, "de") == cut[1]


def test_without_sacremoses_the_extra_is_named(monkeypatch):
    """And not a traceback of imports."""
    monkeypatch.setitem(sys.modules, "sacremoses", None)
    with pytest.raises(ImportError, match=r"transformer-lit\[moses\]"):
        bleu(["a"], ["a"], moses="de")


def test_nothing_cannot_be_trained_on(tmp_path):
    """Nor is a folder begun."""
    with pytest.raises(ValueError, match="no sentence pairs"):
        start_training(RECIPE, [], folder=tmp_path / "new")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("name", ["training.pt", "model.safetensors", "config.json"])
def test_no_new_run_overwrites_what_is_there(tmp_path, name):
    """Be it of a run, or a model from elsewhere; the way out is one that works."""
    (tmp_path / name).write_text("before")
    with pytest.raises(FileExistsError, match=name) as caught:
        start_training(DATE_RECIPE, date_pairs(20), folder=tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert (tmp_path / name).read_text() == "before"
    assert ("--resume" in str(caught.value)) == (name == "training.pt")


def test_a_vocabulary_that_cannot_be_written_is_told(tmp_path):
    """As an OSError with its name, like all other files."""
    (tmp_path / "tokenizer.json.new").mkdir()
    with pytest.raises(OSError, match="cannot write .*tokenizer.json"):
        start_training(DATE_RECIPE, date_pairs(20), folder=tmp_path)


def test_a_model_larger_than_the_memory_is_refused():
    """Before it is built, which could end all programs on the machine."""
    config = TransformerConfig(400)
    check_memory(config, 5)
    weights = count_parameters(config)["total"]
    with pytest.raises(MemoryError, match=f"{weights:,} weights .* this machine has"):
        check_memory(config, 10**6)


def test_the_measures_that_differ_are_named(tmp_path):
    recipe = replace(DATE_RECIPE, training=TrainingConfig(steps=1))
    trainer, _ = start_training(recipe, date_pairs(20), folder=tmp_path)
    trainer.train(progress=False)
    other = replace(recipe, model=recipe.model | {"n_layers": 3, "dropout": 0.5})
    says = r"other measures \(n_layers=2, not 3; dropout=0.0, not 0.5\)"
    with pytest.raises(ValueError, match=says):
        start_training(other, date_pairs(20), folder=tmp_path, resume=True)
