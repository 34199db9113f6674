"""Alive, ready, and the numbers: what a cluster asks a front end."""

from __future__ import annotations

from fastapi import APIRouter, Response
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4

from service.errors.problems import Unavailable
from service.front_end.front_end import Front
from service.front_end.readiness import reasons_against, refresh_gauges
from service.routes.documented_responses import METRICS, problems
from service.schemas.response import Health

router = APIRouter(tags=["health"])

RETRY_AFTER_S = 2.0


@router.get("/healthz")
async def get_health() -> Health:
    """Answer that this process is alive."""
    return Health()


@router.get("/readyz", responses=problems(503))
async def get_readiness(front: Front) -> Health:
    """Requests would be accepted and served; else every reason against it."""
    if reasons := await reasons_against(front):
        raise Unavailable(
            "; ".join(reasons.values()),
            code="not_ready",
            retry_after_s=RETRY_AFTER_S,
            members={"reasons": [{"check": name, "message": m} for name, m in reasons.items()]},
        )
    return Health()


@router.get("/metrics", **METRICS)
async def get_metrics(front: Front) -> Response:
    """Metrics in Prometheus' text format."""
    await refresh_gauges(front)
    return Response(front.telemetry.page(), media_type=CONTENT_TYPE_PLAIN_0_0_4)
