"""`[tracing]` and `[metrics]`: export to OpenTelemetry collectors."""

from __future__ import annotations

from urllib.parse import urlsplit

from pydantic import Field, model_validator

from service.settings.section import Section


def check_endpoint(name: str, endpoint: str | None) -> None:
    """Raise ValueError for a value that is no http(s) URL. None is valid."""
    parts = urlsplit(endpoint or "")
    is_url = parts.scheme in ("http", "https") and parts.hostname
    if endpoint is not None and not is_url:
        raise ValueError(f"{name} must be an absolute http or https URL")


def address_of(endpoint: str | None, path: str) -> str:
    """Add a path to a collector's URL, unless the URL has one."""
    parts = urlsplit(endpoint or "")
    return parts._replace(path=parts.path.rstrip("/") or path).geturl()


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
