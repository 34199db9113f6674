"""Schemas of custom resources, from published CRDs in a folder that a variable names."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml

FOLDER = "TESTS_CRDS"
"""Variable with the folder of CustomResourceDefinitions in YAML; unset: no schemas."""

Schema = dict[str, Any]


@cache
def schemas() -> Mapping[tuple[str, str], Schema]:
    """Schemas by apiVersion and kind, closed against unknown fields."""
    folder = os.environ.get(FOLDER)
    files = sorted(Path(folder).glob("*.y*ml")) if folder else []
    assert files or not folder, f"{FOLDER}: there is no YAML file in {folder}"
    return {key: schema for file in files for key, schema in _of(file)}


def _of(file: Path) -> Iterator[tuple[tuple[str, str], Schema]]:
    for crd in yaml.load_all(file.read_text(), yaml.CSafeLoader):
        for version in crd["spec"]["versions"] if crd else ():
            key = f"{crd['spec']['group']}/{version['name']}", crd["spec"]["names"]["kind"]
            yield key, {**closed(version["schema"]["openAPIV3Schema"]), "type": "object"}


def closed(schema: Any) -> Any:
    """Forbid fields that a schema does not name; a server would drop them silently."""
    if isinstance(schema, list):
        return [closed(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    result = {
        key: {name: closed(field) for name, field in value.items()}
        if key == "properties"
        else closed(value)
        for key, value in schema.items()
        if key not in ("default", "example", "enum")
    }
    if "enum" in schema:
        result["enum"] = schema["enum"]
    if schema.get("x-kubernetes-int-or-string"):
        result.pop("anyOf", None)
        result["type"] = ["integer", "string"]
    has_names = "properties" in schema and "additionalProperties" not in schema
    if has_names and not schema.get("x-kubernetes-preserve-unknown-fields"):
        result["additionalProperties"] = False
    return result


def has(schema: Schema, path: str) -> bool:
    """Whether the schema has a dotted path, also through lists."""
    for part in path.split("."):
        while "items" in schema:
            schema = schema["items"]
        if part not in schema.get("properties", {}):
            return False
        schema = schema["properties"][part]
    return True
