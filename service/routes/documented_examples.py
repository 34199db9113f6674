"""Examples of every operation and every error in openapi.yaml.

A body's example is that of its class (`json_schema_extra`, `schemas.examples.shown`), unless its
route provides another. An error's example is a problem in the error format of its path.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from service.errors.forms import ErrorForm, ErrorForms
from service.errors.problems import (
    BodyTooLarge,
    Busy,
    Conflict,
    FieldError,
    Forbidden,
    Gone,
    Invalid,
    JobLate,
    Malformed,
    NotAcceptable,
    NotFound,
    Problem,
    RangeNotSatisfiable,
    Unauthorized,
    Unavailable,
    UnsupportedMedia,
)
from service.schemas.examples import CANCELED_JOB, PENDING, QUEUED_JOB, Example

Document = dict[str, Any]
_REF = "#/components/examples/"

_STEPS = FieldError("steps", "there is no such field; did you mean num_inference_steps?")
PROBLEMS: Mapping[int, Problem] = {
    problem.status: problem
    for problem in (
        Malformed('the body must be a JSON object, such as {"prompt": "a cat"}'),
        Unauthorized(
            "this server requires an API key: send the header `Authorization: Bearer atl_…`"
        ),
        Forbidden("the adapter 'ink' belongs to the operator, who can remove it from the settings"),
        NotFound("there is no job 'job_0'; it was deleted, has expired, or never existed"),
        NotAcceptable("the output is image/png; accept that, or JSON"),
        Conflict("the Idempotency-Key was used with another body; use a new key"),
        Gone("the output is no longer stored; generate it again", code="output_gone"),
        BodyTooLarge("the body may have 33554432 bytes; send a smaller image"),
        UnsupportedMedia("send the body as JSON, with the header Content-Type: application/json"),
        RangeNotSatisfiable("the output has 2048 bytes"),
        Invalid([_STEPS]),
        Busy("the queue of model 'flux-demo' accepts no more jobs; try again", retry_after_s=4),
        Problem("internal error of the service; it has been logged"),
        Unavailable("the queue cannot be reached; try again", retry_after_s=2),
        JobLate(
            "the job has not finished yet and continues; request /v1/jobs/job_0f8a1c2d3e4b5a69"
        ),
    )
}
"""Example problem of each status."""
NAMED: Mapping[str, Example] = {
    "QueuedJob": QUEUED_JOB,
    "CanceledJob": CANCELED_JOB,
    "PendingVerification": PENDING,
}
"""Examples that single routes use instead of their body's example."""


def add_examples(document: Document, forms: ErrorForms) -> None:
    """Add an example to each body of an OpenAPI document, by reference to `components/examples`."""
    components = document["components"]
    named = {name: {"value": example} for name, example in NAMED.items()}
    examples = components["examples"] = named | dict(_of_schemas(components["schemas"]))
    for path, methods in document["paths"].items():
        for operation in methods.values():
            for content in _bodies(operation):
                _refer(content, examples, _name(content))
            for status, answer in operation["responses"].items():
                if int(status) in PROBLEMS:
                    _add_error(answer, int(status), examples, forms.of(path))


def _of_schemas(schemas: Document) -> Iterator[tuple[str, Document]]:
    """Remove the examples from OpenAPI schemas and yield them by schema name."""
    for name, schema in schemas.items():
        for example in schema.pop("examples", ())[:1]:
            yield name, {"value": example}


def _bodies(operation: Document) -> Iterator[Document]:
    """Yield the contents of an operation's request and successful responses."""
    yield from operation.get("requestBody", {}).get("content", {}).values()
    for status, answer in operation["responses"].items():
        if int(status) < 400:
            yield from answer.get("content", {}).values()


def _add_error(answer: Document, status: int, examples: Document, form: ErrorForm) -> None:
    for content in answer.get("content", {}).values():
        name = f"{_name(content)}{status}"
        examples[name] = {"value": json.loads(bytes(form(PROBLEMS[status]).body))}
        _refer(content, examples, name)


def _name(content: Document) -> str:
    """Return the name of the schema that a content refers to; empty if its schema is inline."""
    return str(content.get("schema", {}).get("$ref", "")).rpartition("/")[2]


def _refer(content: Document, examples: Document, name: str) -> None:
    """Refer to an OpenAPI example by its name, unless the route provides an example."""
    if name in examples and not {"example", "examples"} & content.keys():
        content["examples"] = {"default": {"$ref": f"{_REF}{name}"}}
