"""Embeddings and positions."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support import close, random_ids, random_tensor, seeds, sizes

from transformer_lit.attention import attention
from transformer_lit.embedding import (
    Embedding,
    LearnedPositions,
    SinusoidalPositions,
    TokenEmbedding,
    load_vectors,
    sinusoidal_positions,
)


@given(seeds, st.integers(1, 9), sizes, sizes)
def test_embedding_is_a_product_with_one_hot_vectors(seed, d, b, t):
    """Section 3.4: times the root of the width."""
    tokens = TokenEmbedding(12, d)
    ids = random_ids(seed, b, t, vocab_size=12)
    one_hot = torch.nn.functional.one_hot(ids, 12).float()
    close(tokens(ids), one_hot @ tokens.weight * math.sqrt(d))


@pytest.mark.parametrize("bad", [-1, 12])
def test_an_id_out_of_range_is_refused(bad):
    """Rather than some other token's vector."""
    with pytest.raises(IndexError, match=f"token id {bad} is not in the table of 12 tokens"):
        TokenEmbedding(12, 4)(torch.tensor([[1, bad]]))


def write(folder, content):
    path = folder / "vectors.txt"
    path.write_bytes(content)
    return path


@given(
    numbers=st.lists(st.lists(st.floats(-9, 9, width=16), min_size=4, max_size=4), min_size=3),
    header=st.booleans(),
    mark=st.sampled_from([b"", b"\xef\xbb\xbf"]),
    gap=st.sampled_from([" ", "\t", "   ", " \t "]),
    end=st.sampled_from(["\n", "\r\n", " \n", "\n\n"]),  # word2vec writes a space at the end
)
def test_published_vectors_are_loaded(numbers, header, mark, gap, end, tmp_path_factory):
    """Of word2vec and GloVe: the embedding answers with them, and its other rows stay."""
    words = [f"word{i}" for i in range(len(numbers) - 1)] + [". . ."]  # GloVe has words with spaces
    lines = [gap.join([word, *map(str, row)]) for word, row in zip(words, numbers, strict=True)]
    lines = [f"{len(words)} 4"] * header + lines + ["word0 0 0 0 0"]  # the first of two counts
    content = mark + "".join(line + end for line in lines).encode()
    path = write(tmp_path_factory.mktemp("vectors"), content)

    tokens = TokenEmbedding(len(words) + 2, 4)
    before = tokens.weight.clone()
    wanted = {word: len(words) + 1 - i for i, word in enumerate(words[1:])} | {"word0": 0, "no": 1}
    assert load_vectors(tokens, path, wanted) == (words, ["no"], ["word0"], 0)
    for word, row in zip(words, numbers, strict=True):
        close(tokens(torch.tensor([[wanted[word]]]))[0, 0], row)
    untouched = set(range(len(words) + 2)) - {wanted[word] for word in words}
    assert all(tokens.weight[i].equal(before[i]) for i in untouched)


parts = st.text(
    st.characters(codec="utf-8", exclude_characters=" \t\n\r\v\f\ufeff"), min_size=1, max_size=4
)


@given(
    words=st.lists(
        st.tuples(parts, st.sampled_from(["", " .", "  of"])), min_size=1, max_size=9, unique=True
    )
)
def test_any_word_is_read(words, tmp_path_factory):
    """Also one with a space in it, or made of what Unicode takes for a space or a line's end."""
    words = [part + rest for part, rest in words]
    content = "".join(f"{word} {i} 0.5 -1e-2\n" for i, word in enumerate(words)).encode()
    tokens = TokenEmbedding(len(words), 3)
    ids = {word: i for i, word in enumerate(words)}
    path = write(tmp_path_factory.mktemp("vectors"), content)
    assert load_vectors(tokens, path, ids).found == words
    expected = torch.tensor([[i, 0.5, -1e-2] for i in range(len(words))])
    close(tokens(torch.arange(len(words))[None])[0], expected)


def test_odd_lines_are_passed_over_and_counted(tmp_path):
    """Words that are not UTF-8 or are blank, and numbers of words that nobody wants."""
    content = b"caf\xe9 1 2\n  3 4\n\x85 5 6\ncaf 7 8\nno 1,5 x\n\n"
    tokens = TokenEmbedding(3, 2)
    report = load_vectors(tokens, write(tmp_path, content), {"caf": 0, "caf\ufffd": 1})
    assert report == (["caf"], ["caf\ufffd"], [], 2)
    close(tokens(torch.tensor([[0]]))[0, 0], [7.0, 8.0])


