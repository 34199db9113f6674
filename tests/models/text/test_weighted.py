"""Weighted prompts in chunks for small encoders: splitting, padding, equal counts and warnings."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from models.spec.request import RequestError
from models.text.tokenizer import BlankTokenizer, ClipTokenizer, T5Tokenizer, Tokenizer
from models.text.weighted import Chunks, in_chunks, in_one, read_lines, read_weighted
from tests.parity import tiny

LENGTH = 7
"""Tokens of a chunk: five, and two markers."""


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> ClipTokenizer:
    folder: Path = tmp_path_factory.mktemp("clip")
    tiny.clip_tokenizer(77).save_pretrained(folder)
    return ClipTokenizer(folder)


@pytest.fixture(scope="module")
def t5(tmp_path_factory: pytest.TempPathFactory) -> T5Tokenizer:
    folder: Path = tmp_path_factory.mktemp("t5")
    tiny.t5_tokenizer(512).save_pretrained(folder)
    return T5Tokenizer(folder)


def chunks(tokenizer: Tokenizer, prompt: str, most: int = 4) -> Chunks:
    return in_chunks(tokenizer, read_weighted(tokenizer, "prompt", prompt), LENGTH, most)


@pytest.mark.parametrize(
    ("prompt", "texts"),
    [
        ("", [""]),
        ("a red star", ["a red star"]),
        ("a red star above a", ["a red star above a"]),
        ("a red star above a circle", ["a red star above a", "circle"]),
        ("a red, star above a circle", ["a red,", "star above a circle"]),
        ("a red star above a, circle", ["a red star above a", ", circle"]),
        ("a red star above a BREAK circle", ["a red star above a", "circle"]),
        ("BREAK a BREAK BREAK red BREAK", ["", "a", "", "red"]),
        ("BREAK", [""]),
    ],
)
def test_chunks_are_the_words_of_prompts_of_their_own(
    clip: ClipTokenizer, prompt: str, texts: list[str]
) -> None:
    result = chunks(clip, prompt)
    np.testing.assert_array_equal(result.ids, clip.encode(texts, LENGTH))
    np.testing.assert_array_equal(result.mask, clip.encode_with_mask(texts, LENGTH).mask)
    assert result.ids.dtype == np.int32
    assert not result.is_weighted and result.unread == ""


def test_weights_are_those_of_their_words(clip: ClipTokenizer) -> None:
    result = chunks(clip, "(a red:2) star [above] a (circle:0.5)")
    light = np.float32(1 / 1.1)
    np.testing.assert_array_equal(
        result.weights, np.float32([[1, 2, 2, 1, light, 1, 1], [1, 0.5, 1, 1, 1, 1, 1]])
    )
    assert result.weights.dtype == np.float32 and result.is_weighted


@pytest.mark.parametrize(
    ("prompt", "unread"),
    [
        ("a red star above a circle on blue", "circle on blue"),
        ("a red star above a BREAK (circle) on", "circle on"),
        ("a red star above (yellowish:2) circle", "yellowish circle"),
        ("a red star above a", ""),
    ],
)
def test_unread_text_starts_at_the_first_unread_word(
    clip: ClipTokenizer, prompt: str, unread: str
) -> None:
    result = chunks(clip, prompt, most=1)
    assert result.unread == unread
    np.testing.assert_array_equal(result.ids, chunks(clip, prompt).ids[:1])


def test_more_chunks_are_empty_or_the_same(clip: ClipTokenizer) -> None:
    single = chunks(clip, "(red)")
    double = single.of_count(2, clip)
    np.testing.assert_array_equal(double.ids, clip.encode(["red", ""], LENGTH))
    np.testing.assert_array_equal(double.repeated(3).ids, np.tile(double.ids, (3, 1)))
    np.testing.assert_array_equal(double.repeated(3).weights, np.tile(double.weights, (3, 1)))
    assert (double.weights[1] == 1).all()


def test_a_break_is_a_space_where_a_prompt_is_read_in_one(t5: T5Tokenizer) -> None:
    weighted = read_weighted(t5, "prompt", "a (red:2) star BREAK [above]")
    result = in_one(t5, weighted, LENGTH)
    np.testing.assert_array_equal(result.ids, t5.encode(["a red star above"], LENGTH))
    np.testing.assert_array_equal(result.weights[0], np.float32([1, 2, 1, 1 / 1.1, 1, 1, 1]))


def test_lines_warn_by_field(t5: T5Tokenizer) -> None:
    texts = {"prompt": "a (red) BREAK star", "negative_prompt": "star " * 9}
    lines = read_lines("T5", t5, texts, LENGTH)
    assert lines.ids.shape == lines.weights.shape == lines.mask.shape == (2, LENGTH)
    assert [(warning.field, warning.message) for warning in lines.warnings] == [
        ("prompt", "BREAK acts as a space: this model encodes a prompt in one chunk"),
        ("negative_prompt", "T5 reads 7 tokens; not read: 'star star star'"),
    ]


def test_without_a_vocabulary_prompts_are_of_the_same_shape() -> None:
    blank = BlankTokenizer()
    result = chunks(blank, "a (red:2) star")
    np.testing.assert_array_equal(result.ids, blank.encode(["a"], LENGTH))
    assert not result.is_weighted


def test_an_error_names_its_field(clip: ClipTokenizer) -> None:
    with pytest.raises(RequestError, match="prompt_2: a weight is 1000"):
        read_weighted(clip, "prompt_2", "(a:1000)")
