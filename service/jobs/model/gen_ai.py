"""Attributes and metrics of jobs in OpenTelemetry's conventions for generative AI.

Source: open-telemetry/semantic-conventions-genai, all of which is still in development. Attributes
with prompts or generated content are never reported.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from prometheus_client import CollectorRegistry

from service.jobs.model.histogram import Histogram
from service.jobs.model.job import Job
from service.tracing.spans import ERROR_TYPE, Attributes

OPERATION = "gen_ai.operation.name"
PROVIDER = "gen_ai.provider.name"
REQUEST_MODEL = "gen_ai.request.model"
RESPONSE_MODEL = "gen_ai.response.model"
SERVICE = {OPERATION: "generate_content", PROVIDER: "atelier"}
"""Attributes common to all spans and metrics."""

MAX_OTLP_INTEGER = 2**63 - 1

DURATION = "gen_ai.server.request.duration"
DURATION_BUCKETS_S = (
    0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92,
)  # fmt: skip
"""Buckets that the conventions recommend."""


def in_prometheus(name: str) -> str:
    """Convert a metric name with dots to Prometheus's spelling."""
    return name.replace(".", "_")


LABELS = tuple(map(in_prometheus, (*SERVICE, REQUEST_MODEL, RESPONSE_MODEL, ERROR_TYPE)))
DURATION_SECONDS = in_prometheus(DURATION) + "_seconds"
NAMES = {
    DURATION_SECONDS: DURATION,
    **{in_prometheus(name): name for name in (*SERVICE, REQUEST_MODEL, RESPONSE_MODEL, ERROR_TYPE)},
}
"""The conventions' names by their spelling in Prometheus."""


def request_model(job: Job) -> str:
    """Return the model that a job's request names. Another model's workers may serve it."""
    return str(job.request.get("model", job.model))


def attributes(job: Job) -> Attributes:
    """Return the OpenTelemetry attributes of a job's spans."""
    request = job.request
    return {
        **SERVICE,
        REQUEST_MODEL: request_model(job),
        "gen_ai.request.choice.count": job.images,
        **_seed(request),
        "gen_ai.output.type": "video" if (request.get("num_frames") or 1) > 1 else "image",
        RESPONSE_MODEL: job.model,
        "gen_ai.response.id": job.id,
    }


def _seed(request: Mapping[str, Any]) -> Attributes:
    """Return the seed as span attribute; a text if it exceeds OTLP's signed integers."""
    if "seed" not in request:
        return {}
    seed = request["seed"]
    return {"gen_ai.request.seed": seed if seed <= MAX_OTLP_INTEGER else str(seed)}


class Durations:
    """Histogram of the time from a job's acceptance to its end."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._seconds = Histogram(
            DURATION_SECONDS,
            "Seconds from a job's acceptance to its end, by OpenTelemetry's conventions.",
            LABELS,
            buckets=DURATION_BUCKETS_S,
            registry=registry,
        )

    def expect(self, model: str) -> None:
        """Create a model's series with value 0, before its first job."""
        self._of(model, model, "")

    def observe(
        self,
        request_model: str,
        model: str,
        error_type: str,
        seconds: float,
        exemplar: dict[str, str] | None,
    ) -> None:
        """Count one ended job. `error_type` is empty if it succeeded."""
        self._of(request_model, model, error_type).observe(seconds, exemplar)

    def _of(self, request_model: str, model: str, error_type: str) -> Histogram:
        return self._seconds.labels(*SERVICE.values(), request_model, model, error_type)