DAMAGED = [
    (b"", "has 0 vectors where 1 or more are due"),
    (b"\n\n", "has 0 vectors where 1 or more are due"),
    (b"2 4\n", "has 0 vectors where 2 or more are due"),
    (b"3 4\na 1 2 3 4\nb 1 2 3 4\n", "has 2 vectors where 3 or more are due: is it cut off"),
    (b"3 5\na 1 2 3 4 5\n", "line 1: the vectors are 5 wide, but d_model=4"),
    (b"a 1 2 3\n", "line 1: 3 numbers, but d_model=4"),
    (b"a 1 2 3 4 5\n", "line 1: 5 numbers, but d_model=4"),
    (b"a 1 2 3 4\nother 1 2 3 4 5 6\n", "line 2: 6 numbers, but d_model=4"),
    (b"a 1 2 3 4\nb 1 2", "line 2: 2 numbers, but d_model=4"),
    (b"a,1,2,3,4\n", "line 1: 0 numbers, but d_model=4"),
    (b"a 1 2 3 4\nb 1 2 3 x\n", "line 2, 'b': could not convert .*'x'"),
    (b"a 1 2 3 4\nb 1,0 2,0 3,0 4,0\n", "line 2, 'b': could not convert .*'1,0'"),
    (b"a 1 2 3 4\nb 1 2 3 nan\n", "line 2, 'b': a number is not finite"),
    (b"a 1 2 3 4\nb 1 2 3 1e99\n", "line 2, 'b': a number is not finite"),  # not in float32
    ("a 1 2 3 4\n".encode("utf-16"), "is UTF-16, not UTF-8"),
    (b"2 4\na \x00\x00\x80?\x0a\xd7\xa3", "line 2: 1 numbers, but .* is this a whole text file"),
]


def test_damaged_files_are_refused(tmp_path):
    """The message names the line, the fault and what was expected; the table stays as it was."""
    tokens = TokenEmbedding(3, 4)
    before = tokens.weight.clone()
    for content, message in DAMAGED:
        with pytest.raises(ValueError, match=message):
            load_vectors(tokens, write(tmp_path, content), {"a": 0, "b": 1})
    assert tokens.weight.equal(before)
    with pytest.raises(FileNotFoundError):
        load_vectors(tokens, tmp_path / "none.txt", {"a": 0})


def test_each_word_needs_a_row_of_its_own(tmp_path):
    """A negative one would be counted from the end, a shared one filled by whoever comes last."""
    path = write(tmp_path, b"a 1 2 3 4\n")
    for ids, message in [
        ({"a": 3}, "'a' wants row 3, but the table has rows 0 to 2"),
        ({"a": -1}, "'a' wants row -1"),
        ({"b": 1, "a": 1}, "'b' and 'a' both want row 1"),
    ]:
        with pytest.raises(ValueError, match=message):
            load_vectors(TokenEmbedding(3, 4), path, ids)


def test_vectors_are_loaded_in_the_type_of_the_table(tmp_path):
    """And divided before they are rounded."""
    tokens = TokenEmbedding(1, 3).double()
    load_vectors(tokens, write(tmp_path, b"a 0.1 0.2 0.3\n"), {"a": 0})
    close(tokens(torch.tensor([[0]]))[0, 0], [0.1, 0.2, 0.3])


def test_position_one_of_width_four():
    """F24: the exponent is 2i/d for the sine and for the cosine beside it."""
    expected = torch.tensor([0.8415, 0.5403, 0.0100, 0.99995])
    torch.testing.assert_close(sinusoidal_positions(2, 4)[1], expected, atol=5e-5, rtol=0)


