"""Tokenizers of checkpoint folders, in every supported file format."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import sentencepiece

from models.checkpoint.folder import CheckpointError
from models.text.tokenizer import ClipTokenizer, T5Tokenizer
from tests.parity import tiny

WORDS = tiny.WORDS.split()
LONG = " ".join(WORDS * 12)


@pytest.fixture
def clip_folder(tmp_path: Path) -> Path:
    tiny.clip_tokenizer(77).save_pretrained(tmp_path)
    return tmp_path


@pytest.fixture
def t5_folder(tmp_path: Path) -> Path:
    tiny.t5_tokenizer(512).save_pretrained(tmp_path)
    return tmp_path


@pytest.fixture
def sentence_pieces(tmp_path: Path) -> Path:
    """Folder with only `spiece.model`, trained by sentencepiece with T5's special ids."""
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([" ".join(WORDS), "a red circle on a blue background"] * 20),
        model_prefix=str(tmp_path / "spiece"),
        vocab_size=60,
        hard_vocab_limit=False,
        pad_id=0,
        eos_id=1,
        unk_id=2,
        bos_id=-1,
        minloglevel=2,
    )
    (tmp_path / "spiece.vocab").unlink()
    return tmp_path


def as_hub_files(folder: Path) -> None:
    """Convert `tokenizer.json` to the `vocab.json` and `merges.txt` of hub checkpoints."""
    model = json.loads((folder / "tokenizer.json").read_text())["model"]
    (folder / "tokenizer.json").unlink()
    (folder / "vocab.json").write_text(json.dumps(model["vocab"]))
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]]
    (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *merges]) + "\n")


class TestClip:
    def test_markers_and_padding(self, clip_folder: Path) -> None:
        tokenizer = ClipTokenizer(clip_folder)
        vocab = tiny.clip_tokenizer(77).get_vocab()
        ids, mask = tokenizer.encode_with_mask(["A  red\ncircle", ""])
        start, end = vocab["<|startoftext|>"], vocab["<|endoftext|>"]
        words = [vocab["a</w>"], vocab["red</w>"], vocab["circle</w>"]]
        assert ids.dtype == np.int32
        assert ids.shape == (2, tokenizer.max_length) == (2, 77)
        assert ids[0].tolist() == [start, *words, end] + [end] * 72
        assert ids[1].tolist() == [start, end] + [end] * 75
        assert mask.sum(axis=1).tolist() == [5, 2]

    def test_long_prompts_keep_their_end_marker(self, clip_folder: Path) -> None:
        tokenizer = ClipTokenizer(clip_folder)
        long, short = tokenizer.encode([LONG, "a"])
        assert long[-1] == short[-1]
        assert len(set(long.tolist())) > len(WORDS)
        np.testing.assert_array_equal(tokenizer.encode([LONG], 9)[0, :8], long[:8])

    def test_vocabulary_and_merges_without_tokenizer_json(self, clip_folder: Path) -> None:
        texts = ["a red circle", "Ein Würfel, 3 cats!? 𝒳", LONG]
        expected = ClipTokenizer(clip_folder).encode(texts)
        as_hub_files(clip_folder)
        np.testing.assert_array_equal(ClipTokenizer(clip_folder).encode(texts), expected)


class TestT5:
    def test_end_marker_and_padding(self, t5_folder: Path) -> None:
        vocab = tiny.t5_tokenizer(512).get_vocab()
        ids, mask = T5Tokenizer(t5_folder).encode_with_mask(["a red circle", ""], 7)
        words = [vocab["▁a"], vocab["▁red"], vocab["▁circle"]]
        assert ids.tolist() == [[*words, 1, 0, 0, 0], [1, 0, 0, 0, 0, 0, 0]]
        assert mask.sum(axis=1).tolist() == [4, 1]

    @pytest.mark.parametrize("length", [1, 2, 13, 512])
    def test_any_length(self, t5_folder: Path, length: int) -> None:
        ids = T5Tokenizer(t5_folder).encode([LONG * 4], length)
        assert ids.shape == (1, length)
        assert ids[0, -1] == 1
        assert 0 not in ids

    def test_sentence_pieces_without_tokenizer_json(self, sentence_pieces: Path) -> None:
        texts = ["a red circle", "blue stars below", "  on   a "]
        reference = sentencepiece.SentencePieceProcessor(str(sentence_pieces / "spiece.model"))
        for ids, text in zip(T5Tokenizer(sentence_pieces).encode(texts, 40), texts, strict=True):
            expected = [*reference.encode(text), 1]
            assert ids.tolist() == expected + [0] * (40 - len(expected))


@pytest.mark.parametrize(
    ("text", "length", "unread"),
    [
        ("a red circle", 77, ""),
        ("a red circle", 5, ""),
        ("a red circle", 4, "circle"),
        ("a  red\ncircle ", 3, "red\ncircle"),
        ("", 2, ""),
    ],
)
def test_the_words_that_are_not_read(
    clip_folder: Path, text: str, length: int, unread: str
) -> None:
    assert ClipTokenizer(clip_folder).unread(text, length) == unread


def test_unread_text_starts_at_a_whole_word(sentence_pieces: Path) -> None:
    tokenizer = T5Tokenizer(sentence_pieces)
    for length in range(2, 12):
        unread = tokenizer.unread("a red extraordinary circle", length)
        assert unread in ("a red extraordinary circle"[i:] for i in (2, 6, 20)) or not unread


def test_threads_with_lengths_of_their_own(t5_folder: Path) -> None:
    tokenizer = T5Tokenizer(t5_folder)
    lengths = list(range(2, 66)) * 8
    expected = {length: tokenizer.encode([LONG], length) for length in set(lengths)}
    with ThreadPoolExecutor(8) as threads:
        results = threads.map(lambda length: tokenizer.encode([LONG], length), lengths)
        for length, ids in zip(lengths, results, strict=True):
            np.testing.assert_array_equal(ids, expected[length])


class TestFaults:
    @pytest.mark.parametrize("kind", [ClipTokenizer, T5Tokenizer])
    def test_missing_files(self, kind: type, tmp_path: Path) -> None:
        with pytest.raises(CheckpointError, match=r"no tokenizer in it.*tokenizer\.json"):
            kind(tmp_path / "absent")

    def test_tokenizer_with_half_of_its_files_is_refused(self, clip_folder: Path) -> None:
        as_hub_files(clip_folder)
        (clip_folder / "merges.txt").unlink()
        with pytest.raises(CheckpointError, match=r"vocab\.json and merges\.txt"):
            ClipTokenizer(clip_folder)

    @pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"model": 3}', b"\xff\xfe"])
    def test_damaged(self, t5_folder: Path, content: bytes) -> None:
        (t5_folder / "tokenizer.json").write_bytes(content)
        with pytest.raises(CheckpointError, match="cannot be read"):
            T5Tokenizer(t5_folder)
