"""Tokeniser, corpora and batches."""

import copy
import datetime
import gc
import gzip
import hashlib
import http.server
import io
import json
import pickle
import re
import socket
import threading
import unicodedata
import zipfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import pytest
import torch
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from support import seeds
from tokenizers import Tokenizer as BPE
from tokenizers import decoders, models, pre_tokenizers
from torch.utils.data import DataLoader

from transformer_lit import data
from transformer_lit.data import (
    BOS,
    DATE_FORMS,
    EOS,
    PAD,
    SPECIAL_TOKENS,
    UNK,
    BadLine,
    Batch,
    Corpus,
    TokenBatches,
    Tokenizer,
    date_pairs,
    date_years,
    download_multi30k,
    download_tatoeba,
    pad,
    pairs_sha256,
    read_multi30k,
    read_pairs,
    read_tatoeba,
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


@given(st.lists(texts, max_size=5))
def test_many_texts_are_encoded_at_once(many):
    """As one by one, in their order."""
    assert tokenizer().encode_batch(many) == [tokenizer().encode(text) for text in many]


def test_half_a_surrogate_pair_is_refused():
    """The message shows the text that has it."""
    for call in (tokenizer().encode_batch, lambda texts: tokenizer().encode(texts[1])):
        with pytest.raises(ValueError, match=r"not valid Unicode: 'bad \\ud83d'"):
            call(["good", "bad \ud83d"])


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


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda t: pickle.loads(pickle.dumps(t))])
def test_a_copied_tokeniser_is_as_the_first(copied):
    """A worker process gets one; the library would take "<pad>" in its texts for padding."""
    first = Tokenizer(tokenizer().bpe)
    first.language = "en"
    again = copied(first)
    assert all(again.encode(text) == tokenizer().encode(text) for text in HARD_TEXTS)
    assert again.language == "en"


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
    letters = {letter: i for i, letter in enumerate(pre_tokenizers.ByteLevel.alphabet())}
    bpe = BPE(models.BPE(vocab=letters, merges=[]))
    bpe.decoder = decoders.ByteLevel()
    bpe.save(str(path))
    with pytest.raises(ValueError, match="does not begin with the tokens <pad>"):
        Tokenizer.load(path)


@pytest.mark.parametrize(
    "change",
    [
        lambda form: form.update(
            model={"type": "WordLevel", "vocab": {"<pad>": 0}, "unk_token": ""}
        ),
        lambda form: form.update(normalizer={"type": "Lowercase"}),
        lambda form: form.update(decoder={"type": "Fuse"}),
        lambda form: form["model"].update(dropout=0.5),
        lambda form: form["model"].update(continuing_subword_prefix="##"),
        lambda form: form["model"]["vocab"].pop("a"),
        lambda form: (form["model"].update(unk_token="nope"), form.update(pre_tokenizer=None)),
    ],
)
def test_a_tokeniser_that_would_lose_text_is_refused(change, tmp_path):
    """Though the library reads it; at some it panics later."""
    path = tmp_path / "tokenizer.json"
    Tokenizer.train([], 260).save(path)
    assert Tokenizer.load(path).n_rows == 260
    form = json.loads(path.read_text())
    change(form)
    path.write_text(json.dumps(form))
    with pytest.raises(ValueError, match=r"json is not a tokeniser: .*(256 bytes|Unk token)"):
        Tokenizer.load(path)


