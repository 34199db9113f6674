"""Liveness, readiness and metrics of a front end, for Kubernetes and Prometheus."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from service.errors.problems import Unavailable
from service.front_end.front_end import Front
from service.front_end.readiness import Check, reasons_against, refresh_gauges
from service.routes.documented_responses import METRICS, problems
from service.schemas.response import Health

Only = Annotated[
    Check | None,
    Query(
        description="Only this check. `redis`: for load balancers, which remove a front end that"
        " cannot reach its queue, but keep one whose models have no worker, because requests start"
        " workers. Default: all checks."
    ),
]

router = APIRouter(tags=["health"])

RETRY_AFTER_S = 2.0


@router.get("/healthz")
async def get_health() -> Health:
    """Report that this process is alive."""
    return Health()


@router.get("/readyz", responses=problems(503))
async def get_readiness(front: Front, only: Only = None) -> Health:
    """Report whether requests would be accepted and served; a 503 lists every reason against it."""
    if reasons := await reasons_against(front, only):
        raise Unavailable(
            "; ".join(reasons.values()),
            code="not_ready",
            retry_after_s=RETRY_AFTER_S,
            members={"reasons": [{"check": name, "message": m} for name, m in reasons.items()]},
        )
    return Health()


@router.get("/metrics", **METRICS)
async def get_metrics(request: Request, front: Front) -> Response:
    """Metrics in Prometheus' text format, or as OpenMetrics or protobuf, depending on `Accept`."""
    await refresh_gauges(front)
    body, media_type = front.telemetry.page(",".join(request.headers.getlist("accept")))
    return Response(body, media_type=media_type, headers={"Vary": "Accept"})
