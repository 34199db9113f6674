"""Unknown and repeated query parameters of all routes are rejected."""

from __future__ import annotations

import re

import httpx
import pytest
from fastapi import FastAPI
from fastapi.routing import APIRoute

from service.routes import pages, reference
from service.routing import COMPATIBLE_ENDPOINTS, NATIVE_ROUTES

ROUTERS = (
    *(part.router for part in NATIVE_ROUTES),
    *(door.router for door in COMPATIBLE_ENDPOINTS),
)
ROUTES = [
    (method, re.sub(r"\{[^}]*\}", "x", route.path.replace("{index}", "0")))
    for router in ROUTERS
    for route in router.routes
    if isinstance(route, APIRoute)
    for method in route.methods
]


@pytest.mark.parametrize(("method", "path"), ROUTES)
async def test_every_route_names_a_parameter_that_it_does_not_have(
    http: httpx.AsyncClient, method: str, path: str
) -> None:
    answer = await http.request(method, path, params={"limitt": 5})
    assert answer.status_code in (400, 422), answer.text  # OpenAI's status is 400
    assert "limitt: " in answer.text


def test_all_routes_are_tried(app: FastAPI) -> None:
    described = app.openapi()["paths"]
    undescribed = [*pages.router.routes, *reference.router.routes]
    assert len(ROUTES) == sum(map(len, described.values())) + len(undescribed)


async def test_error_lists_available_parameters(http: httpx.AsyncClient) -> None:
    answer = await http.get("/v1/jobs?sort=new&after=")
    message = answer.json()["errors"][0]["message"]
    assert all(name in message for name in ("limit", "after", "state", "metadata_key"))


async def test_repeated_parameter_is_rejected(http: httpx.AsyncClient) -> None:
    answer = await http.get("/v1/jobs?limit=1&limit=2")
    assert answer.status_code == 422
    assert answer.json()["errors"] == [{"field": "limit", "message": "occurs twice"}]


async def test_many_unknown_parameters_give_a_short_error(http: httpx.AsyncClient) -> None:
    answer = await http.get("/healthz?" + "&".join(f"p{i}" + "x" * 90 for i in range(80)))
    assert answer.status_code == 422 and len(answer.json()["errors"]) == 16


@pytest.mark.parametrize(("name", "meant"), [("limitt", "limit"), ("status", "state")])
async def test_similar_parameter_is_suggested(
    http: httpx.AsyncClient, name: str, meant: str
) -> None:
    answer = await http.get("/v1/jobs", params={name: "1"})
    assert answer.json()["errors"][0]["message"].endswith(f"did you mean {meant}?")


async def test_an_alias_of_a_parameter_that_the_route_lacks_is_not_suggested(
    http: httpx.AsyncClient,
) -> None:
    answer = await http.get("/v1/models?status=ready")
    assert answer.json()["errors"][0]["message"].endswith("this path accepts none")
