"""Text in, text out."""

import http.client
import io
import json
import random
import subprocess
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import sacrebleu
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from support import random_model, randomise, seeds

import transformer_lit.translation
from transformer_lit.data import (
    BOS,
    EOS,
    PAD,
    TokenBatches,
    Tokenizer,
    date_pairs,
    date_years,
    read_pairs,
)
from transformer_lit.decoding import PackedLinear, beam_search, greedy_search, packed
from transformer_lit.decoding import sample as draw
from transformer_lit.model import Transformer, TransformerConfig, count_parameters
from transformer_lit.recurrent import RecurrentConfig, Seq2Seq
from transformer_lit.training import Trainer, TrainingConfig
from transformer_lit.translation import (
    DATE_RECIPE,
    Alignment,
    Recipe,
    Translation,
    Translator,
    bleu,
    by_length,
    check_memory,
    exact_match,
    load_model,
    moses_tokens,
    recording,
    sentence_bleu,
    start_training,
    unusual_dates,
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


def test_one_text_is_no_list_of_sentences():
    """Its letters would be translated one by one, and nobody told."""
    own = translator()
    for search in (own.translate, own.sample, lambda text: own.n_best(text, 2)):
        for text in ("May 2026", ""):
            with pytest.raises(ValueError, match="a list of sentences"):
                search(text)


@pytest.mark.parametrize("name", ["pad", "bos", "eos"])
def test_a_tokeniser_with_other_special_ids_is_refused(name):
    """The model would take one token for another."""
    config = TransformerConfig(260, d_model=8, n_heads=2, d_ff=8, n_layers=1, **{name: 7})
    given = {"pad": PAD, "bos": BOS, "eos": EOS}[name]
    with pytest.raises(ValueError, match=f"{name} is 7 in the model, {given} in the tokeniser"):
        Translator(random_model(config, 0), tokenizer())


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


def test_no_tokeniser_of_another_model_is_left(tmp_path):
    """Or the next to read the folder would take it for the target's own."""
    own = translator()
    other = Tokenizer.train(["eins zwei drei"], 260)
    Translator(own.model, own.tokenizers[0], other).save(tmp_path)
    own.save(tmp_path)
    source, target = Translator.load(tmp_path).tokenizers
    assert target is source


def test_a_refused_save_leaves_what_is_there(tmp_path):
    """A packed model cannot be saved; the model that was there before can still be read."""
    model = random_model(TransformerConfig(270, d_model=8, n_heads=2, d_ff=8, n_layers=1), 0)
    Translator(model, tokenizer()).save(tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    other = Translator(packed(model), Tokenizer.train(["abc abd"], 262))
    with pytest.raises(ValueError, match="could not be read again"):
        other.save(tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_options_are_refused_whatever_there_is():
    """No sentences, or empty ones, are no reason to accept what is refused elsewhere."""
    for sentences in ([], [""]):
        options_are_refused(translator(), sentences)


def options_are_refused(own: Translator, sentences: list[str]) -> None:
    for ask in (
        lambda: own.translate(sentences, min_len=0),
        lambda: own.n_best(sentences, 2, alpha=99),
        lambda: own.sample(sentences, n=0),
        lambda: own.sample(sentences, temperature=0),
        lambda: own.sample(sentences, top_k=0),
        lambda: own.sample(sentences, top_p=7),
    ):
        with pytest.raises(ValueError, match="must be"):
            ask()


def recurrent(seed: int = 0, attention: bool = True) -> Translator:
    """Return a recurrent translator with random weights that soon says EOS."""
    config = RecurrentConfig(260, d_model=6, dropout=0.0, attention=attention)
    model = randomise(Seq2Seq(config), seed)
    with torch.no_grad():
        model.output.bias[EOS] += 2.0
    return Translator(model, tokenizer())


@settings(max_examples=5)
@given(seeds, st.booleans(), st.sampled_from([1, 3]))
def test_a_recurrent_model_translates_and_is_kept(tmp_path_factory, seed, attention, beam):
    """By the same calls, in order, as if each were alone; its folder tells what it is."""
    own = recurrent(seed, attention)
    alone = [own.translate([sentence], beam=beam)[0] for sentence in SENTENCES]
    assert own.translate(SENTENCES, beam=beam, max_tokens=40) == alone
    folder = tmp_path_factory.mktemp("model")
    own.save(folder)
    assert json.loads((folder / "config.json").read_text())["kind"] == "recurrent"
    loaded = Translator.load(folder)
    assert type(loaded.model) is Seq2Seq and loaded.model.config == own.model.config
    assert loaded.translate(SENTENCES, beam=beam) == alone
    with pytest.raises(ValueError, match="kind 'recurrent'"):
        Transformer.load(folder)


def test_a_loaded_translator_is_ready_to_write(tmp_path):
    """Its matrices lie by columns; those of `load_model` do not, and both are saved alike."""
    own = translator()
    own.save(tmp_path / "own")
    loaded = Translator.load(tmp_path / "own")
    for model, by_columns in ((loaded.model, True), (load_model(tmp_path / "own"), False)):
        assert model.decoder.layers[0].self_attention.in_proj.weight.is_contiguous() != by_columns
    loaded.save(tmp_path / "again")
    files = [tmp_path / name / "model.safetensors" for name in ("own", "again")]
    assert files[0].read_bytes() == files[1].read_bytes()


def test_many_sentences_are_translated_by_packed_weights(monkeypatch):
    """In the same words as few, by a search; and a change of the model between calls is seen."""
    packs = []

    def noted(model):
        packs.append(packed(model))
        return packs[-1]

    monkeypatch.setattr(transformer_lit.translation, "packed", noted)
    own = translator()
    assert own.many == 256
    for write in (
        lambda some: [[(text, 0.0)] for text in own.translate(some)],
        lambda some: own.n_best(some, 2),
    ):
        own.many = len(SENTENCES) + 1
        few = write(SENTENCES)
        assert not packs
        own.many = len(SENTENCES)
        many = write(SENTENCES)
        assert len(packs) == 1 and PackedLinear in map(type, packs.pop().modules())
        for some, others in zip(few, many, strict=True):
            assert [text for text, _ in some] == [text for text, _ in others]
            assert [x for _, x in some] == pytest.approx([x for _, x in others], rel=1e-4)
    with torch.no_grad():
        own.model.output.weight.neg_()
    assert write(SENTENCES) != many
    packs.clear()
    own.sample(SENTENCES)  # each draw hangs on its own sentence alone
    assert not packs


def test_models_of_others_translate_many_sentences():
    """They need not be modules, and a compiled one is as its compiler wants it."""

    class Wrapped:
        def __init__(self, model):
            self.encode, self.decode, self.new_cache = model.encode, model.decode, model.new_cache
            self.config, self.parameters, self.training = model.config, model.parameters, False

        def eval(self):
            return self

    own = translator()
    kept = set(own.model._modules)
    for model in (Wrapped(own.model), torch.compile(own.model, backend="eager")):
        other = Translator(model, own.tokenizers[0])
        other.many = 1
        try:
            found = other.translate(SENTENCES)
        except AttributeError as error:
            pytest.fail(str(error))
        assert found == own.translate(SENTENCES)
    assert set(own.model._modules) == kept


def test_a_folder_tells_its_kind(tmp_path):
    """Without being told, and also if it is that of an older Transformer, which tells none."""
    for own, kind in ((recurrent(), "Seq2Seq"), (translator(), "Transformer")):
        own.save(tmp_path / kind)
        try:
            loaded = load_model(tmp_path / kind)
        except ValueError as error:
            pytest.fail(str(error))
        assert type(loaded).__name__ == kind


@pytest.mark.parametrize("kind", ["convolutional", "Transformer", 1, ["recurrent"], None, {}])
def test_a_model_of_an_unknown_kind_is_refused(tmp_path, kind):
    translator().save(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"kind": kind}))
    with pytest.raises(ValueError, match="config.json is of an unknown kind"):
        load_model(tmp_path)


@pytest.mark.parametrize("text", ["", "[]", "null", "[" * 100_000, '{"kind": "recurrent"}'])
def test_a_broken_configuration_is_named(tmp_path, text):
    recurrent().save(tmp_path)
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ValueError, match="config.json"):
        load_model(tmp_path)


