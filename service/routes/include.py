"""Registration of a front end's routes; each refuses unknown query parameters."""

from __future__ import annotations

from fastapi import Depends, FastAPI

from service.http.query_parameters import check_query
from service.routes import generate, health, jobs, loras, models, pages
from service.routes.documented_responses import problems


def include_routes(app: FastAPI) -> None:
    """Add every route of the front end."""
    for part in (generate, jobs, models, loras, health, pages):
        app.include_router(
            part.router, dependencies=[Depends(check_query)], responses=problems(422)
        )
