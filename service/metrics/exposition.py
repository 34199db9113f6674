"""Rendering of metrics pages, in the format that the scraper accepts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4, CollectorRegistry, generate_latest
from prometheus_client.exposition import choose_encoder

PROTOBUF = (
    "application/vnd.google.protobuf; proto=io.prometheus.client.MetricFamily; encoding=delimited"
)


def page(registry: CollectorRegistry, accept: str | None) -> tuple[bytes, str]:
    """Render a registry's metrics, and return them with their media type.

    Protobuf, the only format with native histograms, if the Accept header prefers it. OpenMetrics,
    which has exemplars, if the header lists it. Otherwise Prometheus' text format.
    """
    if _prefers_protobuf(accept or ""):
        from service.metrics import protobuf  # imported late: takes 0.1 s, and few scrapers need it

        return protobuf.generate(registry), PROTOBUF
    try:
        encode, content_type = choose_encoder(accept or "")
    except (TypeError, ValueError):  # an invalid version
        return generate_latest(registry), CONTENT_TYPE_PLAIN_0_0_4
    return encode(registry), content_type


class _Range(NamedTuple):
    """Entry of an Accept header, in the selection of the metrics format."""

    media_type: str
    parameters: dict[str, str]

    @property
    def quality(self) -> float:
        """Quality value of the Accept header's entry; 1 if unreadable."""
        try:
            return float(self.parameters.get("q", 1))
        except ValueError:
            return 1.0

    @property
    def is_protobuf(self) -> bool:
        media_type, *parameters = _parts(PROTOBUF)
        given = {f"{name}={value}" for name, value in self.parameters.items()}
        return self.media_type == media_type and given.issuperset(parameters)


def _prefers_protobuf(accept: str) -> bool:
    """Return whether an Accept header lists protobuf, and nothing with a greater quality."""
    ranges = list(_ranges(accept))
    quality = max((entry.quality for entry in ranges if entry.is_protobuf), default=0.0)
    return quality > 0 and all(entry.quality <= quality for entry in ranges)


def _ranges(accept: str) -> Iterator[_Range]:
    for entry in accept.split(","):
        media_type, *parameters = _parts(entry)
        named = (parameter.partition("=") for parameter in parameters)
        yield _Range(media_type, {name.strip(): value.strip() for name, _, value in named})


def _parts(entry: str) -> list[str]:
    return [part.strip() for part in entry.lower().split(";")]
