"""Embeddings and positions."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support import close, random_ids, random_tensor, seeds, sizes

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
    with pytest.raises(IndexError):
        TokenEmbedding(12, 4)(torch.tensor([[1, bad]]))


@given(
    numbers=st.lists(st.lists(st.floats(-9, 9, width=16), min_size=4, max_size=4), min_size=3),
    header=st.booleans(),
    crlf=st.booleans(),
)
def test_published_vectors_are_loaded(numbers, header, crlf, tmp_path_factory):
    """Of word2vec and GloVe: the embedding answers with them, and its other rows stay."""
    words = [f"word{i}" for i in range(len(numbers) - 1)] + [". . ."]  # GloVe has words with spaces
    lines = [" ".join([word, *map(str, row)]) for word, row in zip(words, numbers, strict=True)]
    lines = [f"{len(words)} 4"] * header + lines + ["word0 0 0 0 0"]  # the first of two counts
    path = tmp_path_factory.mktemp("vectors") / "vectors.txt"
    path.write_bytes("".join(line + "\r\n" * crlf + "\n" * (not crlf) for line in lines).encode())

    tokens = TokenEmbedding(len(words) + 2, 4)
    before = tokens.weight.clone()
    wanted = {word: len(words) + 1 - i for i, word in enumerate(words[1:])} | {"word0": 0, "no": 1}
    assert load_vectors(tokens, path, wanted) == set(words)
    for word, row in zip(words, numbers, strict=True):
        close(tokens(torch.tensor([[wanted[word]]]))[0, 0], row)
    untouched = set(range(len(words) + 2)) - {wanted[word] for word in words}
    assert all(tokens.weight[i].equal(before[i]) for i in untouched)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a 1 2 3\n", "line 1: 3 numbers, but d_model=4"),
        ("a 1 2 3 4 5\n", "line 1: 5 numbers, but d_model=4"),
        ("1 5\na 1 2 3 4 5\n", "line 2: 5 numbers, but d_model=4"),
        ("a 1 2 3 4\nb 1 2", "line 2: 2 numbers, but d_model=4"),
    ],
)
def test_vectors_of_another_width_are_refused(content, message, tmp_path):
    """The message names the line; the last one is cut off."""
    path = tmp_path / "vectors.txt"
    path.write_text(content)
    with pytest.raises(ValueError, match=message):
        load_vectors(TokenEmbedding(3, 4), path, {"a": 0, "b": 1})


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
