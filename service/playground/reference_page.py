"""/docs: the OpenAPI document as a single HTML page, without scripts or external resources."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from html import escape
from typing import Any

STYLE = """
:root { color-scheme: light dark; --line: #8886; --soft: #8882; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 0 auto; padding: 1.5rem; }
h2 { margin-top: 2.5rem; } h3 { margin: 2rem 0 .25rem; font: 600 1rem ui-monospace, monospace; }
code, .method { font-family: ui-monospace, monospace; font-size: .92em; }
code { background: var(--soft); padding: 0 .25em; border-radius: 3px; }
.method { border: 1px solid var(--line); border-radius: 4px; padding: .1em .4em; }
table { border-collapse: collapse; width: 100%; margin: .75rem 0; }
td, th { border-top: 1px solid var(--line); padding: .3rem .6rem .3rem 0; text-align: left;
  vertical-align: top; overflow-wrap: anywhere; }
pre { background: var(--soft); padding: .75rem; overflow-x: auto; font-size: .85em; }
td:first-child { white-space: nowrap; }
"""

RULES = {
    "minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<",
    "minLength": "length ≥", "maxLength": "length ≤", "minItems": "items ≥", "maxItems": "items ≤",
    "default": "default",
}  # fmt: skip


def page(document: dict[str, Any]) -> str:
    """Render the page of an OpenAPI document."""
    info = document["info"]
    parts = [
        f"<h1>{escape(info['title'])}</h1><p>{_prose(info.get('summary', ''))}",
        ' As a file: <a href="/openapi.json">openapi.json</a>. <a href="/">Playground</a>.</p>',
        "<h2>Requests</h2>",
        *_operations(document),
        "<h2>Schemas</h2>",
        *(_schema(name, schema) for name, schema in document["components"]["schemas"].items()),
    ]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport"'
        f' content="width=device-width"><title>{escape(info["title"])} API</title>'
        f"<style>{STYLE}</style></head><body>{''.join(parts)}</body></html>"
    )


def _prose(text: str) -> str:
    return re.sub(r"`([^`]*)`", r"<code>\1</code>", escape(text))


def _table(rows: Iterable[tuple[str, str, str]]) -> str:
    lines = (f"<tr><td>{a}</td><td>{b}</td><td>{c}</td></tr>" for a, b, c in rows)
    body = "".join(lines)
    return f"<table>{body}</table>" if body else ""


def _operations(document: dict[str, Any]) -> Iterator[str]:
    named = document["components"]["examples"]
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            title = f'<span class="method">{method.upper()}</span> {escape(path)}'
            yield f"<h3>{title}</h3><p>{_prose(operation.get('description', ''))}</p>"
            yield _table(_parameters(operation))
            responses = _resolved(operation["responses"], document["components"])
            yield _table(_answers(responses))
            yield from _examples(operation.get("requestBody", {}), responses, named)


def _parameters(operation: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    for item in operation.get("parameters", ()):
        name = f"<code>{escape(item['name'])}</code> ({item['in']})"
        yield name, _kind(item["schema"]), _prose(item.get("description", ""))
    for media, content in operation.get("requestBody", {}).get("content", {}).items():
        yield "body", f"<code>{escape(media)}</code>", _kind(content.get("schema", {}))


def _resolved(responses: dict[str, Any], components: dict[str, Any]) -> dict[str, Any]:
    """Replace references to shared responses."""
    shared = components.get("responses", {})
    return {
        status: shared.get(response.get("$ref", "").rpartition("/")[2], response)
        for status, response in responses.items()
    }


def _answers(responses: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    for status, answer in responses.items():
        kinds = (
            f"<code>{escape(media)}</code> {_kind(content.get('schema', {}))}"
            for media, content in answer.get("content", {}).items()
        )
        yield status, _prose(answer["description"]), "<br>".join(kinds)


def _examples(
    body: dict[str, Any], responses: dict[str, Any], named: dict[str, Any]
) -> Iterator[str]:
    """Yield the examples of request bodies and successful responses."""
    bodies = {"a body": body}
    bodies |= {f"a {status}": answer for status, answer in responses.items() if status < "4"}
    for title, body in bodies.items():
        for content in body.get("content", {}).values():
            for text in _texts(content, named):
                shown = f"<summary>Example of {title}</summary><pre>{escape(text)}</pre>"
                yield f"<details>{shown}</details>"


def _texts(content: dict[str, Any], named: dict[str, Any]) -> Iterator[str]:
    """Serialize a media type's examples as texts."""
    values = [content["example"]] if "example" in content else []
    for example in content.get("examples", {}).values():
        name = example.get("$ref", "").rpartition("/")[2]
        values.append(named.get(name, example)["value"])
    for value in values:
        is_text = isinstance(value, str)
        yield value if is_text else json.dumps(value, indent=2, ensure_ascii=False)


def _schema(name: str, schema: dict[str, Any]) -> str:
    required = schema.get("required", ())
    rows = (
        (
            f"<code>{escape(field)}</code>{' *' if field in required else ''}",
            _kind(inner),
            _prose(inner.get("description", "")),
        )
        for field, inner in schema.get("properties", {}).items()
    )
    description = _prose(schema.get("description", "")) or _kind(schema)
    return f'<h3 id="{escape(name)}">{escape(name)}</h3><p>{description}</p>{_table(rows)}'


def _kind(schema: dict[str, Any]) -> str:
    """Describe a schema's type, choices and limits in one line."""
    if "$ref" in schema:
        name = escape(schema["$ref"].rpartition("/")[2])
        return f'<a href="#{name}">{name}</a>'
    if "anyOf" in schema:
        inner = " or ".join(_kind(choice) for choice in schema["anyOf"])
    elif "enum" in schema:
        inner = " or ".join(f"<code>{escape(str(value))}</code>" for value in schema["enum"])
    elif schema.get("type") == "array":
        inner = f"list of {_kind(schema.get('items', {}))}"
    else:
        inner = _type(schema.get("type", ""))
    limits = [
        f"{label} {escape(str(schema[rule]))}" for rule, label in RULES.items() if rule in schema
    ]
    return ", ".join([inner, *limits])


def _type(kind: str | list[str]) -> str:
    return escape(kind if isinstance(kind, str) else " or ".join(kind))
