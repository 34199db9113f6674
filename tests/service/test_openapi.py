"""The committed openapi.yaml matches the code, and its references are complete."""

from __future__ import annotations

import re
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import yaml

from service.errors.problems import MEDIA_TYPE
from service.openapi import as_yaml, document_of_all
from service.routing import COMPATIBLE_ENDPOINTS

COMMITTED = Path(__file__).resolve().parents[2] / "openapi.yaml"
MAX_BYTES = 184_320


def references(node: Any) -> set[str]:
    """Every `$ref` in a document's node."""
    if isinstance(node, list):
        return {reference for item in node for reference in references(item)}
    if not isinstance(node, dict):
        return set()
    direct = {node["$ref"]} if "$ref" in node else set()
    return direct.union(*(references(item) for item in node.values()))


def test_the_committed_description_has_not_drifted() -> None:
    assert COMMITTED.read_text() == as_yaml(), "run `make openapi`"


@cache
def document() -> Any:
    """Return the committed OpenAPI document, which equals the generated one."""
    return yaml.load(COMMITTED.read_text(), yaml.CSafeLoader)


def test_references_resolve_and_components_are_used() -> None:
    parts = (
        (kind, document()["components"][kind]) for kind in ("schemas", "examples", "responses")
    )
    components = {f"#/components/{kind}/{name}" for kind, names in parts for name in names}
    assert references(document()) == components


def test_every_error_is_described_in_the_form_of_its_path() -> None:
    prefixes = {prefix for endpoint in COMPATIBLE_ENDPOINTS for prefix in endpoint.error_forms}
    for path, methods in document_of_all()["paths"].items():
        is_foreign = any(path.startswith(f"{prefix}/") for prefix in prefixes) or path in prefixes
        media_type = "application/json" if is_foreign else MEDIA_TYPE
        for operation in methods.values():
            for status, response in operation["responses"].items():
                if int(status) >= 400:
                    assert list(response["content"]) == [media_type], operation


def test_committed_document_has_only_the_native_api() -> None:
    prefixes = {prefix for endpoint in COMPATIBLE_ENDPOINTS for prefix in endpoint.error_forms}
    below = tuple(f"{prefix}/" for prefix in prefixes)
    paths = document()["paths"].keys()
    assert not [path for path in paths if path in prefixes or path.startswith(below)]
    assert {"/v1/generate", "/v1/jobs/{job_id}", "/v1/models", "/readyz"} <= paths
    assert COMMITTED.stat().st_size <= MAX_BYTES


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