@settings(max_examples=5)
@given(seeds)
def test_a_recurrent_alignment_is_that_of_its_attention(seed):
    """One layer, one head, a row for each target token and a column for each source token."""
    own, sentence = recurrent(seed), "28 November 2026"
    alignment = own.align(sentence)
    src = torch.tensor([[*tokenizer().encode(sentence), EOS]])
    ids = greedy_search(own.model, src)[0].ids
    assert alignment.target == tokenizer().pieces([*ids, EOS])
    expected = own.model.align(src, torch.tensor([[BOS, *ids]]))
    assert alignment.weights.shape == (1, 1, len(ids) + 1, src.size(1))
    torch.testing.assert_close(alignment.weights[0], expected)
    torch.testing.assert_close(alignment.weights.sum(-1), torch.ones(1, 1, len(ids) + 1))


def test_without_attention_there_is_nothing_to_align():
    with pytest.raises(ValueError, match="attention=False"):
        recurrent(attention=False).align("May 2026")


def test_a_recurrent_model_is_trained_kept_and_taken_up(tmp_path):
    """By the same trainer: stopped and resumed, it ends with the weights of a whole run."""

    def begin(folder=None, steps=6):
        torch.manual_seed(0)
        batches = TokenBatches(date_pairs(60), tokenizer(), 200)
        config = TrainingConfig(steps=steps, warmup=2, average=2, save_every=2)
        model = Seq2Seq(RecurrentConfig(260, d_model=8))
        return Trainer(model, batches, config, folder=folder)

    whole = begin()
    whole.train(progress=False)
    begin(tmp_path, steps=4).train(progress=False)
    resumed = begin(tmp_path)
    assert resumed.resume() == 4
    resumed.train(progress=False)
    assert type(resumed.result) is Seq2Seq and resumed.result is not resumed.model
    loaded = load_model(tmp_path)
    for one, two, three in zip(
        whole.result.parameters(), resumed.result.parameters(), loaded.parameters(), strict=True
    ):
        assert one.equal(two) and one.equal(three)


