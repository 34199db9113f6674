"""`[tracing]`: where spans are sent."""

from __future__ import annotations

from pydantic import Field, model_validator

from service.settings.otlp import address_of, check_endpoint
from service.settings.section import Section


class TracingSettings(Section):
    """Traces by OpenTelemetry."""

    endpoint: str | None = None
    """Collector of spans, by OTLP over HTTP, such as `http://collector:4318` (`/v1/traces` is added
    where there is no path). Left out: no tracing. Headers, certificates and resource attributes
    come from OpenTelemetry's own variables (`OTEL_EXPORTER_OTLP_HEADERS`, …)."""
    sample_ratio: float = Field(1, ge=0, le=1)
    """Share of the traces begun here that are recorded."""
    follow_clients: bool = True
    """Whether to continue a client's `traceparent` with its sampling decision. False: every request
    begins a trace of its own."""

    gcp_project: str | None = Field(None, min_length=1)
    """Project of Google Cloud whose Cloud Trace has the spans: lines of the log in JSON then name
    their trace as Cloud Logging reads it, and it shows them beside each other."""

    @model_validator(mode="after")
    def _is_reachable(self) -> TracingSettings:
        check_endpoint("endpoint", self.endpoint)
        return self

    @property
    def address(self) -> str:
        """Return the collector's address for traces."""
        return address_of(self.endpoint, "/v1/traces")