@pytest.mark.parametrize(
    "cut",
    [
        {"type": "Punctuation", "behavior": "Removed"},
        {"type": "Whitespace"},
        {"type": "Split", "pattern": {"String": "\n"}, "behavior": "Removed", "invert": False},
        {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
    ],
)
def test_a_tokeniser_that_changes_text_is_refused(cut, tmp_path):
    """By another way to cut it in advance."""
    path = tmp_path / "tokenizer.json"
    Tokenizer.train([], 260).save(path)
    form = json.loads(path.read_text())
    way = form["pre_tokenizer"]
    *_, bytes_last = way["pretokenizers"]
    way["pretokenizers"] = [cut] if cut["type"] == "ByteLevel" else [cut, bytes_last]
    path.write_text(json.dumps(form))
    with pytest.raises(ValueError, match=r"tokenizer\.json cuts text so that it changes: 'a  b"):
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


HARD_ROWS = [
    ("  Cafe\u0301 ", "日期"),
    ("a\x0cb\x85c", "d\u2028e\u2029\x1cf"),
    ("a\rb\0", "\0c\x0b\ud7ff😀"),
]


@given(
    rows=st.lists(st.tuples(cells, cells), min_size=1, max_size=5),
    bom=st.booleans(),
    crlf=st.booleans(),
    last_line_ends=st.booleans(),
    together=st.booleans(),
    packed=st.booleans(),
)
@example(rows=HARD_ROWS[:1], bom=True, crlf=True, last_line_ends=False, together=True, packed=False)
@example(rows=HARD_ROWS, bom=True, crlf=True, last_line_ends=True, together=False, packed=True)
@example(rows=HARD_ROWS, bom=False, crlf=False, last_line_ends=True, together=True, packed=True)
def test_pairs_are_read(rows, bom, crlf, last_line_ends, together, packed, tmp_path_factory):
    """From one file or two, plain or packed, with LF or CRLF, brought to normal form C."""
    folder, end = tmp_path_factory.mktemp("pairs"), "\r\n" if crlf else "\n"
    columns = [["\t".join(row) for row in rows]] if together else list(zip(*rows, strict=True))
    paths = []
    for number, lines in enumerate(columns):
        content = (end.join(lines) + end * last_line_ends).encode()
        assume(3 * content.count(0) <= len(content))
        paths.append(folder / f"{number}.{'gz' if packed else 'txt'}")
        content = b"\xef\xbb\xbf" * bom + content
        paths[-1].write_bytes(gzip.compress(content) if packed else content)
    expected = [tuple(unicodedata.normalize("NFC", cell.strip()) for cell in row) for row in rows]
    assert read_pairs(*paths) == expected


def test_only_a_line_feed_ends_a_line(tmp_path):
    """Not what else Python takes for an end of a line, in one file or in two."""
    rows = [(f"a{c}b", f"{c}c{c}d") for c in "\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029\0"]
    expected = [(source, target.strip()) for source, target in rows]
    one, two = tmp_path / "one", tmp_path / "two"
    one.write_bytes("".join(f"{source}\t{target}\n" for source, target in rows).encode())
    assert read_pairs(one, on_error=print) == expected
    for path, side in zip((one, two), zip(*rows, strict=True), strict=True):
        path.write_bytes("".join(f"{text}\r\n" for text in side).encode())
    assert read_pairs(one, two, on_error=print) == expected


BAD = (
    b"one\teins\nno tab\na\tb\tc\n\tempty\n\xff\xfe\tlatin\n\n"
    b"two\tzwei\n" + b"x" * 2001 + b"\tlong\n \t \nx\ty\tz\tw\n"
)


def test_bad_lines_are_counted_by_kind_and_named(tmp_path):
    """A file is refused whole, or read without them under a warning, or each is handed over."""
    path = tmp_path / "pairs.tsv"
    path.write_bytes(BAD)
    report = re.escape(
        "pairs.tsv: 8 of 10 lines are bad: 2 lines have 1 column instead of 2 (2, 6); "
        "line 3 has 3 columns instead of 2; 2 lines have an empty side (4, 9); "
        "line 5 is not UTF-8; line 8 has a side of more than 2,000 characters; "
        "1 are bad in other ways"
    )
    with pytest.raises(ValueError, match=f"{report}.*'skip'.*another max_length, or extra_columns"):
        read_pairs(path)
    good, bad = [("one", "eins"), ("two", "zwei")], []
    with pytest.warns(UserWarning, match=report):
        assert read_pairs(path, on_error="skip") == good
    assert read_pairs(path, on_error=bad.append) == good
    assert [line.number for line in bad] == [2, 3, 4, 5, 6, 8, 9, 10]
    assert bad[3] == BadLine(5, "is not UTF-8")


def test_many_bad_lines_are_not_all_named(tmp_path):
    """The first five of a kind, and how many there are."""
    path = tmp_path / "pairs.tsv"
    path.write_text("a\tb\n" + "bad\n" * 8)
    numbers = r"\(2, 3, 4, 5, 6, \.\.\.\)\."
    report = f"8 of 9 lines are bad: 8 lines have 1 column instead of 2 {numbers}.*leave them out$"
    with pytest.raises(ValueError, match=report):
        read_pairs(path)


def test_a_side_may_be_just_as_long_as_the_limit(tmp_path):
    """Counted in characters, after blanks around it are gone."""
    path = tmp_path / "pairs.tsv"
    for pair in (("日" * 7, "b"), ("日", "b" * 7)):
        path.write_text("\t ".join(pair) + " \na\tb\n", encoding="utf-8")
        for limit in (7, None):
            assert read_pairs(path, max_length=limit, on_error=print) == [pair, ("a", "b")]
        with pytest.raises(ValueError, match="line 1 has a side of more than 6 characters"):
            read_pairs(path, max_length=6)


def test_further_columns_may_be_allowed(tmp_path):
    """And are left out, even if they are not UTF-8."""
    path = tmp_path / "pairs.tsv"
    path.write_bytes(b"a\tb\tby \xff\nc\td\t\t\n")
    assert read_pairs(path, extra_columns=True) == [("a", "b"), ("c", "d")]
    with pytest.raises(ValueError, match="line 1 .*, or extra_columns=True to leave out"):
        read_pairs(path)
    for line, told in ((b"c\n", "has 1 column instead of 2"), (b"c\td\xff\te\n", "is not UTF-8")):
        path.write_bytes(b"a\tb\n" + line)
        for extra in (False, True):  # which would not help
            with pytest.raises(ValueError, match=f"line 2 {told}.*leave them out$"):
                read_pairs(path, extra_columns=extra)


def test_bad_lines_of_two_files(tmp_path):
    """A line is bad for both."""
    source, target = tmp_path / "a.en", tmp_path / "a.de"
    source.write_bytes(b"one\n\nthree\nfour\n")
    target.write_bytes(b"eins\nzwei\n\xff\nvier\n")
    report = (
        r"a\.en and .*a\.de: 2 of 4 lines are bad: line 2 has an empty side; line 3 is not UTF-8"
    )
    with pytest.raises(ValueError, match=report):
        read_pairs(source, target)
    assert read_pairs(source, target, on_error=lambda line: None) == [
        ("one", "eins"),
        ("four", "vier"),
    ]


def test_two_files_of_pairs_are_not_the_two_sides(tmp_path):
    """Their lines would be the sentences, with tabs in them."""
    one, other = tmp_path / "a.tsv", tmp_path / "b.tsv"
    one.write_text("one\teins\n")
    other.write_text("two\tzwei\n")
    with pytest.raises(ValueError, match=r"line 1 has a tab.*file is one of two"):
        read_pairs(one, other)


@pytest.mark.parametrize("on_error", ["raise", "skip", print])
def test_files_out_of_step_are_never_read(on_error, tmp_path):
    """The message has both names and both numbers."""
    source, target = tmp_path / "a.en", tmp_path / "a.de"
    source.write_text("one\ntwo\nthree\n")
    target.write_text("eins\nzwei\n")
    for one, other, names in (
        (source, target, r"a\.en has 3 lines and .*a\.de has 2"),
        (target, source, r"a\.de has 2 lines and .*a\.en has 3"),
    ):
        with pytest.raises(ValueError, match=names):
            read_pairs(one, other, on_error=on_error)


def zipped(method: int = zipfile.ZIP_DEFLATED, at: int | None = None, byte: int = 0) -> bytes:
    """Return a zip file, one byte of whose end record's offset is perhaps another."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", method) as archive:
        archive.writestr(zipfile.ZipInfo("a.txt"), "one\teins\n" * 99, method)
    spoilt = bytearray(content.getvalue())
    if at is not None:
        spoilt[spoilt.rindex(b"PK\x05\x06") + 16 + at] = byte
    return bytes(spoilt)


# without the time, which would get into the names of tests
WHOLE = gzip.compress(b"one\teins\n" * 99, mtime=0)


@pytest.mark.parametrize(
    "name, content, says",
    [
        ("a.tsv", b"", "holds no sentence pairs"),
        ("a.tsv", b"\xef\xbb\xbf", "holds no sentence pairs"),
        ("a.tsv", "ä\tö\n".encode("latin-1"), "holds no sentence pairs"),
        ("a.tsv", "one\teins\n".encode("utf-16"), "UTF-16"),
        ("a.tsv", b"\xfe\xff" + "one\teins\n".encode("utf-16-be"), "UTF-16"),
        ("a.tsv", "one\teins\n".encode("utf-16-le"), "UTF-16"),
        ("a.tsv", "你好\t你好\n欢迎\t再见\n".encode("utf-16-le"), "UTF-16"),
        ("a.tsv", "你好\t你好\n欢迎\t再见\n".encode("utf-16-be"), "UTF-16"),
        ("a.tsv", bytes(range(128, 256)) * 9, "holds no sentence pairs"),
        ("a.tsv", WHOLE, "holds no sentence pairs"),
        ("a.gz", gzip.compress(b"", mtime=0), "holds no sentence pairs"),
        ("a.gz", b"<html>\n", "not a whole .gz file"),
        ("a.gz", WHOLE[:-1], "not a whole .gz file"),
        ("a.gz", WHOLE[:20], "not a whole .gz file"),
        ("a.gz", WHOLE[:12] + b"\xff" + WHOLE[13:], "not a whole .gz file"),
        ("a.zip", b"PK\x03\x04", "not a whole .zip file"),
        ("a.zip", zipped(zipfile.ZIP_LZMA), "not a whole .zip file.*another method than deflate"),
        ("a.zip", zipped(at=2, byte=255), "not a whole .zip file"),
    ],
)
def test_a_hopeless_file_is_refused_by_name(name, content, says, tmp_path):
    """Even if bad lines are to be left out."""
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(ValueError, match=f"{re.escape(name)}.* {says}"):
        read_pairs(path, on_error=lambda line: None)


def test_a_missing_file_is_named(tmp_path):
    """A folder is not a file either; and the option is checked."""
    for path in (tmp_path / "nothing.tsv", tmp_path):
        with pytest.raises(FileNotFoundError, match=f"{path.name} is not a file"):
            read_pairs(path)
    with pytest.raises(ValueError, match="raise, skip or a function, not 'ignore'"):
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
    for share in (-0.1, 5, float("nan")):  # 5 may have been meant as a percentage
        with pytest.raises(ValueError, match=f"from 0 to 1, not {share}"):
            split_pairs(pairs, share)


@given(seeds)
def test_a_sentence_that_comes_very_often_is_learnt_from(seed):
    """Held out, it would take nearly all pairs with it."""
    pairs = [("ok", str(i)) for i in range(95)] + [(str(i), "x") for i in range(5)]
    train, valid = split_pairs(pairs, 0.05, seed)
    assert len(valid) == 1 and valid[0][0] != "ok" and len(train) == 99
    alike = [(str(i % 2), str(i)) for i in range(100)]  # nothing smaller can be held out
    assert [len(part) for part in split_pairs(alike, 0.05, seed)] == [50, 50]


# Real sentences


def corpus_of(prefix: str, n: int) -> list[tuple[str, str]]:
    return [(f"{prefix} {i}", f"{prefix} é {i}") for i in range(n)]


MULTI30K = {"train": corpus_of("a", 5), "val": corpus_of("b", 2), "test_2016_flickr": [("x", "y")]}


def write_multi30k(folder, form: str) -> None:
    """Write it as plain or packed sides, one side packed, or as one file."""
    for split, pairs in MULTI30K.items():
        texts = {f"{split}.en-de.tsv": "".join(f"{s}\t{t}\n" for s, t in pairs)}
        if form != "tsv":
            sides = zip(("en", "de"), zip(*pairs, strict=True), strict=True)
            texts = {f"{split}.{code}": "".join(f"{x}\n" for x in side) for code, side in sides}
        for name, text in texts.items():
            if form == "gz" or form == "mixed" and name.endswith("de"):
                (folder / f"{name}.gz").write_bytes(gzip.compress(text.encode()))
            else:
                (folder / name).write_text(text, encoding="utf-8")


@pytest.mark.parametrize("form", ["plain", "gz", "mixed", "tsv"])
def test_multi30k_is_read(form, tmp_path):
    """Its three parts stay as they are."""
    write_multi30k(tmp_path, form)
    assert read_multi30k(tmp_path) == Corpus(*MULTI30K.values())
    if form == "gz":  # alone, it is of another time, and no side of what was fetched and checked
        (tmp_path / "train.en").write_text("old\n" * 5)
        assert read_multi30k(tmp_path) == Corpus(*MULTI30K.values())
    next(tmp_path.glob("val.*")).unlink()
    with pytest.raises(FileNotFoundError, match=r"val\.en and val\.de.*val\.en-de\.tsv.*download_"):
        read_multi30k(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"train\.fr.*German only"):
        read_multi30k(tmp_path, "fr")


def zipped(**members: str) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for name, text in members.items():
            archive.writestr(name.replace("__", ".").replace("_up_", "../"), text)
    return content.getvalue()


SENTENCES = [(f"Number {i // 2}.", f"第{i}。") for i in range(100)]
COLUMNS = "".join(f"{s}\t{t}\tCC-BY 2.0 (France) #{i}\n" for i, (s, t) in enumerate(SENTENCES))
ARCHIVE = zipped(_about__txt="Read me.", cmn__txt=COLUMNS)


@given(seed=seeds, held_out=st.floats(0.01, 0.4))
def test_tatoeba_is_split_by_source(seed, held_out, tmp_path_factory):
    """None is lost, none is doubled, no source is in two parts; unpacked or not is the same."""
    folder = tmp_path_factory.mktemp("tatoeba")
    (folder / "cmn-eng.zip").write_bytes(ARCHIVE)
    corpus = read_tatoeba(folder, seed=seed, held_out=held_out)
    assert sorted(pair for part in corpus for pair in part) == sorted(SENTENCES)
    sources = [{source for source, _ in part} for part in corpus]
    assert sum(map(len, sources)) == len(set().union(*sources)) == 50
    assert len(sources[2]) == max(1, round(held_out * 50))
    (folder / "cmn.txt").write_text(COLUMNS, encoding="utf-8")
    (folder / "cmn-eng.zip").unlink()
    assert read_tatoeba(folder, seed=seed, held_out=held_out) == corpus
    with pytest.raises(FileExistsError, match=r"cmn\.txt would be read in place of cmn-eng\.zip"):
        download_tatoeba(folder)


def test_tatoeba_may_come_in_two_parts(tmp_path):
    """Which stay as they are; and what is missing is named."""
    with pytest.raises(
        FileNotFoundError, match=r"cmn\.txt nor cmn-eng\.zip nor train.*download_.*'\)"
    ):
        read_tatoeba(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"download_tatoeba\(.*, target='deu'\)"):
        read_tatoeba(tmp_path, target="deu")
    (tmp_path / "train.tsv").write_text("a\tb\nc\td\n")
    with pytest.raises(FileNotFoundError, match="dev.tsv"):
        read_tatoeba(tmp_path)
    (tmp_path / "dev.tsv").write_text("e\tf\n")
    assert read_tatoeba(tmp_path) == Corpus([("a", "b"), ("c", "d")], [("e", "f")], [])


def test_only_one_file_of_an_archive_is_looked_at(tmp_path):
    """Whatever else is in it, nothing is written; and it may not be huge."""
    path = tmp_path / "new" / "cmn-eng.zip"
    path.parent.mkdir()
    path.write_bytes(zipped(_up_evil__txt="x", cmn__txt="a\tb\n"))
    assert read_pairs(path) == [("a", "b")]
    assert list(tmp_path.iterdir()) == [path.parent] and list(path.parent.iterdir()) == [path]
    assert data.unzip(path, limit=4) == b"a\tb\n"
    with pytest.raises(zipfile.BadZipFile, match=r"cmn\.txt has more than 3 bytes"):
        data.unzip(path, limit=3)
    path.write_bytes(zipped(_up_cmn__txt="a\tb\n"))
    with pytest.raises(ValueError, match=r"cmn-eng\.zip is not a whole \.zip file: .*no cmn\.txt"):
        read_pairs(path)


def test_the_pairs_sha256_hangs_on_every_letter_and_their_order():
    """It is the SHA-256 of a plain file of the pairs."""
    pairs = [("a", "é"), ("b", "c")]
    assert pairs_sha256(pairs) == hashlib.sha256("a\té\nb\tc\n".encode()).hexdigest()
    others = [pairs[::-1], pairs[:1], [("a", "e"), ("b", "c")], [("é", "a"), ("b", "c")]]
    assert len({pairs_sha256(other) for other in [pairs, *others]}) == 5


class Site:
    """Files that are served on this machine, and what goes wrong on the way."""

    def __init__(self):
        self.files: dict[str, bytes] = {}
        self.asked: Counter[str] = Counter()
        self.missing = 0  # bytes that are promised and never sent
        self.done = threading.Event()
        self.slow = False

    def handler(site):  # noqa: N805
        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                name = self.path[1:]
                site.asked[name] += 1
                if site.slow:
                    site.done.wait(10)
                content = site.files.get(name)
                if content is None:
                    self.send_error(404)
                    return
                self.send_response(200)
                self.send_header("Content-Length", str(len(content) + site.missing))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *args):
                pass

        return Handler


@contextmanager
def serve(files: dict[str, bytes]) -> Iterator[Site]:
    """Serve files on a free port of this machine."""
    site = Site()
    site.files = files
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), site.handler()) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        site.base = f"http://127.0.0.1:{server.server_port}"
        try:
            yield site
        finally:  # also when a test fails, or the thread would spin at a closed socket for ever
            site.done.set()
            server.shutdown()
            thread.join()


@pytest.fixture
def site(monkeypatch, tmp_path):
    """Serve the six files of a small Multi30k, whose sums are known, and an archive of Tatoeba."""
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    sums = {split: pairs_sha256(pairs) for split, pairs in MULTI30K.items()}
    monkeypatch.setattr(data, "MULTI30K_SHA256", sums)
    source = tmp_path / "source"
    source.mkdir()
    write_multi30k(source, "gz")
    files = {path.name: path.read_bytes() for path in source.iterdir()}
    with serve({**files, "cmn-eng.zip": ARCHIVE}) as site:
        yield site


def closed_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def test_multi30k_is_fetched_once(site, tmp_path):
    """What is there already and right is not asked for again."""
    folder = tmp_path / "deep" / "new"
    sums = download_multi30k(folder, base=site.base)
    assert sums == data.MULTI30K_SHA256
    assert read_multi30k(folder) == Corpus(*MULTI30K.values())
    assert sorted(path.name for path in folder.iterdir()) == sorted(
        set(site.files) - {"cmn-eng.zip"}
    )
    assert download_multi30k(folder, base=site.base) == sums
    assert sum(site.asked.values()) == 6
    (folder / "val.de.gz").unlink()
    download_multi30k(folder, base=site.base)
    assert site.asked["val.de.gz"] == 2 and site.asked["train.de.gz"] == 1


def test_tatoeba_is_fetched_once(site, tmp_path):
    """The sum that comes back is the archive's."""
    found = download_tatoeba(tmp_path / "new", base=site.base)
    assert found == hashlib.sha256(ARCHIVE).hexdigest()
    assert download_tatoeba(tmp_path / "new", base=site.base, sha256=found) == found
    assert site.asked["cmn-eng.zip"] == 1
    assert sum(map(len, read_tatoeba(tmp_path / "new"))) == len(SENTENCES)
    with pytest.raises(OSError, match=f"SHA-256 {found}, not 0{found[1:]}0; "):
        download_tatoeba(tmp_path / "new", sha256=f"0{found[1:]}0")


def trouble(site, kind: str) -> tuple[str, str]:
    """Make it; return the base address, and what the message must say of it."""
    names = ["train.en.gz", "cmn-eng.zip"]
    if kind == "missing":
        for name in names:
            del site.files[name]
        return site.base, "404"
    if kind == "cut short":
        site.missing = 5
        return site.base, "only .* of .* bytes came|IncompleteRead"
    if kind == "slow":
        site.slow = True
        return site.base, "timed out"
    if kind == "another page":
        for name in names:
            site.files[name] = b"<html>Please log in.</html>"
        return site.base, r"/(train\.en|cmn-eng)\.(gz|zip) is not a whole \.(gz|zip) file"
    if kind == "refused":
        return f"http://127.0.0.1:{closed_port()}", "refused"
    if kind == "no network":
        return "http://no.such.host.invalid", "cannot download"
    return "httpx://nowhere", "unknown url type"


@pytest.mark.parametrize(
    "kind",
    ["missing", "cut short", "slow", "another page", "refused", "no network", "nonsense"],
)
@pytest.mark.parametrize("corpus", ["multi30k", "tatoeba"])
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_failed_download_is_one_clear_line_and_leaves_nothing(corpus, kind, site, tmp_path):
    """With the address, the reason and the way out; the same for every kind of failure."""
    base, reason = trouble(site, kind)
    folder = tmp_path / "new"
    get = download_multi30k if corpus == "multi30k" else download_tatoeba
    with pytest.raises(OSError, match=reason) as caught:
        get(folder, base=base, timeout=0.3)
    message = str(caught.value)
    del caught
    gc.collect()  # when it times out, urllib forgets to close its socket, and Python says so now
    assert base in message and "\n" not in message and message.count(str(folder)) == 2
    assert f"by hand into {folder}; read_{corpus}(" in message
    assert list(folder.iterdir()) == []


def test_a_body_that_is_cut_short_is_no_file(monkeypatch, tmp_path):
    """A connection that breaks looks like the end of the file, but for its promised length."""
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with serve({"a": b"12345"}) as site:
        data.download(f"{site.base}/a", tmp_path / "a")
        assert (tmp_path / "a").read_bytes() == b"12345"
        site.missing = 5
        with pytest.raises(OSError, match="cannot download"):
            data.download(f"{site.base}/a", tmp_path / "b")


def test_files_that_lie_there_are_checked(tmp_path):
    """Before anything is fetched: these are not Multi30k."""
    write_multi30k(tmp_path, "plain")
    with pytest.raises(OSError, match=r"train\.de \(move them away.*not 7e2c4572"):
        download_multi30k(tmp_path, base="http://127.0.0.1:1")
    sums = download_multi30k(tmp_path, base="http://127.0.0.1:1", check=False)
    assert sums == {split: pairs_sha256(pairs) for split, pairs in MULTI30K.items()}


def test_the_wrong_text_is_not_taken(site, tmp_path):
    """Unless it is asked for; what came before it stays."""
    folder = tmp_path / "new"
    site.files["val.de.gz"] = gzip.compress(b"something\nelse\n")
    with pytest.raises(OSError, match="SHA-256") as caught:
        download_multi30k(folder, base=site.base)
    wrong = pairs_sha256([("b 0", "something"), ("b 1", "else")])
    for part in (f"{site.base}/val.de.gz", wrong, data.MULTI30K_SHA256["val"], "check=False"):
        assert part in str(caught.value)
    assert sorted(path.name for path in folder.iterdir()) == ["train.de.gz", "train.en.gz"]
    assert download_multi30k(folder, base=site.base, check=False)["val"] == wrong
    with pytest.raises(
        OSError, match=r"val\.de\.gz \(move them away to fetch them anew\): the pairs"
    ):
        download_multi30k(folder, base=site.base)
    with pytest.raises(OSError, match="SHA-256 .*, not 00; .*by hand"):
        download_tatoeba(folder, base=site.base, sha256="00")
    assert not (folder / "cmn-eng.zip").exists()


def test_a_folder_that_cannot_be_written(site, tmp_path):
    """Here it lies below a file; nothing is asked of the server."""
    (tmp_path / "file").write_text("")
    for get in (download_multi30k, download_tatoeba):
        with pytest.raises(OSError, match="cannot write into .*new: .*; choose another folder$"):
            get(tmp_path / "file" / "new", base=site.base)
    assert not site.asked


def test_the_home_of_multi30k_is_one_version():
    """A commit, not a branch, and a sum for each part."""
    assert re.search("/[0-9a-f]{40}/data/task1/raw$", data.MULTI30K_HOME)
    assert all(re.fullmatch("[0-9a-f]{64}", value) for value in data.MULTI30K_SHA256.values())


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
    assert len(batches.plan(epoch)) == len(batches.plan(epoch + 1))


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


@given(pair_lists, st.integers(40, 90), seeds, st.integers(0, 3), st.integers(1, 5))
def test_processes_share_an_epoch(pairs, max_tokens, seed, epoch, world):
    """Together they see each batch once, in the order of the plan."""
    batches = TokenBatches(pairs, tokenizer(), max_tokens, seed)
    shares = [list(batches.epoch(epoch, start=r, every=world)) for r in range(world)]
    whole = list(batches.epoch(epoch))
    assert sum(map(len, shares)) == len(whole)
    for n, batch in enumerate(whole):
        mine = shares[n % world][n // world]
        assert mine.src.equal(batch.src) and mine.tgt.equal(batch.tgt)


@pytest.mark.parametrize("start, every", [(-1, 1), (0, 0), (0, -2)])
def test_a_share_that_makes_no_sense_is_refused(start, every):
    """A negative start would begin near the end."""
    batches = TokenBatches([("a", "b")], tokenizer())
    with pytest.raises(ValueError, match=f"not {start} and {every}"):
        next(batches.epoch(0, start, every))


@given(pair_lists, st.integers(40, 90), st.integers(0, 3))
def test_padding_is_counted(pairs, max_tokens, epoch):
    """Of both sides together, as in the batches that are made."""
    batches = TokenBatches(pairs, tokenizer(), max_tokens)
    padding = places = 0
    for batch in batches.epoch(epoch):
        padding += (batch.src == PAD).sum().item() + (batch.tgt == PAD).sum().item()
        places += batch.src.numel() + batch.tgt.numel()
    assert batches.padding(epoch) == pytest.approx(padding / places)


def test_pairs_of_like_length_share_a_batch():
    """By the longer side: in an epoch, sorted by it, no batch reaches into another."""
    batches = TokenBatches(date_pairs(2000), tokenizer(), 600)
    assert batches.padding() < 0.06 and batches.padding(3) < 0.06
    spans = sorted(sorted(map(batches.length, numbers)) for numbers in batches.plan(1))
    for span, after in zip(spans, spans[1:], strict=False):
        assert span[-1] <= after[0]


def test_each_side_may_have_a_vocabulary_of_its_own():
    """Then the target is cut by the second tokeniser, the source by the first."""
    pairs = date_pairs(50)
    own = Tokenizer.train([target for _, target in pairs], 280)
    batches = TokenBatches(pairs, tokenizer(), 400, tgt_tokenizer=own)
    assert batches.src == TokenBatches(pairs, tokenizer(), 400).src
    assert batches.tgt == [[BOS, *own.encode(target), EOS] for _, target in pairs]


def test_two_workers_make_the_same_batches():
    """Real processes; none is lost, none doubled, and they come in order."""
    batches = TokenBatches(date_pairs(200), tokenizer(), 200)
    plan = batches.plan(1)
    for workers in (0, 2):
        loader = DataLoader(batches, sampler=plan, batch_size=None, num_workers=workers)
        made = list(loader)
        assert len(made) == len(loader) == len(plan)
        for batch, expected in zip(made, batches.epoch(1), strict=True):
            assert isinstance(batch, Batch)
            assert batch.src.equal(expected.src) and batch.tgt.equal(expected.tgt)


def test_batches_have_no_numbers():
    """A list of pairs asks for one, so that a loop over them cannot go wrong in silence."""
    batches = TokenBatches([("a", "b")] * 3, tokenizer())
    with pytest.raises(TypeError):
        batches[0]
    with pytest.raises(TypeError):
        list(batches)
    assert batches[[0, 2]].src.equal(batches.make([0, 2]).src)


@pytest.mark.parametrize("pair, side", [(("x" * 30, "y"), "source"), (("x", "y" * 30), "target")])
def test_what_does_not_fit_is_named(pair, side):
    """The side that is too long, so that it can be searched for."""
    pairs = [("a", "b"), pair, ("a", "bb")]
    message = rf"the {side} of a pair, of 3[12] tokens, .*: '(x|y){{30}}' \(of 3 pairs 1 are"
    with pytest.raises(ValueError, match=message):
        TokenBatches(pairs, Tokenizer.train([], 260), max_tokens=20)


def test_no_pairs_make_no_batches():
    """They would make an endless epoch."""
    with pytest.raises(ValueError, match="no sentence pairs"):
        TokenBatches([], tokenizer())


def test_a_tokeniser_that_cannot_be_written_is_an_oserror(tmp_path):
    with pytest.raises(OSError, match="nowhere"):
        Tokenizer.train([], 260).save(tmp_path / "nowhere" / "tokenizer.json")
