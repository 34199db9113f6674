"""Names of embeddings in prompts."""

from __future__ import annotations

import pytest

from models.spec.embeddings import mentions

NAMES = ("bad", "bad hands", "style.v1", "Neg-2")


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
    ],
)
def test_mentions(text: str, expected: list[str]) -> None:
    result = [*mentions(text, NAMES)]
    assert [("" if item.is_known else "?") + item.name for item in result] == expected
    assert all(text[item.start : item.stop] for item in result)


def test_without_names_only_introduced_ones_are_mentions() -> None:
    assert [item.name for item in mentions("bad embedding:bad", ())] == ["bad"]
    assert not any(item.is_known for item in mentions("embedding:bad", ()))
