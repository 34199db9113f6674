r"""Weights in prompts, as users of AUTOMATIC1111 write them: `(a)`, `((a))`, `[a]`, `(a:1.2)`.

A round bracket makes its text 1.1 times as strong, or as strong as the number before its end; a
square one 1.1 times weaker. Brackets nest, one that isn't closed reaches to the end, and one that
was never opened is text, as is one behind a backslash. `BREAK` begins a new passage.

Source: AUTOMATIC1111's stable-diffusion-webui, parse_prompt_attention in modules/prompt_parser.py,
which differs in one thing: there a `BREAK` within weighted brackets is the word "break".
"""

from __future__ import annotations

import re
from itertools import groupby, pairwise
from typing import Literal, NamedTuple, TypeAlias

PromptSyntax = Literal["plain", "weighted"]
"""`plain`: brackets are text. `weighted`: they weigh what is in them."""

FACTOR = 1.1
"""Strength of a round bracket without a number."""
_FACTORS = {"(": FACTOR, "[": 1 / FACTOR}
MAX_WEIGHT = 100.0
MAX_DEPTH = 100
"""Maximum number of brackets of a kind that are open at once."""

_PIECE = re.compile(r"\\[()\[\]\\]?|[()\[\]]|[^()\[\]\\]+")
_SPECIAL = re.compile(r"[()\[\]\\]")
_BREAK = re.compile(r"(?<!\w)BREAK(?!\w)")
_AND = re.compile(r"(?<!\w)AND(?!\w)")
_NUMBER = re.compile(r"[+-]?(?:[0-9]++(?:\.[0-9]*+)?|\.[0-9]++)")


class Part(NamedTuple):
    """Text of one weight."""

    text: str
    weight: float


Passage: TypeAlias = tuple[Part, ...]
"""Text between two `BREAK`s; neighbours differ in weight."""


def passages(prompt: str) -> tuple[Passage, ...]:
    """Return the passages of a prompt, of which there is at least one.

    Raises: ValueError: a weight is out of range, or the brackets are too deep.
    """
    parser = _Parser(prompt)
    heaviest = max((abs(weight) for weight in parser.weights), default=0.0)
    if heaviest > MAX_WEIGHT:
        raise ValueError(
            f"a weight is {heaviest:g} in sum; keep weights within -{MAX_WEIGHT:g} and "
            f"{MAX_WEIGHT:g}"
        )
    return tuple(parser.passages())


def has_numbers(prompt: str) -> bool:
    """Return whether a prompt has a weight in numbers, `(a:1.2)`, which hardly is plain text."""
    parser = _parsed(prompt)
    return parser is not None and parser.has_numbers


def has_edits(prompt: str) -> bool:
    """Return whether a prompt has text for a part of the steps, `[a:b:0.5]`, `[a:5]` or `[a|b]`.

    AUTOMATIC1111 has such; here square brackets only weaken their text.
    """
    parser = _parsed(prompt)
    return parser is not None and parser.has_edits


def has_lost_weights(prompt: str) -> bool:
    """Return whether a weight is text since its bracket is not closed, `(a:1.2`, or not opened."""
    parser = _parsed(prompt)
    return parser is not None and parser.has_lost_weights


def has_compositions(prompt: str) -> bool:
    """Return whether a prompt has several with an `AND` between them, `a :1.2 AND b`.

    AUTOMATIC1111 denoises by each of them; here the word is text.
    """
    return _AND.search(prompt) is not None


def escaped(prompt: str) -> str:
    """Return a plain prompt as a weighted one that reads the same, but for a `BREAK`."""
    return _SPECIAL.sub(r"\\\g<0>", prompt)


def _parsed(prompt: str) -> _Parser | None:
    """Return a prompt's parser; None: its brackets are too deep."""
    try:
        return _Parser(prompt)
    except ValueError:
        return None


class _Parser:
    """Texts of a prompt, each with its weight."""

    def __init__(self, prompt: str) -> None:
        self.texts: list[str | None] = []
        """Texts in a row; None: a `BREAK`."""
        self.weights: list[float] = []
        self.has_numbers = self.has_edits = self.has_lost_weights = False
        self._opened: dict[str, list[int]] = {"(": [], "[": []}
        """Number of texts before each open bracket."""
        piece = ""
        for before, piece in pairwise(("", *_PIECE.findall(prompt))):
            self._read(before, piece)
        self.has_lost_weights |= bool(self._opened["("]) and _number(piece) is not None
        for bracket, opened in self._opened.items():
            for first in opened:
                self._weigh(first, _FACTORS[bracket])

    def passages(self) -> list[Passage]:
        """Join neighbours of one weight, and cut at each `BREAK`."""
        found: list[list[Part]] = [[]]
        pairs = zip(self.texts, self.weights, strict=True)
        for (is_break, weight), run in groupby(pairs, lambda one: (one[0] is None, one[1])):
            texts = [text for text, _ in run]
            if is_break:
                found += [[] for _ in texts]
            elif joined := "".join(filter(None, texts)):
                found[-1].append(Part(joined, weight))
        return [tuple(passage) for passage in found]

    def _read(self, before: str, piece: str) -> None:
        if piece in self._opened:
            self._open(piece)
        elif piece == ")" and self._opened["("]:
            self._weigh(self._opened["("].pop(), self._number(before))
        elif piece == "]" and self._opened["["]:
            self.has_edits |= "|" in before or _number(before) is not None
            self._weigh(self._opened["["].pop(), _FACTORS["["])
        elif piece.startswith("\\"):
            self._add(piece[1:])
        else:
            self.has_lost_weights |= piece == ")" and _number(before) is not None
            self._add_run(piece)

    def _open(self, bracket: str) -> None:
        if len(self._opened[bracket]) == MAX_DEPTH:
            raise ValueError(f"more than {MAX_DEPTH} brackets {bracket} are open at once")
        self._opened[bracket].append(len(self.texts))

    def _number(self, before: str) -> float:
        """Return the weight of a closed round bracket, and take its number out of the text."""
        found = _number(before)
        if found is None:
            return FACTOR
        self.has_numbers = True
        self.texts[-1] = (self.texts[-1] or "").rpartition(":")[0]
        return found

    def _weigh(self, first: int, factor: float) -> None:
        for index in range(first, len(self.weights)):
            self.weights[index] *= factor

    def _add(self, text: str | None) -> None:
        self.texts.append(text)
        self.weights.append(1.0)

    def _add_run(self, text: str) -> None:
        """Add text without brackets, cut at each `BREAK` and the spaces around it."""
        first, *others = _BREAK.split(text)
        self._add(first.rstrip() if others else first)
        for index, other in enumerate(others, 1):
            self._add(None)
            self._add(other.lstrip() if index == len(others) else other.strip())


def _number(text: str) -> float | None:
    """Return the number behind the last colon; None: none is there."""
    _, colon, number = text.rpartition(":")
    return float(number) if colon and _NUMBER.fullmatch(number.strip()) else None
