"""Builds the demo's tokenizers from its sentences: one token per word, other text by letters.

Files have the usual formats: CLIP's byte-level BPE (`vocab.json`, `merges.txt`), and T5's
SentencePiece model (`spiece.model`). Some versions of transformers cannot convert the latter
without a character table, so its conversion (`tokenizer.json`) is included.
"""

from __future__ import annotations

import json
import string
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

from sentencepiece.sentencepiece_model_pb2 import ModelProto  # type: ignore[attr-defined]

from lab.demo.world.motion import Motion, motions
from lab.demo.world.vocabulary import Scene, one_object_scenes, two_object_scenes

CLIP_LENGTH = 16
T5_LENGTH = 16
CLIP_VOCABULARY, T5_VOCABULARY, CLIPS_T5_VOCABULARY = 596, 124, 118
"""Vocabulary sizes returned by `write_clip`, and by `write_t5` for the words of images and of
videos; checked by a test."""
START, END = "<|startoftext|>", "<|endoftext|>"
WORD_END = "</w>"
SPACE = "\u2581"


def words() -> list[str]:
    """Return every word of the image prompts, sorted."""
    return _words(*one_object_scenes(), *two_object_scenes())


def clip_words() -> list[str]:
    """Return every word of the video prompts, sorted."""
    return _words(*motions())


def _words(*scenes: Scene | Motion) -> list[str]:
    return sorted({word for scene in scenes for word in scene.prompt.split()})


def write_clip(folder: Path, pad: str = END) -> int:
    """Write CLIP's tokenizer files; return the number of tokens."""
    letters, merges = _byte_letters(), _merges(words())
    tokens = [*letters, *(letter + WORD_END for letter in letters)]
    tokens += [first + second for first, second in merges] + [START, END]
    vocabulary = {token: index for index, token in enumerate(dict.fromkeys(tokens))}
    folder.mkdir(parents=True, exist_ok=True)
    _write_json(folder / "vocab.json", vocabulary)
    lines = ["#version: 0.2", *(" ".join(merge) for merge in merges)]
    (folder / "merges.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    _write_json(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "CLIPTokenizer",
            "model_max_length": CLIP_LENGTH,
            "bos_token": START,
            "eos_token": END,
            "pad_token": pad,
            "unk_token": END,
        },
    )
    return len(vocabulary)


def write_t5(folder: Path, vocabulary: list[str]) -> int:
    """Write T5's tokenizer files with these words as tokens; return the number of tokens."""
    model = _unigram(vocabulary)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "spiece.model").write_bytes(model.SerializeToString())
    _write_json(folder / "tokenizer.json", _converted(model))
    _write_json(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "T5Tokenizer",
            "model_max_length": T5_LENGTH,
            "extra_ids": 0,
            "eos_token": "</s>",
            "pad_token": "<pad>",
            "unk_token": "<unk>",
        },
    )
    return len(model.pieces)


def _unigram(vocabulary: list[str]) -> ModelProto:
    """Build a SentencePiece model with likely words and unlikely letters, without training."""
    model = ModelProto()
    kind = ModelProto.SentencePiece
    model.pieces.add(piece="<pad>", score=0, type=kind.CONTROL)
    model.pieces.add(piece="</s>", score=0, type=kind.CONTROL)
    model.pieces.add(piece="<unk>", score=0, type=kind.UNKNOWN)
    for word in vocabulary:
        model.pieces.add(piece=f"{SPACE}{word}", score=-1.0)
    for letter in (SPACE, *string.printable.strip()):
        model.pieces.add(piece=letter, score=-10.0)
    model.trainer_spec.model_type = model.trainer_spec.UNIGRAM
    model.trainer_spec.vocab_size = len(model.pieces)
    model.trainer_spec.pad_id, model.trainer_spec.eos_id = 0, 1
    model.trainer_spec.unk_id, model.trainer_spec.bos_id = 2, -1
    model.normalizer_spec.name = "identity"
    return model


def _converted(model: ModelProto) -> dict[str, Any]:
    """Convert the model to the format of the fast tokenizers' `tokenizer.json`."""
    spec, kind = model.trainer_spec, ModelProto.SentencePiece
    end = model.pieces[spec.eos_id].piece
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    words = {"type": "Metaspace", "replacement": SPACE, "prepend_scheme": "always", "split": True}
    text = [{"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": end, "type_id": 0}}]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": number, "content": piece.piece, **plain, "special": True}
            for number, piece in enumerate(model.pieces)
            if piece.type != kind.NORMAL
        ],
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [{"type": "WhitespaceSplit"}, words],
        },
        "post_processor": {
            "type": "TemplateProcessing",
            "single": text,
            "pair": [*text, {"Sequence": {"id": "B", "type_id": 0}}, text[1]],
            "special_tokens": {end: {"id": end, "ids": [spec.eos_id], "tokens": [end]}},
        },
        "decoder": words,
        "model": {
            "type": "Unigram",
            "unk_id": spec.unk_id,
            "vocab": [[piece.piece, piece.score] for piece in model.pieces],
            "byte_fallback": False,
        },
    }


def _merges(vocabulary: list[str]) -> list[tuple[str, str]]:
    """Return the merges that make each word one token: the most common pair first.

    Source: Sennrich et al. 2016, algorithm 1.
    """
    spelled = [[*word[:-1], word[-1] + WORD_END] for word in vocabulary]
    merges = []
    while pairs := Counter(pair for parts in spelled for pair in pairwise(parts)):
        best = min(pairs, key=lambda pair: (-pairs[pair], pair))
        merges.append(best)
        spelled = [_merged(parts, best) for parts in spelled]
    return merges


def _merged(parts: list[str], pair: tuple[str, str]) -> list[str]:
    merged: list[str] = []
    for part in parts:
        if merged and (merged[-1], part) == pair:
            merged[-1] += part
        else:
            merged.append(part)
    return merged


def _byte_letters() -> list[str]:
    """Return the 256 printable letters for bytes. Source: Radford et al. 2019, section 2.2."""
    plain = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAC + 1), *range(0xAE, 0xFF + 1)]
    others = [byte for byte in range(256) if byte not in plain]
    return [chr(byte) for byte in plain] + [chr(256 + rank) for rank in range(len(others))]


def _write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
