"""The demo's tokenizers: each word of its sentences is one token, and any text has tokens."""

from __future__ import annotations

from pathlib import Path

import pytest
from sentencepiece import SentencePieceProcessor
from transformers import CLIPTokenizer, T5TokenizerFast

from lab.demo.recipes.flux import CLIP
from lab.demo.world.motion import motions
from lab.demo.world.scenes import training_scenes
from lab.demo.world.tokenizers import (
    CLIP_LENGTH,
    CLIP_VOCABULARY,
    CLIPS_T5_VOCABULARY,
    T5_LENGTH,
    T5_VOCABULARY,
    clip_words,
    words,
    write_clip,
    write_t5,
)

STRANGE = "a purple hippo, ñ 3!"


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> CLIPTokenizer:
    folder = tmp_path_factory.mktemp("clip")
    assert write_clip(folder) == CLIP_VOCABULARY
    return CLIPTokenizer.from_pretrained(folder)


@pytest.fixture(scope="module")
def t5(tmp_path_factory: pytest.TempPathFactory) -> T5TokenizerFast:
    folder = tmp_path_factory.mktemp("t5")
    assert write_t5(folder, words()) == T5_VOCABULARY
    return T5TokenizerFast.from_pretrained(folder)


def test_a_word_is_a_token(clip: CLIPTokenizer, t5: T5TokenizerFast) -> None:
    sentence = " ".join(words())
    assert clip.convert_ids_to_tokens(clip(sentence)["input_ids"])[1:-1] == [
        f"{word}</w>" for word in words()
    ]
    assert t5.convert_ids_to_tokens(t5(sentence)["input_ids"]) == [
        *(f"\u2581{word}" for word in words()),
        "</s>",
    ]


def test_longest_sentence_fits_the_token_limits(clip: CLIPTokenizer, t5: T5TokenizerFast) -> None:
    single, double = training_scenes()
    longest = max(
        (scene.prompt for scene in (*single, *double)), key=lambda prompt: len(prompt.split())
    )
    assert len(clip(longest)["input_ids"]) <= CLIP_LENGTH
    assert len(t5(longest)["input_ids"]) <= T5_LENGTH


def test_strange_text_is_tokenized(clip: CLIPTokenizer, t5: T5TokenizerFast) -> None:
    tokens = clip(STRANGE)["input_ids"]
    assert len(tokens) > 8
    assert max(tokens) < CLIP_VOCABULARY
    assert clip.decode(tokens, skip_special_tokens=True).replace(" ", "") == STRANGE.replace(
        " ", ""
    )
    assert len(t5(STRANGE)["input_ids"]) > 8


def test_clip_pads_with_its_end(clip: CLIPTokenizer) -> None:
    """The encoder pools at the first end of text, so padding must not precede it."""
    assert clip.pad_token_id == clip.eos_token_id == CLIP.eos_token_id
    assert clip.model_max_length == CLIP_LENGTH == CLIP.max_position_embeddings


def test_the_files_are_the_same_every_time(tmp_path: Path) -> None:
    for name in ("first", "second"):
        write_clip(tmp_path / name)
        write_t5(tmp_path / name, words())
    for file in ("vocab.json", "merges.txt", "spiece.model", "tokenizer.json"):
        assert (tmp_path / "first" / file).read_bytes() == (tmp_path / "second" / file).read_bytes()


@pytest.mark.parametrize("text", ["a red circle", STRANGE, "", "  a   cross\n"])
def test_t5s_two_files_are_one_tokenizer(text: str, t5: T5TokenizerFast, tmp_path: Path) -> None:
    """transformers reads the converted file if present; SentencePiece is the reference."""
    write_t5(tmp_path, words())
    model = SentencePieceProcessor(model_file=str(tmp_path / "spiece.model"))
    assert t5(text)["input_ids"] == [*model.encode(" ".join(text.split())), model.eos_id()]


def test_the_words_of_clips_are_tokens_too(tmp_path: Path) -> None:
    assert write_t5(tmp_path, clip_words()) == CLIPS_T5_VOCABULARY
    tokenizer = T5TokenizerFast.from_pretrained(tmp_path)
    for motion in motions():
        assert len(tokenizer(motion.prompt)["input_ids"]) == len(motion.prompt.split()) + 1
    assert max(len(motion.prompt.split()) for motion in motions()) < T5_LENGTH


def test_the_second_clip_pads_with_an_exclamation_mark(tmp_path: Path) -> None:
    """SDXL pads with id 0, and the encoder pools at the first end of text before it."""
    write_clip(tmp_path, pad="!")
    tokenizer = CLIPTokenizer.from_pretrained(tmp_path)
    ids = tokenizer("a red circle", padding="max_length")["input_ids"]
    assert ids[5:] == [0] * (CLIP_LENGTH - 5)
    assert ids[4] == CLIP.eos_token_id
