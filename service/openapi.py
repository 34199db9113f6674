"""The API's own description; `python -m service.openapi > openapi.yaml` writes it down."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import yaml
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from service.http.negotiation import JSON
from service.recipes.recipe import generator
from service.routes.documented_examples import add_examples
from service.routing import DOORS, include_routes
from service.schemas.admin import PauseRequest, Reason
from service.schemas.request import ContinueRequest, GenerateRequest, LoraUpload
from service.schemas.response import (
    Health,
    JobPage,
    JobView,
    LoraPage,
    LoraView,
    ModelPage,
    ModelView,
    ProblemView,
)
from service.schemas.verify import Verification, VerifyRequest

TITLE = "Atelier"
SUMMARY = "Images and video from SDXL, Flux, FLUX.2 klein, Z-Image, Qwen-Image, Wan and LTX-2."
VERSION = generator().partition(" ")[2] or "unpackaged"

VIEWS = (
    *(JobView, JobPage, LoraView, LoraPage, ModelView, ModelPage, Verification),
    *(Health, ProblemView),
)
"""Bodies of answers. FastAPI knows of most, and would leave out the nulls of their examples."""

_REF = "#/components/schemas/{model}"
_UNUSED = ("HTTPValidationError", "ValidationError")
"""FastAPI's own bodies of a 422, which is a problem here like any other."""


class _Dumper(yaml.SafeDumper):
    """Writer that spells out whatever is there several times."""

    def ignore_aliases(self, data: object) -> bool:
        """Return that nothing is written as a reference."""
        return True


def describe(app: FastAPI, *, wants_keys: bool) -> dict[str, Any]:
    """The OpenAPI document, with the bodies that the routes read and write by hand.

    Args:
        wants_keys: whether there is no answer without an API key, or only with some settings.
    """
    document = get_openapi(title=TITLE, version=VERSION, summary=SUMMARY, routes=app.routes)
    schemas = document.setdefault("components", {}).setdefault("schemas", {})
    _, read = models_json_schema(
        [(one, "validation") for one in _bodies()],
        ref_template=_REF,
    )
    _, shown = models_json_schema([(one, "serialization") for one in VIEWS], ref_template=_REF)
    schemas |= read["$defs"] | shown["$defs"]
    for name in _UNUSED:
        schemas.pop(name, None)
    for methods in document["paths"].values():
        for operation in methods.values():
            _drop_unused_answer(operation)
            if "security" in operation and not wants_keys:
                operation["security"].append({})
    add_examples(document, app.state.error_forms)
    return document


def _bodies() -> Iterator[type[BaseModel]]:
    """Bodies that clients send, and those of other APIs."""
    yield from (
        GenerateRequest,
        ContinueRequest,
        VerifyRequest,
        LoraUpload,
        Reason,
        PauseRequest,
    )
    for door in DOORS:
        yield from door.bodies


def _drop_unused_answer(operation: dict[str, Any]) -> None:
    answer = operation["responses"].get("422", {}).get("content", {}).get(JSON, {})
    if answer.get("schema", {}).get("$ref") in [_REF.format(model=name) for name in _UNUSED]:
        del operation["responses"]["422"]


def install(app: FastAPI) -> None:
    """Serve that document at /openapi.json."""

    def cached() -> dict[str, Any]:
        if app.openapi_schema is None:
            wants_keys = app.state.front.callers is not None
            app.openapi_schema = describe(app, wants_keys=wants_keys)
        return app.openapi_schema

    app.openapi = cached  # type: ignore[method-assign]


def as_yaml() -> str:
    """The document as it is committed: whether keys are wanted is each server's own matter."""
    app = FastAPI()
    include_routes(app)
    return yaml.dump(
        describe(app, wants_keys=False),
        Dumper=_Dumper,
        sort_keys=True,
        allow_unicode=True,
        width=100,
    )


if __name__ == "__main__":
    sys.stdout.write(as_yaml())
