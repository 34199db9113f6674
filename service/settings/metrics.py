"""`[metrics]`: metrics pushed by OTLP, in addition to the pages that Prometheus scrapes."""

from __future__ import annotations

from pydantic import Field, model_validator

from service.settings.otlp import address_of, check_endpoint
from service.settings.section import Section


class MetricsSettings(Section):
    """Push of metrics to an OTLP collector."""

    otlp_endpoint: str | None = None
    """Collector of metrics, by OTLP over HTTP, such as `http://collector:4318` (`/v1/metrics` is
    added to a URL without a path). Front ends and workers push the contents of their `/metrics` to
    it. Default: no push. Headers, certificates and resource attributes come from OpenTelemetry's
    environment variables (`OTEL_EXPORTER_OTLP_HEADERS`, …)."""
    push_every_s: float = Field(60, gt=0)
    """Interval of the pushes. The last push occurs when a process exits."""

    @model_validator(mode="after")
    def _is_reachable(self) -> MetricsSettings:
        check_endpoint("otlp_endpoint", self.otlp_endpoint)
        return self

    @property
    def address(self) -> str:
        """Return the OTLP collector's URL for metrics."""
        return address_of(self.otlp_endpoint, "/v1/metrics")
