"""Reference page of the HTTP API: endpoints and schemas, from the OpenAPI document."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import yaml

from service.openapi import as_yaml
from tools.reference.markdown import Schema, table, type_of

HEAD = """# HTTP API

Written from the OpenAPI document, which is `openapi.yaml` in the repository and `/openapi.json` of a running server. Errors are [RFC 9457](https://www.rfc-editor.org/rfc/rfc9457) problems: `detail` says what happened and what to do, `code` is for programs, `errors` names the fields at fault.
"""  # noqa: E501 - a paragraph is a line there
METHODS = ("get", "post", "put", "patch", "delete")


def as_markdown() -> str:
    """Return the reference page of the HTTP API."""
    document = yaml.safe_load(as_yaml())
    definitions = document["components"]["schemas"]
    endpoints = "\n\n".join(_endpoints(document["paths"], document["components"]))
    schemas = "\n\n".join(_schemas(definitions))
    return f"{HEAD}\n## Endpoints\n\n{endpoints}\n\n## Schemas\n\n{schemas}\n"


def _endpoints(paths: Schema, components: Schema) -> Iterator[str]:
    for path, methods in paths.items():
        for method, operation in methods.items():
            if method in METHODS:
                parts = _parts(operation, components)
                yield f"### {method.upper()} {path}\n\n" + "\n\n".join(parts)


def _parts(operation: Schema, components: Schema) -> Iterator[str]:
    definitions, shared = components["schemas"], components["responses"]
    yield (operation.get("description") or operation["summary"]).strip()
    rows = [
        (
            f"`{parameter['name']}`",
            parameter["in"],
            type_of(parameter["schema"], definitions),
            parameter.get("description", ""),
        )
        for parameter in operation.get("parameters", ())
    ]
    if rows:
        yield table(("parameter", "in", "type", "meaning"), rows)
    answers = [
        (
            status,
            ", ".join(f"`{kind}`" for kind in response.get("content", {})),
            response["description"],
        )
        for status, reference in operation["responses"].items()
        for response in [shared.get(reference.get("$ref", "").rpartition("/")[2], reference)]
    ]
    yield table(("status", "content", "meaning"), answers)


def _schemas(definitions: Schema) -> Iterator[str]:
    for name, schema in definitions.items():
        if "properties" in schema:
            text = f"{schema['description'].strip()}\n\n" if "description" in schema else ""
            yield f"### {name}\n\n{text}" + table(
                ("field", "type", "default", "meaning"), _fields(schema, definitions)
            )


def _fields(schema: Schema, definitions: Schema) -> Iterator[tuple[str, str, str, str]]:
    required = schema.get("required", ())
    for name, field in schema["properties"].items():
        default: Any = field.get("default")
        shown = "" if default in (None, {}, []) else f"`{json.dumps(default)}`"
        yield (
            f"`{name}`",
            type_of(field, definitions),
            "required" if name in required else shown,
            field.get("description", ""),
        )
