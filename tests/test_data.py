"""Tokeniser, corpora and batches."""

import datetime
import re
import unicodedata
from functools import cache

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support import seeds
from tokenizers import Tokenizer as BPE
from tokenizers import models

from transformer_lit.data import (
    BOS,
    DATE_FORMS,
    EOS,
    PAD,
    SPECIAL_TOKENS,
    UNK,
    Batch,
    TokenBatches,
    Tokenizer,
    date_pairs,
    date_years,
    pad,
    read_pairs,
    split_pairs,
    write_date,
)

HARD_TEXTS = [
    "",
    " two  spaces and one at the end ",
    "2026年11月28日星期六",
    "👩‍👩‍👧 naïve \u0301",
    "a\tb\r\nc\x00\x1b[0m\u2028",
    "<pad><bos> <eos><unk>",
    "Ġ␣\ufeff\ufffd",
]
pieces = st.sampled_from([*HARD_TEXTS, *SPECIAL_TOKENS, "28", "November "])
texts = st.text() | st.lists(pieces | st.text(max_size=3)).map("".join)
pair_lists = st.lists(
    st.tuples(*2 * [st.text("ab1 日", min_size=1, max_size=12)]), min_size=1, max_size=20
)


@cache
def tokenizer() -> Tokenizer:
    """Return a tokeniser trained on dates."""
    return Tokenizer.train((text for pair in date_pairs(300) for text in pair), 320)


# The tokeniser


@given(texts)
@example(HARD_TEXTS[1])
@example(HARD_TEXTS[4])
def test_any_text_comes_back(text):
    """Digits are single, and no text turns into a special token."""
    ids = tokenizer().encode(text)
    assert all(UNK < i < len(tokenizer()) for i in ids)
    assert tokenizer().decode(ids) == text
    assert tokenizer().decode([BOS, *ids, EOS, PAD]) == text
    ascii_pieces = [p for p in tokenizer().pieces(ids) if p.isascii()]
    assert not any(len(p) > 1 and re.search("[0-9]", p) for p in ascii_pieces)


@settings(max_examples=10)
@given(st.lists(texts, max_size=5), texts)
def test_any_text_can_be_learned_from(learned, text):
    """A text of special tokens or none at all does no harm."""
    own = Tokenizer.train(learned, 270)
    assert 260 <= len(own) <= 270
    assert own.decode(own.encode(text)) == text


@given(st.lists(st.integers(0, 319)))
def test_any_ids_can_be_decoded(ids):
    """Special tokens vanish; what is left of a character is marked."""
    kept = [i for i in ids if i > UNK]
    assert tokenizer().decode(ids) == tokenizer().decode(kept)
    assert len(tokenizer().pieces(ids)) == len(ids)


def test_pieces_are_readable():
    """Spaces are seen, and special tokens have their names."""
    ids = tokenizer().encode("28 November")
    shown = tokenizer().pieces([BOS, *ids, EOS, PAD, UNK])
    assert [shown[0], *shown[-3:]] == ["<bos>", "<eos>", "<pad>", "<unk>"]
    assert "".join(shown[1:-3]) == "28␣November"


def test_a_loaded_tokeniser_is_the_saved_one(tmp_path):
    """Also for texts that look like special tokens."""
    tokenizer().save(tmp_path / "tokenizer.json")
    loaded = Tokenizer.load(tmp_path / "tokenizer.json")
    assert len(loaded) == len(tokenizer())
    for text in HARD_TEXTS:
        assert loaded.encode(text) == tokenizer().encode(text)
        assert loaded.decode(loaded.encode(text)) == text


def test_learning_is_deterministic():
    """The same texts give the same vocabulary."""
    texts = [text for pair in date_pairs(50) for text in pair]
    one, other = Tokenizer.train(texts, 300), Tokenizer.train(texts, 300)
    assert one.bpe.to_str() == other.bpe.to_str()


def test_a_vocabulary_smaller_than_the_bytes_is_refused():
    """256 bytes and 4 special tokens."""
    assert len(Tokenizer.train([], 260)) == 260
    with pytest.raises(ValueError, match="at least 260.*not 259"):
        Tokenizer.train([], 259)


@pytest.mark.parametrize("content", ["", "{}", '{"model": 1}'])
def test_a_file_that_is_no_tokeniser_is_refused(content, tmp_path):
    """The message names the file."""
    path = tmp_path / "tokenizer.json"
    with pytest.raises(FileNotFoundError, match="tokenizer.json"):
        Tokenizer.load(path)
    path.write_text(content)
    with pytest.raises(ValueError, match="tokenizer.json"):
        Tokenizer.load(path)


def test_a_tokeniser_of_others_is_refused(tmp_path):
    """It lacks the special tokens, or has them elsewhere."""
    path = tmp_path / "tokenizer.json"
    BPE(models.BPE(vocab={"a": 0}, merges=[])).save(str(path))
    with pytest.raises(ValueError, match="does not begin with the tokens <pad>"):
        Tokenizer.load(path)


# Dates


