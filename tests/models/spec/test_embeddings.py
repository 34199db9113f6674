"""Names of embeddings in prompts."""

from __future__ import annotations

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
def test_mentions(text: str, expected: list[str]) -> None:
    result = [*mentions(text, NAMES)]
    assert [("" if item.is_known else "?") + item.name for item in result] == expected
    assert all(text[item.start : item.stop] for item in result)


def test_without_names_only_introduced_ones_are_mentions() -> None:
    assert [item.name for item in mentions("bad embedding:bad", ())] == ["bad"]
    assert not any(item.is_known for item in mentions("embedding:bad", ()))


def test_many_names_and_a_long_prompt_take_little_time() -> None:
    """CPU time grows with the names in the prompt, not with all names."""
    names = [f"name {number}" for number in range(10_000)]
    text = "a cat, embedding:other, " * 400 + "name 7"
    before = time.process_time()
    selected = [item.name for item in mentions(text, names) if item.is_known]
    assert selected == ["name 7"] and time.process_time() - before < 1
