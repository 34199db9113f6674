"""Registration of a front end's routes; each refuses unknown query parameters."""

from __future__ import annotations

from functools import cache

from fastapi import APIRouter, Depends, FastAPI
from fastapi.routing import APIRoute
from starlette.routing import BaseRoute

from service.errors.forms import ErrorForms
from service.http.query_parameters import check_query
from service.metrics.http import GENERATE, READ
from service.routes import (
    admin,
    continuation,
    generate,
    health,
    jobs,
    links,
    loras,
    models,
    pages,
    verify,
)
from service.routes.compat import hugging_face
from service.routes.compat.a1111 import door as a1111
from service.routes.compat.fal import door as fal
from service.routes.compat.mcp import door as mcp
from service.routes.compat.openai import batches, files, mlperf
from service.routes.compat.openai import images as openai_images
from service.routes.compat.openai import videos as openai_videos
from service.routes.compat.replicate import door as replicate
from service.routes.documented_responses import problems

OURS = (generate, continuation, verify, jobs, links, models, loras, admin, health, pages)
"""Routes of our own API, and pages."""
DOORS = (
    openai_images.DOOR,
    mlperf.DOOR,
    openai_videos.DOOR,
    hugging_face.DOOR,
    a1111.DOOR,
    replicate.DOOR,
    fal.DOOR,
    files.DOOR,
    batches.DOOR,
    mcp.DOOR,
)
"""Other clients' APIs."""


ASK_FOR_WORK = frozenset(
    (
        *("generate", "continue_job", "verify"),
        *("create_image", "edit_image", "vary_image"),
        *("create_video", "remix_video", "generate_video"),
        "hugging_face_infer",
        *("sdapi_txt2img", "sdapi_img2img"),
        *("create_prediction", "create_prediction_of_model"),
        *("fal_run", "fal_submit"),
        "create_batch",
        "mcp_message",
    )
)
"""Operations whose requests ask for work, of all APIs."""


def class_of(route: BaseRoute | None) -> str | None:
    """Return the class that a route's requests are counted in; None: a probe or page, or none."""
    if not isinstance(route, APIRoute) or not route.include_in_schema or "health" in route.tags:
        return None
    return GENERATE if operation_id(route) in ASK_FOR_WORK else READ


def operation_id(route: APIRoute) -> str:
    """Return the name of a route's function, which generated clients call it by."""
    return route.name


@cache
def _routes() -> list[BaseRoute]:
    """Return the routes of every app of this process: FastAPI takes long to prepare them."""
    routes = APIRouter()
    for part in OURS:
        routes.include_router(
            part.router,
            dependencies=[Depends(check_query)],
            responses=problems(422),
            generate_unique_id_function=operation_id,
        )
    for door in DOORS:
        routes.include_router(
            door.router,
            dependencies=[Depends(check_query)],
            generate_unique_id_function=operation_id,
        )
    return routes.routes


def include_routes(app: FastAPI) -> None:
    """Add every route of the front end."""
    app.router.routes.extend(_routes())
    app.state.error_forms = ErrorForms(
        {prefix: form for door in DOORS for prefix, form in door.error_forms.items()}
    )
