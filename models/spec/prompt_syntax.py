r"""Weights in prompts, in the syntax of AUTOMATIC1111: `(a)`, `((a))`, `[a]`, `(a:1.2)`.

A round bracket multiplies the weight of its text by 1.1, or by the number before its end. A square
bracket divides the weight by 1.1. Brackets nest. An unclosed bracket extends to the end. An
unopened bracket is text, and so is a bracket after a backslash. `BREAK` begins a new passage.

Source: AUTOMATIC1111's stable-diffusion-webui, parse_prompt_attention in modules/prompt_parser.py.
One difference: there a `BREAK` within weighted brackets is the word "break".
"""

from __future__ import annotations

import re
from itertools import groupby, pairwise
from typing import Literal, NamedTuple, TypeAlias

PromptSyntax = Literal["plain", "weighted"]
"""`plain`: brackets are text. `weighted`: brackets weight their text."""

FACTOR = 1.1
"""Weight of a round bracket without a number."""
_FACTORS = {"(": FACTOR, "[": 1 / FACTOR}
MAX_WEIGHT = 100.0
MAX_DEPTH = 100
"""Maximum number of brackets of the same kind that are open at once."""

_PIECE = re.compile(r"\\[()\[\]\\]?|[()\[\]]|[^()\[\]\\]+")
_SPECIAL = re.compile(r"[()\[\]\\]")
_BREAK = re.compile(r"(?<!\w)BREAK(?!\w)")
_AND = re.compile(r"(?<!\w)AND(?!\w)")
_NUMBER = re.compile(r"[+-]?(?:[0-9]++(?:\.[0-9]*+)?|\.[0-9]++)")


class Part(NamedTuple):
    """Part of a prompt with a single weight."""

    text: str
    weight: float


Passage: TypeAlias = tuple[Part, ...]
"""Text between two `BREAK`s; adjacent parts differ in weight."""


def passages(prompt: str) -> tuple[Passage, ...]:
    """Return the passages of a weighted prompt, at least one.

    Raises: ValueError: a weight is out of range, or brackets are nested too deeply.
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
    """Return whether a prompt has a numeric weight, `(a:1.2)`, unlikely in plain text."""
    parser = _parsed(prompt)
    return parser is not None and parser.has_numbers


def has_edits(prompt: str) -> bool:
    """Return whether a prompt has prompt editing, `[a:b:0.5]`, `[a:5]` or `[a|b]`.

    AUTOMATIC1111 applies each text in a part of the steps. Here square brackets only reduce the
    weight of their text.
    """
    parser = _parsed(prompt)
    return parser is not None and parser.has_edits


def has_lost_weights(prompt: str) -> bool:
    """Return whether a weight is text because its bracket is unclosed, `(a:1.2`, or unopened."""
    parser = _parsed(prompt)
    return parser is not None and parser.has_lost_weights


def has_compositions(prompt: str) -> bool:
    """Return whether a prompt combines several prompts with `AND`, `a :1.2 AND b`.

    AUTOMATIC1111 denoises with each of them; here the word is text.
    """
    return _AND.search(prompt) is not None


def escaped(prompt: str) -> str:
    """Escape a plain prompt so that the weighted syntax reads the same text, except `BREAK`."""
    return _SPECIAL.sub(r"\\\g<0>", prompt)


def _parsed(prompt: str) -> _Parser | None:
    """Return a prompt's parser; None: brackets are nested too deeply."""
    try:
        return _Parser(prompt)
    except ValueError:
        return None


class _Parser:
    """Parser that splits a prompt into texts with weights."""

    def __init__(self, prompt: str) -> None:
        self.texts: list[str | None] = []
        """Texts in order; None: a `BREAK`."""
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
        """Join adjacent texts of equal weight, and split at each `BREAK`."""
        result: list[list[Part]] = [[]]
        pairs = zip(self.texts, self.weights, strict=True)
        for (is_break, weight), run in groupby(pairs, lambda pair: (pair[0] is None, pair[1])):
            texts = [text for text, _ in run]
            if is_break:
                result += [[] for _ in texts]
            elif joined := "".join(filter(None, texts)):
                result[-1].append(Part(joined, weight))
        return [tuple(passage) for passage in result]

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
        """Return the weight of a closed round bracket, and remove its number from the text."""
        weight = _number(before)
        if weight is None:
            return FACTOR
        self.has_numbers = True
        self.texts[-1] = (self.texts[-1] or "").rpartition(":")[0]
        return weight

    def _weigh(self, first: int, factor: float) -> None:
        for index in range(first, len(self.weights)):
            self.weights[index] *= factor

    def _add(self, text: str | None) -> None:
        self.texts.append(text)
        self.weights.append(1.0)

    def _add_run(self, text: str) -> None:
        """Add prompt text without brackets, split at each `BREAK` and the spaces around it."""
        first, *others = _BREAK.split(text)
        self._add(first.rstrip() if others else first)
        for index, other in enumerate(others, 1):
            self._add(None)
            self._add(other.lstrip() if index == len(others) else other.strip())


def _number(text: str) -> float | None:
    """Return the number after a text's last colon; None if absent."""
    _, colon, number = text.rpartition(":")
    return float(number) if colon and _NUMBER.fullmatch(number.strip()) else None
