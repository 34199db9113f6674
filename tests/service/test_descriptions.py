"""Completeness of the OpenAPI document: descriptions and examples of all operations, those of
compatible endpoints included."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from service.openapi import document_of_all

Document = dict[str, Any]
EXAMPLES = "#/components/examples/"


@cache
def described() -> Document:
    """Return the OpenAPI document of all endpoints, as JSON has it."""
    document: Document = json.loads(json.dumps(document_of_all()))
    return document


def operations(document: Document) -> Iterator[tuple[str, Document]]:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield f"{method.upper()} {path}", operation


def contents(document: Document) -> Iterator[tuple[str, Document]]:
    """Yield the body of every request and response, with its location."""
    for name, operation in operations(document):
        bodies = operation.get("requestBody", {}).get("content", {})
        yield from ((f"{name}, body, {kind}", content) for kind, content in bodies.items())
        for status, answer in operation["responses"].items():
            for kind, content in answer.get("content", {}).items():
                yield f"{name}, {status}, {kind}", content


def examples(document: Document, content: Document) -> list[Any]:
    named = list(content.get("examples", {}).values())
    resolved = [
        document["components"]["examples"][example["$ref"].removeprefix(EXAMPLES)]
        if "$ref" in example
        else example
        for example in named
    ]
    values = [example["value"] for example in resolved]
    return [*values, content["example"]] if "example" in content else values


def needs_no_example(content: Document) -> bool:
    """Return whether the body is a file or empty."""
    schema = content["schema"]
    return schema.get("format") == "binary" or schema in ({}, {"type": "null"})


def properties(schema: Any, location: str) -> Iterator[tuple[str, Document]]:
    """Yield every property below a schema, with its location."""
    if isinstance(schema, list):
        for item in schema:
            yield from properties(item, location)
    elif isinstance(schema, dict):
        for name, field in schema.get("properties", {}).items():
            yield f"{location}.{name}", field
            yield from properties(field, f"{location}.{name}")
        for name in ("items", "additionalProperties", "anyOf", "oneOf", "allOf", "prefixItems"):
            yield from properties(schema.get(name), location)


def undescribed_fields(document: Document) -> list[str]:
    """Fields without a description. Remedy: a docstring below the field, in a class with
    `use_attribute_docstrings`."""
    schemas = document["components"]["schemas"].items()
    return [
        location
        for name, schema in schemas
        for location, field in properties(schema, name)
        if not field.get("description")
    ]


def undescribed_schemas(document: Document) -> list[str]:
    """Schemas without a description. Remedy: a docstring of the class."""
    schemas = document["components"]["schemas"].items()
    return [name for name, schema in schemas if not schema.get("description")]


def undescribed_parameters(document: Document) -> list[str]:
    """Parameters without a description. Remedy: `Query(description=…)`, `Path(description=…)`, or
    `documented_responses`."""
    return [
        f"{name}, {parameter['name']}"
        for name, operation in operations(document)
        for parameter in operation.get("parameters", ())
        if not parameter.get("description")
    ]


def undescribed_operations(document: Document) -> list[str]:
    """Operations without a description. Remedy: a docstring of the route's function."""
    return [
        name
        for name, operation in operations(document)
        if not (operation.get("description") and operation.get("summary"))
    ]


def undescribed_headers(document: Document) -> list[str]:
    return [
        f"{name}, {status}, {header}"
        for name, operation in operations(document)
        for status, answer in operation["responses"].items()
        for header, description in answer.get("headers", {}).items()
        if not description.get("description")
    ]


def bodies_without_example(document: Document) -> list[str]:
    """Bodies without an example. Remedy: `model_config =
    ConfigDict(json_schema_extra=shown(EXAMPLE))` in the body's class, or `example` next to the
    schema in the route's description."""
    return [
        location
        for location, content in contents(document)
        if not needs_no_example(content) and not examples(document, content)
    ]


def wrong_examples(document: Document) -> list[str]:
    """Examples that violate their schema. Remedy: a valid example."""
    root = {"components": document["components"]}
    return [
        f"{location}: {error.json_path} {error.message}"
        for location, content in contents(document)
        for example in examples(document, content)
        if isinstance(example, dict)
        for error in Draft202012Validator(content["schema"] | root).iter_errors(example)
    ]


RULES = [
    undescribed_fields,
    undescribed_schemas,
    undescribed_parameters,
    undescribed_operations,
    undescribed_headers,
    bodies_without_example,
    wrong_examples,
]


@pytest.mark.parametrize("rule", RULES)
def test_everything_is_described(rule: Callable[[Document], list[str]]) -> None:
    assert rule(described()) == [], rule.__doc__


def test_missing_descriptions_are_detected() -> None:
    document = copy.deepcopy(described())
    listed = document["paths"]["/v1/jobs"]["get"]
    del listed["parameters"][0]["description"]
    del listed["description"]
    del listed["responses"]["200"]["content"]["application/json"]["examples"]
    schemas = document["components"]["schemas"]
    del schemas["JobView"]["properties"]["state"]["description"]
    del schemas["Usage"]["description"]
    document["components"]["examples"]["JobView"]["value"]["state"] = "done"
    generate = document["paths"]["/v1/generate"]["post"]
    del generate["responses"]["202"]["headers"]["Location"]["description"]
    problems = [rule(document) for rule in RULES]
    assert problems[:-1] == [
        ["JobView.state"],
        ["Usage"],
        ["GET /v1/jobs, limit"],
        ["GET /v1/jobs"],
        ["POST /v1/generate, 202, Location"],
        ["GET /v1/jobs, 200, application/json"],
    ]
    assert "'done' is not one of" in problems[-1][0]