@given(seeds, st.sampled_from(["train", "valid", "test"]), st.integers(0, 60))
def test_date_pairs_are_as_asked_for(seed, split, n):
    """As many as asked for, all different, of the split's years, the same each time."""
    pairs = date_pairs(n, seed, split)
    assert len({source for source, _ in pairs}) == len(pairs) == n
    assert {int(target[:4]) for _, target in pairs} <= set(date_years(split))
    assert pairs == date_pairs(n, seed, split)
    assert n < 5 or pairs != date_pairs(n, seed + 1, split)


def test_no_year_is_in_two_splits():
    """And none is left out."""
    years = [year for split in ("train", "valid", "test") for year in date_years(split)]
    assert sorted(years) == list(range(1600, 2400))
    for function in (date_years, lambda split: date_pairs(1, split=split)):
        with pytest.raises(ValueError, match="train, valid or test, not 'dev'"):
            function("dev")


def test_an_english_date_has_one_chinese_one():
    """Whatever the seed, so that exact match is fair."""
    translations = {}
    for seed in range(20):
        for source, target in date_pairs(300, seed):
            assert translations.setdefault(source, target) == target


def test_a_known_date():
    """In the order of both languages, with plain spaces."""
    date = datetime.date(2026, 11, 28)
    assert write_date(date, "full", "en_US") == "Saturday, November 28, 2026"
    assert write_date(date, "full", "zh_Hans") == "2026年11月28日星期六"
    written = [write_date(date, form, locale) for locale, form in DATE_FORMS]
    assert len(set(written)) > 8
    assert all(c == " " or not c.isspace() for text in written for c in text)


def test_more_dates_than_there_are_cannot_be_asked_for():
    """Nor fewer than none."""
    limit = 3000 * len(date_years("test"))
    for n in (-1, limit + 1):
        with pytest.raises(ValueError, match=f"from 0 to {limit} for the test split, not {n}"):
            date_pairs(n, split="test")


# Files of pairs

cells = st.text(st.characters(codec="utf-8", exclude_characters="\t\n\ufeff"), max_size=20).filter(
    lambda text: text.strip()
)


@given(
    rows=st.lists(st.tuples(cells, cells), min_size=1, max_size=5),
    bom=st.booleans(),
    crlf=st.booleans(),
    last_line_ends=st.booleans(),
)
@example(rows=[("  Cafe\u0301 ", "日期")], bom=True, crlf=True, last_line_ends=False)
def test_pairs_are_read(rows, bom, crlf, last_line_ends, tmp_path_factory):
    """With a byte-order mark or without, with CRLF or LF, brought to normal form C."""
    path, end = tmp_path_factory.mktemp("pairs") / "pairs.tsv", "\r\n" if crlf else "\n"
    content = end.join("\t".join(row) for row in rows) + end * last_line_ends
    path.write_bytes(b"\xef\xbb\xbf" * bom + content.encode())
    expected = [tuple(unicodedata.normalize("NFC", cell.strip()) for cell in row) for row in rows]
    assert read_pairs(path) == expected


BAD = b"one\teins\nno tab\na\tb\tc\n\tempty\n\xff\xfe\tlatin\n\ntwo\tzwei\n"


def test_bad_lines_are_counted_and_named(tmp_path):
    """A file is refused whole, or read without them under a warning."""
    path = tmp_path / "pairs.tsv"
    path.write_bytes(BAD)
    report = (
        "5 of 7 lines are bad: line 2 has 1 column instead of 2; line 3 has 3 columns instead "
        "of 2; line 4 has an empty side; line 5 is not UTF-8; line 6 has 1 column instead of 2"
    )
    with pytest.raises(ValueError, match=report):
        read_pairs(path)
    with pytest.warns(UserWarning, match=report):
        assert read_pairs(path, on_error="skip") == [("one", "eins"), ("two", "zwei")]


def test_many_bad_lines_are_not_all_named(tmp_path):
    """Five, and the number of the others."""
    path = tmp_path / "pairs.tsv"
    path.write_text("a\tb\n" + "bad\n" * 8)
    with pytest.raises(ValueError, match="8 of 9 lines are bad: line 2 .*line 6 .*, and 3 more"):
        read_pairs(path)


@pytest.mark.parametrize("content", [b"", b"\xef\xbb\xbf"])
def test_an_empty_file_is_refused(content, tmp_path):
    """Rather than trained on."""
    path = tmp_path / "pairs.tsv"
    path.write_bytes(content)
    with pytest.raises(ValueError, match="holds no sentence pairs"):
        read_pairs(path)


def test_a_file_without_a_good_line_is_refused(tmp_path):
    """Even if bad lines are to be left out: this one is UTF-16."""
    path = tmp_path / "pairs.tsv"
    path.write_bytes("ä\tö\n".encode("latin-1"))
    with (
        pytest.warns(UserWarning, match="not UTF-8"),
        pytest.raises(ValueError, match="no sentence"),
    ):
        read_pairs(path, on_error="skip")


