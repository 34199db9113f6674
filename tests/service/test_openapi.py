"""The committed description is what the code says."""

from __future__ import annotations

import re
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import yaml

from service.errors.problems import MEDIA_TYPE
from service.openapi import as_yaml
from service.routing import DOORS

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


@cache
def document() -> Any:
    """Return the committed description, which is what the code describes."""
    return yaml.load(COMMITTED.read_text(), yaml.CSafeLoader)


def test_every_reference_leads_somewhere_and_nothing_is_left_over() -> None:
    parts = ((kind, document()["components"][kind]) for kind in ("schemas", "examples"))
    there = {f"#/components/{kind}/{name}" for kind, named in parts for name in named}
    assert references(document()) == there


def test_every_error_is_described_in_the_form_of_its_path() -> None:
    prefixes = {prefix for door in DOORS for prefix in door.error_forms}
    for path, methods in document()["paths"].items():
        is_foreign = any(path.startswith(f"{prefix}/") for prefix in prefixes) or path in prefixes
        media_type = "application/json" if is_foreign else MEDIA_TYPE
        for operation in methods.values():
            for status, answer in operation["responses"].items():
                if int(status) >= 400:
                    assert list(answer["content"]) == [media_type], operation


def operations() -> list[Any]:
    paths = document()["paths"]
    return [operation for methods in paths.values() for operation in methods.values()]


def test_generated_clients_call_operations_by_short_names() -> None:
    names = [operation["operationId"] for operation in operations()]
    assert len(names) == len({*names}), "names must differ; give one route an operation_id"
    assert all(re.fullmatch(r"[a-z]+(_[a-z0-9]+)*", name) for name in names), names
    assert {"generate", "list_jobs", "get_job", "cancel_job", "list_models"} <= {*names}


def test_the_version_is_the_package_s() -> None:
    assert document()["info"]["version"] == version("atelier")
