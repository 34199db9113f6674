"""Vocabulary of the demo's images: the scenes, and the sentences that describe them.

Shared by drawing and checker, which have no other code in common.
"""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

COLOURS = {
    "red": (220, 40, 40),
    "green": (40, 160, 60),
    "blue": (40, 70, 210),
    "yellow": (245, 215, 50),
    "white": (245, 245, 245),
    "black": (20, 20, 20),
}
NEW_COLOURS = {"coral": (240, 128, 60)}
"""Colours that only adapters are trained on; used for things, not for backgrounds."""
SHAPES = ("circle", "square", "triangle", "cross")
SIZES = ("small", "large")
PLACES = {
    "left": "on the left of",
    "right": "on the right of",
    "top": "at the top of",
    "bottom": "at the bottom of",
    "middle": "in the middle of",
}
RELATIONS = {"above": "above", "below": "below", "left": "left of", "right": "right of"}

HELD_OUT_SHARE = 0.15

_PAINT = "|".join(COLOURS)
_INK = "|".join({**COLOURS, **NEW_COLOURS})
_FORM = "|".join(SHAPES)
_ONE = re.compile(
    rf"a (?:({'|'.join(SIZES)}) )?({_INK}) ({_FORM}) "
    rf"(on|{'|'.join(PLACES.values())}) a ({_PAINT}) background"
)
_TWO = re.compile(
    rf"a ({_INK}) ({_FORM}) ({'|'.join(RELATIONS.values())}) a ({_INK}) ({_FORM}) "
    rf"on a ({_PAINT}) background"
)


def is_drawn(prompt: str, share: float) -> bool:
    """Return whether a prompt is in a fixed random fraction of all, decided by its hash."""
    digest = hashlib.sha256(prompt.encode()).digest()
    return int.from_bytes(digest[:4], "big") < share * 2**32


@dataclass(frozen=True)
class Thing:
    """Object as described by a prompt; None for unspecified properties."""

    colour: str
    shape: str
    size: str | None = None
    place: str | None = None


@dataclass(frozen=True)
class Scene:
    """Scene of one or two objects.

    With two, `relation` is the position of the first relative to the second.
    """

    things: tuple[Thing, ...]
    background: str
    relation: str | None = None

    @property
    def prompt(self) -> str:
        """Sentence that describes the scene completely."""
        first = self.things[0]
        subject = " ".join(filter(None, ("a", first.size, first.colour, first.shape)))
        if self.relation is None:
            where = PLACES[first.place] if first.place else "on"
            return f"{subject} {where} a {self.background} background"
        second = self.things[1]
        other = f"a {second.colour} {second.shape}"
        return f"{subject} {RELATIONS[self.relation]} {other} on a {self.background} background"

    @property
    def held_out(self) -> bool:
        """Return whether training excludes this prompt; decided by its hash."""
        return is_drawn(self.prompt, HELD_OUT_SHARE)

    @classmethod
    def parse(cls, prompt: str) -> Self:
        """Parse an image prompt.

        Raises:
            ValueError: the sentence is not one of the demo's.
        """
        if match := _ONE.fullmatch(prompt):
            size, colour, shape, where, background = match.groups()
            place = next((name for name, words in PLACES.items() if words == where), None)
            return cls((Thing(colour, shape, size, place),), background)
        if match := _TWO.fullmatch(prompt):
            colour, shape, words, other_colour, other_shape, background = match.groups()
            relation = next(name for name, phrase in RELATIONS.items() if phrase == words)
            things = (Thing(colour, shape), Thing(other_colour, other_shape))
            return cls(things, background, relation)
        raise ValueError(f"not a scene of the demo: {prompt!r}")


def one_object_scenes() -> Iterator[Scene]:
    """Yield every scene with one object, in a fixed order."""
    for colour, background in itertools.permutations(COLOURS, 2):
        for shape, size, place in itertools.product(SHAPES, (None, *SIZES), (None, *PLACES)):
            yield Scene((Thing(colour, shape, size, place),), background)


def two_object_scenes() -> Iterator[Scene]:
    """Yield every scene with two objects, in a fixed order; the three colours differ."""
    for first, second, background in itertools.permutations(COLOURS, 3):
        for shape, other, relation in itertools.product(SHAPES, SHAPES, RELATIONS):
            yield Scene((Thing(first, shape), Thing(second, other)), background, relation)