makers = st.sampled_from([translator, recurrent])


@settings(max_examples=8)
@given(makers, seeds, st.integers(1, 4), st.integers(0, 2), st.integers(1, 5), st.integers(1, 60))
def test_the_n_best_are_those_of_the_beam(make, seed, n, wider, min_len, max_tokens):
    """With their scores, best first, in the order of the sentences; an empty one has none."""
    own, beam = make(seed), n + wider
    options = {"alpha": 0.4, "min_len": min_len}
    found = own.n_best(SENTENCES, n, beam=beam, max_tokens=max_tokens, **options)
    for sentence, translations in zip(SENTENCES, found, strict=True):
        if not sentence.strip():
            assert translations == []
            continue
        src = torch.tensor([[*tokenizer().encode(sentence), EOS]])
        [expected] = beam_search(own.model, src, beam, n_best=n, **options)
        assert [t.text for t in translations] == [tokenizer().decode(h.ids) for h in expected]
        scores = [t.score for t in translations]
        assert scores == pytest.approx([h.score for h in expected], abs=1e-4)
        assert scores == sorted(scores, reverse=True)
    best = [translations[0].text if translations else "" for translations in found]
    assert best == own.translate(SENTENCES, beam=beam, **options)


def test_how_many_is_checked():
    for n, beam in [(0, None), (-1, 4), (3, 2)]:
        with pytest.raises(ValueError, match=f"not {n}"):
            translator().n_best(["a"], n, beam=beam)
    for call in (translator().translate, lambda s, **o: translator().n_best(s, 1, **o)):
        with pytest.raises(ValueError, match="min_len must be at least 1"):
            call(["a"], min_len=0)
    assert len(translator().n_best(["a"], 6)[0]) == 6  # the beam is as wide as need be
    assert translator().n_best([], 2) == []


