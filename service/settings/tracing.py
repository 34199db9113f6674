"""`[tracing]`: collector of spans, and sampling."""

from __future__ import annotations

from pydantic import Field, model_validator

from service.settings.otlp import address_of, check_endpoint
from service.settings.section import Section


class TracingSettings(Section):
    """Export of OpenTelemetry traces, and sampling."""

    endpoint: str | None = None
    """Collector of spans, by OTLP over HTTP, such as `http://collector:4318` (`/v1/traces` is added
    to a URL without a path). Default: no tracing. Headers, certificates and resource attributes
    come from OpenTelemetry's environment variables (`OTEL_EXPORTER_OTLP_HEADERS`, …)."""
    sample_ratio: float = Field(1, ge=0, le=1)
    """Share of the traces started here that are recorded."""
    follow_clients: bool = True
    """Whether to continue a client's `traceparent` with its sampling decision. False: every request
    starts a new trace."""

    gcp_project: str | None = Field(None, min_length=1)
    """Google Cloud project whose Cloud Trace stores the spans. JSON log lines then name their trace
    in Cloud Logging's format, which links the two."""

    @model_validator(mode="after")
    def _is_reachable(self) -> TracingSettings:
        check_endpoint("endpoint", self.endpoint)
        return self

    @property
    def address(self) -> str:
        """Return the OTLP collector's URL for traces."""
        return address_of(self.endpoint, "/v1/traces")
