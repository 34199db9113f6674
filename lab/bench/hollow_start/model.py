"""Writes a published Flux without weights: configs, and tokenizers of its sizes with random
words."""

from __future__ import annotations

import json
import random
import string
from itertools import count
from pathlib import Path

from transformers import T5TokenizerFast

from lab.demo.world import tokenizers
from models import published

MERGES, PIECES = 48_894, 32_000
"""Merges of the published CLIP-L, and pieces of T5-XXL."""


def write(model: str, folder: Path) -> None:
    """Write configs and tokenizers. Raises: KeyError: no such model."""
    published.write(model, folder)
    write_clip(folder / "tokenizer")
    write_t5(folder / "tokenizer_2")


def write_t5(folder: Path) -> None:
    """Write `tokenizer.json` next to `spiece.model`, as published."""
    tokenizers.write_t5(folder, words(PIECES))
    T5TokenizerFast.from_pretrained(folder).save_pretrained(folder)


def words(number: int) -> list[str]:
    """Make distinct words with the usual length of pieces."""
    rng = random.Random(0)
    unique: dict[str, None] = {}
    while len(unique) < number:
        unique["".join(rng.choices(string.ascii_lowercase, k=rng.randint(3, 8)))] = None
    return list(unique)


def write_clip(folder: Path) -> None:
    """Write the demo's tokenizer, extended with merges of a piece and a letter up to MERGES."""
    tokenizers.write_clip(folder)
    vocabulary = json.loads((folder / "vocab.json").read_text())
    head, *merges = (folder / "merges.txt").read_text().splitlines()
    pieces = list(string.ascii_lowercase)
    known_merges = dict.fromkeys(merges)
    for place in count():
        if len(known_merges) >= MERGES:
            break
        for letter in string.ascii_lowercase:
            known_merges[f"{pieces[place]} {letter}"] = None
            pieces.append(pieces[place] + letter)
            vocabulary.setdefault(pieces[-1], len(vocabulary))
    (folder / "vocab.json").write_text(json.dumps(vocabulary))
    (folder / "merges.txt").write_text("\n".join([head, *known_merges]) + "\n")