def test_a_missing_file_is_named(tmp_path):
    """A folder is not a file either; and the option is checked."""
    for path in (tmp_path / "nothing.tsv", tmp_path):
        with pytest.raises(FileNotFoundError, match=path.name):
            read_pairs(path)
    with pytest.raises(ValueError, match="raise or skip, not 'ignore'"):
        read_pairs(tmp_path, on_error="ignore")


@given(pair_lists, st.floats(0, 1), seeds)
def test_splitting_keeps_sources_apart(pairs, share, seed):
    """Every pair goes to one side, in its old order."""
    if len({source for source, _ in pairs}) < 2:
        with pytest.raises(ValueError, match="1 different source"):
            split_pairs(pairs, share, seed)
        return
    train, valid = split_pairs(pairs, share, seed)
    held_out = {source for source, _ in valid}
    assert train and valid
    assert train == [p for p in pairs if p[0] not in held_out]
    assert valid == [p for p in pairs if p[0] in held_out]
    assert (train, valid) == split_pairs(pairs, share, seed)


def test_the_share_that_is_held_out():
    """Of the source sentences."""
    pairs = [(str(i), "x") for i in range(100)]
    assert [len(part) for part in split_pairs(pairs, 0.2)] == [80, 20]
    assert split_pairs(pairs, seed=1) != split_pairs(pairs, seed=2)


# Batches


def test_the_target_is_shifted_by_one():
    """F32: [BOS, a, b, EOS, PAD]."""
    batch = Batch(torch.tensor([[7, EOS]]), torch.tensor([[BOS, 5, 6, EOS, PAD]]))
    assert batch.tgt_in.tolist() == [[BOS, 5, 6, EOS]]
    assert batch.gold.tolist() == [[5, 6, EOS, PAD]]
    assert batch.n_tokens == 3
    moved = batch.to("cpu")
    assert isinstance(moved, Batch) and moved.tgt.equal(batch.tgt)


def test_sequences_are_filled_up():
    """At the end, to a rectangle."""
    assert pad([[5], [6, 7, 8], []]).tolist() == [[5, 0, 0], [6, 7, 8], [0, 0, 0]]


@given(pair_lists, st.integers(1, 40), seeds, st.integers(0, 3))
def test_every_pair_comes_once_an_epoch(pairs, max_tokens, seed, epoch):
    """F32: whole, within the budget, with BOS and EOS where they belong."""
    encode = tokenizer().encode
    ids = [([*encode(s), EOS], [BOS, *encode(t), EOS]) for s, t in pairs]
    longest = max(len(side) for pair in ids for side in pair)
    if longest > max_tokens:
        with pytest.raises(ValueError, match=f"of {longest} tokens.*max_tokens={max_tokens}"):
            TokenBatches(pairs, tokenizer(), max_tokens, seed)
        return
    batches = TokenBatches(pairs, tokenizer(), max_tokens, seed)
    seen = []
    for batch in batches.epoch(epoch):
        assert len(batch.src) == len(batch.tgt)
        assert max(batch.src.numel(), batch.tgt.numel()) <= max_tokens
        assert (batch.src != PAD).any(0).all() and (batch.tgt != PAD).any(0).all(), "too wide"
        for src, tgt in zip(batch.src.tolist(), batch.tgt.tolist(), strict=True):
            seen.append(([i for i in src if i != PAD], [i for i in tgt if i != PAD]))
    assert sorted(seen) == sorted(ids)
    assert len(batches) == len(pairs)


@given(pair_lists, st.integers(20, 60), seeds, st.integers(0, 3), st.integers(0, 5))
def test_an_epoch_can_be_taken_up_in_the_middle(pairs, max_tokens, seed, epoch, start):
    """Its order is drawn from the seed and its number alone."""
    pairs = [(source[:6], target[:6]) for source, target in pairs]
    one, other = (TokenBatches(pairs, tokenizer(), max_tokens, seed) for _ in range(2))
    list(one.epoch(epoch + 1))
    rest = list(other.epoch(epoch, start))
    assert len(rest) == max(0, len(one.plan(epoch)) - start)
    for a, b in zip(list(one.epoch(epoch))[start:], rest, strict=True):
        assert a.src.equal(b.src) and a.tgt.equal(b.tgt)


def test_epochs_and_seeds_differ():
    """In their order and in what shares a batch."""
    pairs = date_pairs(100)
    plan = TokenBatches(pairs, tokenizer(), 200).plan(0)
    assert plan != TokenBatches(pairs, tokenizer(), 200).plan(1)
    assert plan != TokenBatches(pairs, tokenizer(), 200, seed=1).plan(0)


def test_like_lengths_share_a_batch():
    """Little of it is padding."""
    batches = TokenBatches(date_pairs(500), tokenizer(), 400)
    real, all_places = 0, 0
    for batch in batches.epoch():
        real += (batch.tgt != PAD).sum().item() + (batch.src != PAD).sum().item()
        all_places += batch.tgt.numel() + batch.src.numel()
    assert real / all_places > 0.7


def test_no_pairs_make_no_batches():
    """They would make an endless epoch."""
    with pytest.raises(ValueError, match="no sentence pairs"):
        TokenBatches([], tokenizer())
