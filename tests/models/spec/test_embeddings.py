"""Names of embeddings in prompts."""

from __future__ import annotations

import random
import time

import pytest

from models.spec.embeddings import mentions

NAMES = ("ink", "bad", "bad hands", "style.v1", "Neg-2")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a cat, bad hands", ["bad hands"]),
        ("BAD and (bad:1.2)", ["bad", "bad"]),
        ("badly, notbad, bad_2", []),
        ("embedding:bad, a cat", ["bad"]),
        ("(embedding:bad hands:1.2)", ["bad hands"]),
        ("embedding:style.v1.safetensors", ["style.v1"]),
        ("style.v1, neg-2", ["style.v1", "Neg-2"]),
        ("stylexv1", []),
        ("embedding:other, x", ["?other"]),
        ("Embedding:other.pt", ["?other.pt"]),
        ("embedding: other", []),
        ("bad embedding:badly", ["bad", "?badly"]),
        ("embedding:bad-dream, bad-dream", ["?bad-dream", "bad"]),
        ("\u0131nk, \u0130nk, nk", []),
    ],
)
def test_embedding_mentions_are_found(text: str, expected: list[str]) -> None:
    result = [*mentions(text, NAMES)]
    assert [("" if item.is_known else "?") + item.name for item in result] == expected
    assert all(text[item.start : item.stop] for item in result)


def test_without_names_only_introduced_ones_are_mentions() -> None:
    assert [item.name for item in mentions("bad embedding:bad", ())] == ["bad"]
    assert not any(item.is_known for item in mentions("embedding:bad", ()))


def test_searching_many_names_in_a_long_prompt_is_fast() -> None:
    """CPU time grows with the names in the prompt, not with all names."""
    names = [f"name {number}" for number in range(10_000)]
    text = "a cat, embedding:other, " * 400 + "name 7"
    before = time.process_time()
    selected = [item.name for item in mentions(text, names) if item.is_known]
    assert selected == ["name 7"] and time.process_time() - before < 1


def test_the_longest_name_that_ends_at_a_word_is_the_mention() -> None:
    """Compared with a search that tries every name at every place."""
    letters = random.Random(1)
    for _ in range(300):
        names = {"".join(letters.choices("ab -", k=letters.randint(1, 4))) for _ in range(6)}
        names = {name.strip() for name in names} - {""}
        text = "".join(letters.choices("ab -", k=30))
        assert [item.name for item in mentions(text, sorted(names))] == by_hand(text, names)


def by_hand(text: str, names: set[str]) -> list[str]:
    result, place = [], 0
    while place < len(text):
        is_start = place == 0 or text[place - 1] in " -"
        here = [
            name
            for name in sorted(names, key=len, reverse=True)
            if is_start
            and text.startswith(name, place)
            and text[place + len(name) :][:1] in ("", " ", "-")
        ]
        result += here[:1]
        place += len(here[0]) if here else 1
    return result


def test_names_within_names_take_little_time() -> None:
    names = ["-x" * length + "-" for length in range(1, 100)]
    before = time.thread_time()
    assert mentions("-x" * 5_000, names) == ()
    assert time.thread_time() - before < 1
