"""Registration of all routes; each rejects unknown query parameters."""

from __future__ import annotations

from functools import cache

from fastapi import APIRouter, Depends, FastAPI
from fastapi.routing import APIRoute
from starlette.routing import BaseRoute

from service.errors.forms import ErrorForms
from service.http.query_parameters import check_query
from service.metrics.front_end import GENERATE, READ
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
    reference,
    verify,
)
from service.routes.compat import hugging_face
from service.routes.compat.a1111 import control_lists
from service.routes.compat.a1111 import endpoint as a1111
from service.routes.compat.fal import endpoint as fal
from service.routes.compat.mcp import endpoint as mcp
from service.routes.compat.openai import batches, chat, files, mlperf, responses
from service.routes.compat.openai import images as openai_images
from service.routes.compat.openai import videos as openai_videos
from service.routes.compat.replicate import endpoint as replicate
from service.routes.documented_responses import problems

NATIVE_ROUTES = (
    *(generate, continuation, verify, jobs, links, models, loras, admin, health),
    *(pages, reference),
)
"""Modules with the routes of this API, and pages."""
COMPATIBLE_ENDPOINTS = (
    openai_images.ENDPOINT,
    mlperf.ENDPOINT,
    openai_videos.ENDPOINT,
    chat.ENDPOINT,
    responses.ENDPOINT,
    hugging_face.ENDPOINT,
    a1111.ENDPOINT,
    control_lists.ENDPOINT,
    replicate.ENDPOINT,
    fal.ENDPOINT,
    files.ENDPOINT,
    batches.ENDPOINT,
    mcp.ENDPOINT,
)
"""Compatible endpoints: other vendors' APIs."""


JOB_OPERATIONS = frozenset(
    (
        *("generate", "continue_job", "verify"),
        *("create_image", "edit_image", "vary_image"),
        *("create_video", "remix_video", "generate_video"),
        *("create_chat_completion", "create_response"),
        "hugging_face_infer",
        *("sdapi_txt2img", "sdapi_img2img"),
        *("create_prediction", "create_prediction_of_model"),
        *("fal_run", "fal_submit"),
        "create_batch",
        "mcp_message",
    )
)
"""Operations of all APIs that create jobs or other work."""


def class_of(route: BaseRoute | None) -> str | None:
    """Return a route's class for request metrics; None for probes, pages and unknown paths."""
    if not isinstance(route, APIRoute) or not route.include_in_schema or "health" in route.tags:
        return None
    return GENERATE if operation_id(route) in JOB_OPERATIONS else READ


def operation_id(route: APIRoute) -> str:
    """Return the name of a route's function, which generated clients use."""
    return route.name


@cache
def _routes() -> list[BaseRoute]:
    """Build the routes once for all apps of this process, since FastAPI builds them slowly."""
    routes = APIRouter()
    for module in NATIVE_ROUTES:
        routes.include_router(
            module.router,
            dependencies=[Depends(check_query)],
            responses=problems(422),
            generate_unique_id_function=operation_id,
        )
    for endpoint in COMPATIBLE_ENDPOINTS:
        routes.include_router(
            endpoint.router,
            dependencies=[Depends(check_query)],
            generate_unique_id_function=operation_id,
        )
    return routes.routes


@cache
def _methods() -> dict[str, set[str]]:
    """Return the HTTP methods of each path template."""
    routers = [module.router for module in NATIVE_ROUTES]
    routers += [endpoint.router for endpoint in COMPATIBLE_ENDPOINTS]
    methods: dict[str, set[str]] = {}
    for route in (route for router in routers for route in router.routes):
        if isinstance(route, APIRoute):
            methods.setdefault(route.path_format, set()).update(route.methods or ())
    return methods


def include_routes(app: FastAPI) -> None:
    """Add every route of the front end to the app, with methods and error format of each path."""
    app.router.routes.extend(_routes())
    app.state.methods = _methods()
    app.state.error_forms = ErrorForms(
        {
            prefix: form
            for endpoint in COMPATIBLE_ENDPOINTS
            for prefix, form in endpoint.error_forms.items()
        }
    )
