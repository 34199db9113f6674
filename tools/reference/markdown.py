"""Markdown tables, and JSON schema types as text."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Schema = Mapping[str, Any]


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table; line breaks in cells are removed."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(map(cell, line))} |" for line in lines)


def cell(text: str) -> str:
    """Return a text as one line, with escaped column separators."""
    return " ".join(text.split()).replace("|", "\\|")


def type_of(schema: Schema, definitions: Schema) -> str:
    """Describe a JSON schema's type and bounds."""
    kinds = [kind for kind in schema.get("anyOf", ()) if kind.get("type") != "null"]
    if kinds:
        return " or ".join(dict.fromkeys(type_of(kind, definitions) for kind in kinds))
    if "$ref" in schema:
        return type_of(definitions[schema["$ref"].rpartition("/")[2]], definitions)
    if "const" in schema or "enum" in schema:
        return ", ".join(
            f"`{json.dumps(value)}`" for value in schema.get("enum", [schema.get("const")])
        )
    return _plain(schema, definitions) + _bounds(schema)


def _plain(schema: Schema, definitions: Schema) -> str:
    match schema.get("type"):
        case "array":
            items = schema.get("items") or {}
            return f"list of {type_of(items, definitions)}" if items else "list"
        case "object":
            return "table" if schema.get("properties") else "map"
        case "string":
            return {"password": "secret", "file-path": "file", "path": "path", "uri": "URL"}.get(
                schema.get("format", ""), "string"
            )
        case [*several]:
            return " or ".join(map(str, several))
        case None:
            return "any"
        case kind:
            return str(kind)


def _bounds(schema: Schema) -> str:
    words = {
        "minimum": "at least",
        "exclusiveMinimum": "above",
        "maximum": "at most",
        "exclusiveMaximum": "below",
        "minLength": "at least (characters)",
        "maxLength": "at most (characters)",
        "minItems": "at least (entries)",
        "maxItems": "at most (entries)",
    }
    bounds = [f"{word} {schema[key]:,}" for key, word in words.items() if key in schema]
    return f", {', '.join(bounds)}" if bounds else ""
