"""The committed description is what the code says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from service.openapi import as_yaml

COMMITTED = Path(__file__).resolve().parents[2] / "openapi.yaml"


def references(node: Any) -> set[str]:
    """Every $ref below a node."""
    if isinstance(node, list):
        return {found for item in node for found in references(item)}
    if not isinstance(node, dict):
        return set()
    here = {node["$ref"]} if "$ref" in node else set()
    return here.union(*(references(item) for item in node.values()))


def test_the_committed_description_has_not_drifted() -> None:
    assert COMMITTED.read_text() == as_yaml(), "run `make openapi`"


def test_every_reference_leads_somewhere_and_nothing_is_left_over() -> None:
    document = yaml.safe_load(as_yaml())
    schemas = {f"#/components/schemas/{name}" for name in document["components"]["schemas"]}
    assert references(document) == schemas


def test_every_error_is_described_as_a_problem() -> None:
    document = yaml.safe_load(as_yaml())
    for methods in document["paths"].values():
        for operation in methods.values():
            for status, answer in operation["responses"].items():
                if int(status) >= 400:
                    assert list(answer["content"]) == ["application/problem+json"], operation
