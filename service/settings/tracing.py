"""`[tracing]`: where spans are sent."""

from __future__ import annotations

from urllib.parse import urlsplit

from pydantic import Field, model_validator

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

    @model_validator(mode="after")
    def _is_reachable(self) -> TracingSettings:
        parts = urlsplit(self.endpoint or "")
        is_url = parts.scheme in ("http", "https") and parts.hostname
        if self.endpoint is not None and not is_url:
            raise ValueError("endpoint must be a whole http or https URL")
        return self

    @property
    def address(self) -> str:
        """Return the collector's address for traces."""
        parts = urlsplit(self.endpoint or "")
        return parts._replace(path=parts.path.rstrip("/") or "/v1/traces").geturl()
