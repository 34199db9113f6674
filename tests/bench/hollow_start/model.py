"""A published Flux without its weights: configs, and tokenizers of its sizes, whose words are
random."""

from __future__ import annotations

import json
import random
import string
from itertools import count
from pathlib import Path

from transformers import T5TokenizerFast  # type: ignore[attr-defined]

from models import published
from models.demo.world import tokenizers

MERGES, PIECES = 48_894, 32_000
"""Of the published CLIP-L and T5-XXL."""


def write(model: str, folder: Path) -> None:
    """Raises: KeyError: no such model."""
    published.write(model, folder)
    write_clip(folder / "tokenizer")
    write_t5(folder / "tokenizer_2")


def write_t5(folder: Path) -> None:
    """`tokenizer.json` beside `spiece.model`, as published."""
    tokenizers.write_t5(folder, words(PIECES))
    T5TokenizerFast.from_pretrained(folder).save_pretrained(folder)


def words(number: int) -> list[str]:
    """So many, all different, about as long as pieces usually are."""
    drawn = random.Random(0)
    found: dict[str, None] = {}
    while len(found) < number:
        found["".join(drawn.choices(string.ascii_lowercase, k=drawn.randint(3, 8)))] = None
    return list(found)


def write_clip(folder: Path) -> None:
    """The demo's, with as many merges of a piece and a letter."""
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
