"""HTTP API: every endpoint, the fields of requests and answers, from the OpenAPI document."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import yaml

from service.openapi import as_yaml
from tools.reference.markdown import Schema, table, type_of

HEAD = """# HTTP API

Written by `make reference` from the OpenAPI document, which is `openapi.yaml` in the repository and `/openapi.json` of a running server. Errors are [RFC 9457](https://www.rfc-editor.org/rfc/rfc9457) problems: `detail` says what happened and what to do, `code` is for programs, `errors` names the fields at fault.
"""  # noqa: E501 - a paragraph is a line there
METHODS = ("get", "post", "put", "patch", "delete")


def as_markdown() -> str:
    """Return the page."""
    document = yaml.safe_load(as_yaml())
    known = document["components"]["schemas"]
    endpoints = "\n\n".join(_endpoints(document["paths"], known))
    schemas = "\n\n".join(_schemas(known))
    return f"{HEAD}\n## Endpoints\n\n{endpoints}\n\n## Schemas\n\n{schemas}\n"


def _endpoints(paths: Schema, known: Schema) -> Iterator[str]:
    for path, methods in paths.items():
        for method, operation in methods.items():
            if method in METHODS:
                yield f"### {method.upper()} {path}\n\n" + "\n\n".join(_parts(operation, known))


def _parts(operation: Schema, known: Schema) -> Iterator[str]:
    yield (operation.get("description") or operation["summary"]).strip()
    rows = [
        (f"`{one['name']}`", one["in"], type_of(one["schema"], known), one.get("description", ""))
        for one in operation.get("parameters", ())
    ]
    if rows:
        yield table(("parameter", "in", "type", "meaning"), rows)
    answers = [
        (
            status,
            ", ".join(f"`{kind}`" for kind in answer.get("content", {})),
            answer["description"],
        )
        for status, answer in operation["responses"].items()
    ]
    yield table(("status", "content", "meaning"), answers)


def _schemas(known: Schema) -> Iterator[str]:
    for name, schema in known.items():
        if "properties" in schema:
            text = f"{schema['description'].strip()}\n\n" if "description" in schema else ""
            yield f"### {name}\n\n{text}" + table(
                ("field", "type", "default", "meaning"), _fields(schema, known)
            )


def _fields(schema: Schema, known: Schema) -> Iterator[tuple[str, str, str, str]]:
    required = schema.get("required", ())
    for name, field in schema["properties"].items():
        default: Any = field.get("default")
        shown = "" if default in (None, {}, []) else f"`{json.dumps(default)}`"
        yield (
            f"`{name}`",
            type_of(field, known),
            "required" if name in required else shown,
            field.get("description", ""),
        )
