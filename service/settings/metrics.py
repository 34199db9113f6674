"""`[metrics]`: where metrics are pushed, beside the pages that Prometheus reads."""

from __future__ import annotations

from pydantic import Field, model_validator

from service.settings.otlp import address_of, check_endpoint
from service.settings.section import Section


class MetricsSettings(Section):
    """Metrics that are pushed."""

    otlp_endpoint: str | None = None
    """Collector of metrics, by OTLP over HTTP, such as `http://collector:4318` (`/v1/metrics` is
    added where there is no path), to which front ends and pools push what their `/metrics` have.
    Left out: nothing is pushed. Headers, certificates and resource attributes come from
    OpenTelemetry's own variables (`OTEL_EXPORTER_OTLP_HEADERS`, …)."""
    push_every_s: float = Field(60, gt=0)
    """Interval of the pushes; the last one comes when a process ends."""

    @model_validator(mode="after")
    def _is_reachable(self) -> MetricsSettings:
        check_endpoint("otlp_endpoint", self.otlp_endpoint)
        return self

    @property
    def address(self) -> str:
        """Return the collector's address for metrics."""
        return address_of(self.otlp_endpoint, "/v1/metrics")