@settings(max_examples=5)
@given(makers, seeds, st.integers(1, 3), st.sampled_from([0.5, 1.0, 2.0]), st.integers(1, 4))
def test_draws_hang_on_the_seed_and_the_number_alone(make, seed, n, temperature, min_len):
    """And on no other sentence, nor on where a list begins."""
    own = make(seed)
    options = {"temperature": temperature, "top_k": 40, "top_p": 0.9, "min_len": min_len}
    found = own.sample(SENTENCES, n, seed=seed, **options)
    assert found == own.sample(SENTENCES, n, seed=seed, **options)
    assert [len(drawn) for drawn in found] == [n if s.strip() else 0 for s in SENTENCES]
    for i, sentence in enumerate(SENTENCES):
        assert own.sample([sentence], n, seed=seed, first=i, **options) == found[i : i + 1]


def test_draws_differ_and_are_those_of_the_model():
    """Each sentence has its own; their scores are what the model gives them."""
    own = translator(eos=3.0)
    found = own.sample(["May 2026"] * 4, 3, seed=1)
    texts = [t.text for drawn in found for t in drawn]
    assert len(set(texts)) > 8
    assert texts != [t.text for drawn in own.sample(["May 2026"] * 4, 3, seed=2) for t in drawn]
    src = torch.tensor([[*tokenizer().encode("May 2026"), EOS]])
    own_seed = random.Random("1 0").getrandbits(63)
    [expected] = draw(own.model, src, 3, seed=own_seed)
    assert found[0] == [Translation(tokenizer().decode(h.ids), h.score) for h in expected]
    for options in ({"temperature": 0.0}, {"top_k": 0}, {"top_p": 0.0}, {"n": 0}, {"min_len": 0}):
        with pytest.raises(ValueError, match=f"{next(iter(options))}|k|p"):
            own.sample(["a"], **options)


def test_the_date_model_of_the_package():
    """It is small, in half precision, and right on years that it has never seen."""
    shipped = Translator.dates()
    pairs = date_pairs(300, split="test")
    sources, references = map(list, zip(*pairs, strict=True))
    assert exact_match(shipped.translate(sources), references) > 99
    folder = Path(transformer_lit.translation.__file__).parent / "dates"
    assert sum(path.stat().st_size for path in folder.iterdir()) < 2_000_000
    assert {w.dtype for w in load_file(folder / "model.safetensors").values()} == {torch.float16}
    assert next(shipped.model.parameters()).dtype == torch.float32


def test_a_tokeniser_larger_than_the_model_is_refused():
    """Its ids would be out of range."""
    large = Tokenizer.train((text for pair in date_pairs(100) for text in pair), 270)
    with pytest.raises(ValueError, match="ids up to 269, the model 260"):
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
    for right, wrong in (
        ("わたしはがくせいです", "わたしはがくせいでした"),
        ("학생입니다", "학생이었다"),
    ):
        score, signature = bleu([wrong], [right])
        assert "tok:char" in signature and 20 < score < 90, "zh would keep the letters together"
    english = ["the cat sat on the mat"] * 30
    assert "tok:13a" in bleu(english + ["の", "日"], english + ["の", "日"])[1], "two of many"
    chinese = ["我今天看见了一只猫"] * 30
    assert "tok:zh" in bleu(chinese + ["鲜の"], chinese + ["鲜の"])[1], "one of many"
    score = bleu(["the cat sat on the hat"], ["the cat sat on the mat"])[0]
    assert score == pytest.approx(100 * (5 / 6 * 4 / 5 * 3 / 4 * 2 / 3) ** 0.25)
    with pytest.raises(ValueError, match="0 hypotheses with 1 references"):
        bleu([], ["a"])