@given(st.integers(1, 9), sizes, st.integers(0, 100_000))
def test_sinusoids_follow_the_formula(d, length, start):
    """F24: for odd widths and far positions as well, computed here number by number."""
    expected = [
        [
            (math.cos if i % 2 else math.sin)(p / 10000 ** (2 * (i // 2) / d))  # section 3.5
            for i in range(d)
        ]
        for p in range(start, start + length)
    ]
    close(sinusoidal_positions(length, d, start), expected)


@given(st.integers(1, 33), st.integers(0, 5000), st.integers(-5000, 5000))
def test_a_step_is_a_rotation(d, p, k):
    """In all pairs of a sine and a cosine, and by an angle that depends on the step alone."""
    start, end = (sinusoidal_positions(1, d, start=q)[0, : d - d % 2] for q in (p, p + k))
    angle = k / 10000 ** (torch.arange(0, d - 1, 2, dtype=torch.float64) / d)
    sin, cos = angle.sin(), angle.cos()
    expected = [cos * start[0::2] + sin * start[1::2], -sin * start[0::2] + cos * start[1::2]]
    close(end, torch.stack(expected, -1).flatten().float())


@given(seeds, st.integers(2, 6))
def test_attention_without_positions_is_blind_to_order(seed, t):
    """Its output is reordered with its input, and the mean of it stays; positions end that."""
    embedding = Embedding(50, 8)
    g = torch.Generator().manual_seed(seed)
    ids = torch.randperm(50, generator=g)[None, :t]
    order = torch.arange(t).roll(1)
    for embed, blind in [(embedding.tokens, True), (embedding, False)]:
        x, moved = embed(ids), embed(ids[:, order])
        output, _ = attention(x, x, x)
        output_moved, _ = attention(moved, moved, moved)
        assert torch.allclose(output_moved, output[:, order], atol=1e-5) == blind
        if blind:
            close(output_moved.mean(1), output.mean(1))


@given(st.integers(1, 9), st.integers(1, 8), sizes, st.integers(0, 30))
def test_the_table_of_sinusoids_grows(d, max_len, length, start):
    """F26: an input longer than the table is no error."""
    positions = SinusoidalPositions(d, max_len)
    for _ in range(2):
        close(positions(length, start), sinusoidal_positions(length, d, start))
    assert not positions.state_dict(), "the table need not be saved"


def test_the_table_grows_in_its_own_type():
    """F26: a model in double precision stays one."""
    assert SinusoidalPositions(4, 2).double()(5).dtype == torch.float64


def test_a_table_that_grew_while_decoding_can_be_trained_with():
    positions = SinusoidalPositions(4, 2)
    with torch.inference_mode():
        positions(5)
    assert not positions.table.is_inference()


def test_far_positions_need_no_table():
    """F26: a table of all that come before would need gigabytes."""
    positions = SinusoidalPositions(6, 4)
    start = 10**5
    close(positions(3, start), sinusoidal_positions(3, 6, start))
    assert len(positions.table) == 4


def test_positions_are_counted_from_0():
    """A negative start would be sliced from the end of the table, and the token vanish."""
    for positions in (SinusoidalPositions(6, 4), LearnedPositions(6, 4)):
        for length, start in [(1, -1), (2, -1)]:
            with pytest.raises(ValueError, match="counted from 0, so start=-1"):
                positions(length, start)


def test_a_table_may_grow_while_evaluating():
    """And be trained with afterwards."""
    embedding = Embedding(12, 6, max_len=2)
    with torch.inference_mode():
        embedding(random_ids(0, 1, 5, vocab_size=12))
    embedding(random_ids(0, 1, 5, vocab_size=12)).sum().backward()
    assert embedding.tokens.weight.grad.any()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: TokenEmbedding(0, 4), "vocab_size must be at least 1, not 0"),
        (lambda: TokenEmbedding(4, 0), "d_model must be at least 1, not 0"),
        (lambda: sinusoidal_positions(4, -2), "d_model must be at least 1, not -2"),
        (lambda: SinusoidalPositions(0), "d_model must be at least 1, not 0"),
        (lambda: LearnedPositions(4, 0), "max_len must be at least 1, not 0"),
    ],
)
def test_sizes_that_make_no_sense_are_refused(make, message):
    """By their names."""
    with pytest.raises(ValueError, match=message):
        make()


def test_learned_positions_name_their_limit():
    """F26: limit 4, length 5."""
    positions = LearnedPositions(6, max_len=4)
    assert positions(3, start=1).equal(positions.table[1:])
    for length, start in [(5, 0), (1, 4)]:
        with pytest.raises(ValueError, match="5 positions.*max_len=4"):
            positions(length, start)


def test_learned_positions_start_as_large_as_tokens():
    """Variance 1 / d."""
    torch.manual_seed(0)
    assert LearnedPositions(64, 500).table.std().item() == pytest.approx(64**-0.5, rel=0.05)


@given(seeds, st.sampled_from(["sinusoidal", "learned"]), sizes, st.integers(0, 6))
def test_tokens_and_positions_are_added(seed, kind, t, start):
    """The first id stands at position ``start``."""
    embedding = Embedding(12, 6, positions=kind, max_len=12)
    ids = random_ids(seed, 2, t, vocab_size=12)
    expected = embedding.tokens(ids) + embedding.positions(12)[start : start + t]
    close(embedding(ids, start), expected)


def test_embedding_drops_out_while_training_only():
    """Section 5.4: dropout on the sum of embeddings and positions."""
    embedding = Embedding(12, 50, dropout=0.5)
    ids = random_ids(0, 2, 10, vocab_size=12)
    zeros = (embedding(ids) == 0).float().mean()
    assert 0.4 < zeros < 0.6
    embedding.eval()
    assert embedding(ids).equal(embedding.tokens(ids) + embedding.positions(10))


def test_unknown_positions_are_refused():
    """The message names those that there are."""
    with pytest.raises(ValueError, match="sinusoidal, learned, not 'rotary'"):
        Embedding(12, 6, positions="rotary")


def test_gradients_reach_the_rows_that_were_looked_up():
    """And no others."""
    tokens = TokenEmbedding(12, 4)
    ids = torch.tensor([[5, 7, 5]])
    direction = random_tensor(0, 1, 3, 4)
    (tokens(ids) * direction).sum().backward()
    expected = torch.zeros(12, 4).index_add(0, ids[0], 2 * direction[0])  # sqrt(4) = 2
    close(tokens.weight.grad, expected)
