"""Registration of a front end's routes; each refuses unknown query parameters."""

from __future__ import annotations

from fastapi import Depends, FastAPI
from fastapi.routing import APIRoute

from service.http.query_parameters import check_query
from service.routes import generate, health, jobs, loras, models, pages
from service.routes.documented_responses import problems


def operation_id(route: APIRoute) -> str:
    """Return the name of a route's function, which generated clients call it by."""
    return route.name


def include_routes(app: FastAPI) -> None:
    """Add every route of the front end."""
    for part in (generate, jobs, models, loras, health, pages):
        app.include_router(
            part.router,
            dependencies=[Depends(check_query)],
            responses=problems(422),
            generate_unique_id_function=operation_id,
        )