def test_the_bleu_of_each_sentence():
    """As sacreBLEU has it for a sentence; groups that cannot be are not counted."""
    hypotheses = ["the cat sat on the hat", "a cat", "no"]
    references = ["the cat sat on the mat", "a cat", "yes"]
    found = sentence_bleu(hypotheses, references)
    expected = [
        sacrebleu.sentence_bleu(h, [r], use_effective_order=True).score
        for h, r in zip(hypotheses, references, strict=True)
    ]
    assert found == pytest.approx(expected) and found[1] == pytest.approx(100)
    assert sentence_bleu(["日"], ["日"])[0] == pytest.approx(100)
    moses = sentence_bleu(["Ein Hund, ja."], ["ein hund , JA ."], moses="de")
    assert moses[0] == pytest.approx(100)
    with pytest.raises(ValueError, match="1 hypotheses with 0"):
        sentence_bleu(["a"], [])


@given(st.lists(st.integers(0, 30)), st.lists(st.integers(1, 20), unique=True))
def test_each_sentence_is_in_one_bucket(lengths, edges):
    """That of its words, whose name tells its limits; none is empty."""
    edges = sorted(edges)
    buckets = by_length([" ".join(["a"] * n) for n in lengths], edges)
    assert sorted(i for numbers in buckets.values() for i in numbers) == list(range(len(lengths)))
    for name, numbers in buckets.items():
        low, high = name.split("-")
        assert numbers
        for i in numbers:
            assert max(1, lengths[i]) >= int(low) and (not high or lengths[i] <= int(high))


@settings(max_examples=8)
@given(st.integers(1, 30), st.integers(0, 1000))
def test_unusual_dates_differ_in_one_thing(n, seed):
    """From dates of the test years; what is right is known."""
    groups = unusual_dates(n, seed)
    assert unusual_dates(n, seed) == groups
    usual = groups["unseen years"]
    assert {len(pairs) for pairs in groups.values()} == {n}
    test_years = set(map(str, date_years("test")))
    assert {target[:4] for _, target in usual} <= test_years
    for name, low, high in (
        ("years 1000 to 1599", 1000, 1599),
        ("years 2400 to 9999", 2400, 9999),
        ("years of three digits", 100, 999),
        ("years of five digits", 10_000, 99_999),
    ):
        for (source, target), (old, old_target) in zip(groups[name], usual, strict=True):
            year = target.removesuffix(old_target[4:])
            assert low <= int(year) <= high
            assert source == old.replace(old_target[:4], year) and source != old
    for source, _ in groups["small letters"]:
        assert source == source.lower() != source.upper()
    for source, _ in groups["capital letters"]:
        assert source == source.upper() != source.lower()
    assert not any("," in source for source, _ in groups["no commas"])
    for source, target in groups["dots for slashes"]:
        assert source.count(".") == 2 and target.count("/") == 2 and "/" not in source
    for source, target in groups["two dates"]:
        assert len(source) > 10 and target[:4] in source and target[:4] in test_years


def test_few_unusual_dates_are_as_many_as_asked_for():
    for n in (1, 2, 3, 5):
        assert {len(pairs) for pairs in unusual_dates(n).values()} == {n}


def test_there_are_not_as_many_unusual_dates_as_one_likes():
    with pytest.raises(ValueError, match="n must be from 0"):
        unusual_dates(10**6)


def test_a_recording_is_read_from_the_repository_or_fetched(monkeypatch, tmp_path):
    """From its one address; what is nowhere is told with both places."""
    asked = []

    def fetch(address, timeout):
        asked.append(address)
        if "gone" in address:
            raise OSError("404")
        return io.BytesIO("fetched 年".encode())

    monkeypatch.setattr("urllib.request.urlopen", fetch)
    text = recording("dates/record.json")
    assert not asked and json.loads(text)["steps"] == 1400
    monkeypatch.setattr(transformer_lit.translation, "files", lambda name: tmp_path / name)
    assert recording("dates/record.json") == "fetched 年"
    [address] = asked
    assert address.startswith("https://github.com/") and address.endswith(
        "/raw/HEAD/recordings/dates/record.json"
    )
    with pytest.raises(OSError, match=r"recordings.gone.csv is not there.*gone.csv cannot be"):
        recording("gone.csv")


