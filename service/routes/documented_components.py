"""Shared components of the OpenAPI document: errors once for all operations, and no unused part."""

from __future__ import annotations

import json
import re
from typing import Any

Document = dict[str, Any]
_REFERENCE = re.compile(r'"#/components/(\w+)/([^"]+)"')


def share_errors(document: Document) -> None:
    """Move the error responses of all operations to `components/responses`."""
    shared: Document = document["components"].setdefault("responses", {})
    for methods in document["paths"].values():
        for operation in methods.values():
            for status, response in operation["responses"].items():
                if int(status) >= 400:
                    name = _register(shared, status, response)
                    operation["responses"][status] = {"$ref": f"#/components/responses/{name}"}


def _register(shared: Document, status: str, response: Document) -> str:
    """Return the name of an equal shared error response, which is added if there is none."""
    schemas = (content.get("schema", {}) for content in response.get("content", {}).values())
    kind = next((schema["$ref"].rpartition("/")[2] for schema in schemas if "$ref" in schema), "")
    name, number = f"{kind}{status}", 1
    while shared.setdefault(name, response) != response:
        number += 1
        name = f"{kind}{status}_{number}"
    return name


def drop_unused(components: Document, paths: Document) -> None:
    """Drop the components that no operation refers to, directly or through other components."""
    used: set[tuple[str, str]] = set()
    pending = _references(paths)
    while pending:
        kind, name = reference = pending.pop()
        if reference not in used:
            used.add(reference)
            pending |= _references(components[kind][name])
    for kind, parts in components.items():
        if kind != "securitySchemes":
            for name in [name for name in parts if (kind, name) not in used]:
                del parts[name]


def _references(node: Any) -> set[tuple[str, str]]:
    return {(kind, name) for kind, name in _REFERENCE.findall(json.dumps(node))}
