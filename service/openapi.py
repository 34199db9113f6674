"""OpenAPI document of this API. `python -m service.openapi > openapi.yaml` writes the file."""

from __future__ import annotations

import copy
import re
import sys
from collections.abc import Iterator
from functools import cache
from typing import Any

import yaml
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from service.http.negotiation import JSON
from service.recipes.recipe import generator
from service.routes.documented_components import drop_unused, share_errors
from service.routes.documented_examples import add_examples
from service.routing import COMPATIBLE_ENDPOINTS, include_routes
from service.schemas.admin import PauseRequest, Reason
from service.schemas.request import ContinueRequest, GenerateRequest, LoraUpload
from service.schemas.response import (
    AcceptedView,
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
SUMMARY = (
    "Images and video from SDXL, Flux, Chroma, FLUX.2, Z-Image, Qwen-Image, Krea 2, Wan and LTX-2."
)
VERSION = generator().partition(" ")[2] or "unpackaged"

VIEWS = (
    *(JobView, AcceptedView, JobPage, LoraView, LoraPage, ModelView, ModelPage, Verification),
    *(Health, ProblemView),
)
"""Bodies of responses. FastAPI includes most, but omits the nulls of their examples."""

_BREAK = re.compile(r"(?<=[^\n])\n(?=[^\n\s*|-])")
"""Line break within a paragraph."""
_REF = "#/components/schemas/{model}"
_UNUSED = ("HTTPValidationError", "ValidationError")
"""FastAPI's bodies of a 422, which this API replaces with a problem."""


class _Dumper(yaml.SafeDumper):
    """YAML dumper of OpenAPI documents: repeated values in full, lists of scalars in one line."""

    def ignore_aliases(self, data: object) -> bool:
        """Disable YAML aliases for all values."""
        return True

    def represent_list(self, data: list[Any]) -> yaml.SequenceNode:
        """Write a YAML list; in one line if it has scalars only."""
        is_flat = not any(isinstance(item, dict | list) for item in data)
        return self.represent_sequence("tag:yaml.org,2002:seq", data, flow_style=is_flat)

    def represent_dict(self, data: dict[str, Any]) -> yaml.MappingNode:
        """Write a YAML mapping; in one line if it has one reference or type only."""
        is_flat = [*data] in (["$ref"], ["type"])
        return self.represent_mapping("tag:yaml.org,2002:map", data, flow_style=is_flat)


_Dumper.add_representer(list, _Dumper.represent_list)
_Dumper.add_representer(dict, _Dumper.represent_dict)


def describe(app: FastAPI, *, wants_keys: bool) -> dict[str, Any]:
    """Describe all HTTP endpoints as OpenAPI, including bodies that routes parse themselves.

    Args:
        wants_keys: whether every request needs an API key; False: only with some settings.
    """
    document = get_openapi(title=TITLE, version=VERSION, summary=SUMMARY, routes=app.routes)
    schemas = document.setdefault("components", {}).setdefault("schemas", {})
    _, input_schemas = models_json_schema(
        [(body, "validation") for body in _bodies()],
        ref_template=_REF,
    )
    _, output_schemas = models_json_schema(
        [(body, "serialization") for body in VIEWS], ref_template=_REF
    )
    schemas |= input_schemas["$defs"] | output_schemas["$defs"]
    for name in _UNUSED:
        schemas.pop(name, None)
    for methods in document["paths"].values():
        for operation in methods.values():
            _drop_unused_answer(operation)
            if "security" in operation and not wants_keys:
                operation["security"].append({})
    add_examples(document, app.state.error_forms)
    drop_unused(document["components"], document["paths"])
    return document


def native(document: dict[str, Any]) -> dict[str, Any]:
    """Return the description of the native API; vendors describe their own.

    Operations share their error responses.
    """
    document = copy.deepcopy(document)
    for path in _compatible_paths() & document["paths"].keys():
        del document["paths"][path]
    share_errors(document)
    drop_unused(document["components"], document["paths"])
    return document


def _compatible_paths() -> set[str]:
    routes = (route for endpoint in COMPATIBLE_ENDPOINTS for route in endpoint.router.routes)
    return {route.path_format for route in routes if isinstance(route, APIRoute)}


def _simplify(node: Any) -> None:
    """Shorten an OpenAPI document: no generated titles, no repeated texts, no unions of types.

    Descriptions lose the line breaks of docstrings.
    """
    if isinstance(node, list):
        for item in node:
            _simplify(item)
    elif isinstance(node, dict):
        if isinstance(node.get("title"), str) and "version" not in node:
            del node["title"]
        if "in" in node and "schema" in node:
            node["schema"].pop("description", None)
        if "default" in node and node["default"] is None and "name" not in node:
            del node["default"]
        if isinstance(text := node.get("description"), str):
            node["description"] = _BREAK.sub(" ", text)
        _flatten_optional(node)
        for item in node.values():
            _simplify(item)


def _flatten_optional(schema: dict[str, Any]) -> None:
    """Replace a union of one plain type and null by a list of types, as JSON Schema allows."""
    match schema.get("anyOf"):
        case [{"type": str(kind)} as plain, {"type": "null"}] if not {"enum", "const"} & {*plain}:
            del schema["anyOf"]
            schema |= plain | {"type": [kind, "null"]}


def _bodies() -> Iterator[type[BaseModel]]:
    """Yield the request bodies of this API and of the compatible endpoints."""
    yield from (
        GenerateRequest,
        ContinueRequest,
        VerifyRequest,
        LoraUpload,
        Reason,
        PauseRequest,
    )
    for endpoint in COMPATIBLE_ENDPOINTS:
        yield from endpoint.bodies


def _drop_unused_answer(operation: dict[str, Any]) -> None:
    answer = operation["responses"].get("422", {}).get("content", {}).get(JSON, {})
    if answer.get("schema", {}).get("$ref") in [_REF.format(model=name) for name in _UNUSED]:
        del operation["responses"]["422"]


def install(app: FastAPI) -> None:
    """Describe the app once, on first use; /openapi.json and /docs have the native API."""

    def cached_document() -> dict[str, Any]:
        if app.openapi_schema is None:
            wants_keys = app.state.front.callers is not None
            app.openapi_schema = describe(app, wants_keys=wants_keys)
        return app.openapi_schema

    app.openapi = cached_document  # type: ignore[method-assign]
    app.state.native_openapi = cache(lambda: native(app.openapi()))


def document_of_all() -> dict[str, Any]:
    """Describe all endpoints, with optional API keys, because each server decides."""
    app = FastAPI()
    include_routes(app)
    return describe(app, wants_keys=False)


def as_yaml() -> str:
    """Build the committed document of the native API, shortened."""
    document = native(document_of_all())
    _simplify(document)
    text: str = yaml.dump(
        document,
        Dumper=_Dumper,
        sort_keys=True,
        allow_unicode=True,
        width=140,
    )
    return text


if __name__ == "__main__":
    sys.stdout.write(as_yaml())