@pytest.mark.parametrize("error", [http.client.IncompleteRead(b"a"), TimeoutError("too slow")])
def test_a_recording_cut_off_on_its_way_is_told(monkeypatch, tmp_path, error):
    def fetch(address, timeout):
        raise error

    monkeypatch.setattr("urllib.request.urlopen", fetch)
    monkeypatch.setattr(transformer_lit.translation, "files", lambda name: tmp_path / name)
    with pytest.raises(OSError, match="race.csv cannot be fetched"):
        recording("race.csv")


def test_a_damaged_recording_is_named(monkeypatch, tmp_path):
    """Here as well as there."""
    monkeypatch.setattr("urllib.request.urlopen", lambda *_, **__: io.BytesIO(b"\xff"))
    monkeypatch.setattr(transformer_lit.translation, "files", lambda name: tmp_path / name)
    with pytest.raises(OSError, match="race.csv cannot be fetched"):
        recording("race.csv")
    (tmp_path / "recordings").mkdir()
    (tmp_path / "recordings/race.csv").write_bytes(b"\xff")
    with pytest.raises(OSError, match="race.csv is damaged"):
        recording("race.csv")


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


def test_one_tokeniser_may_serve_two_vocabularies(tmp_path):
    """It is written twice, since another that is missing could not be told from it."""
    own = Tokenizer.train(["a", "b"], 260)
    config = TransformerConfig(
        260, tgt_vocab_size=260, tie="output", d_model=8, n_heads=2, d_ff=8, n_layers=1
    )
    translator = Translator(Transformer(config), own)
    translator.save(tmp_path)
    assert Translator.load(tmp_path).translate(["ab"]) == translator.translate(["ab"])
    (tmp_path / "tokenizer.target.json").unlink()
    with pytest.raises(FileNotFoundError, match=r"tokenizer\.target\.json is missing"):
        Translator.load(tmp_path)


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


def test_text_that_is_cut_already_is_not_cut_again():
    """As a model trained on such text writes it: ``&apos;`` is one word, and stays one."""
    hypotheses = ["der ball rollt &apos; zum tor , schnell .", "zwei männer stehen dort ."]
    references = ["der ball rollt &apos; zum tor ; schnell !", "zwei männer stehen hier ."]
    for how in ("none", "13a"):
        score, signature = bleu(hypotheses, references, tokenize=how)
        expected = sacrebleu.corpus_bleu(hypotheses, [references], tokenize=how, force=True)
        assert score == pytest.approx(expected.score) and f"tok:{how}" in signature
    assert score != pytest.approx(bleu(hypotheses, references, tokenize="none")[0])
    with pytest.raises(ValueError, match="tokenize='words' is not known; it must be one of 13a, "):
        bleu(["a"], ["a"], tokenize="words")
    with pytest.raises(ValueError, match="moses='de' cuts the texts: leave tokenize='13a' away"):
        bleu(["a"], ["a"], moses="de", tokenize="13a")


def test_a_file_in_lower_case_cut_by_moses(tmp_path):
    """Each side by the rules of its language, on the same line as before."""
    pairs = [("A dog's Ball, there.", "Ein Hund; „da“."), ("Two\u00a0dogs", "Zwei Hunde")]
    path, out = tmp_path / "pairs.tsv", tmp_path / "out.tsv"
    path.write_text("".join(f"{a}\t{b}\n" for a, b in pairs), encoding="utf-8")
    command = [sys.executable, "tools/moses.py", path, out, "en", "de"]
    subprocess.run(command, check=True, cwd=Path(__file__).parents[1], capture_output=True)
    assert read_pairs(out) == [
        ("a dog &apos;s ball , there .", "ein hund ; &quot; da &quot; ."),
        ("two dogs", "zwei hunde"),
    ]


def test_moses_knows_its_languages():
    """What it does not know it would cut as if it were English."""
    for code in ("xx", "german", "DE", "ja"):
        with pytest.raises(ValueError, match=f"no language '{code}'; it knows .*de, .*en, "):
            moses_tokens(["a"], code)


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
