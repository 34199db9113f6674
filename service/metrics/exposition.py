"""Pages of metrics, in the format that a scraper asks for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4, CollectorRegistry, generate_latest
from prometheus_client.exposition import choose_encoder

PROTOBUF = (
    "application/vnd.google.protobuf; proto=io.prometheus.client.MetricFamily; encoding=delimited"
)


def page(registry: CollectorRegistry, accept: str | None) -> tuple[bytes, str]:
    """Return a registry's metrics, and their media type.

    Protobuf, which alone has native histograms, where the Accept header likes nothing better;
    OpenMetrics, which has exemplars, where it names that; else Prometheus' text format.
    """
    if _prefers_protobuf(accept or ""):
        from service.metrics import protobuf  # a tenth of a second that few scrapers ask for

        return protobuf.generate(registry), PROTOBUF
    try:
        encode, content_type = choose_encoder(accept or "")
    except (TypeError, ValueError):  # a version that is none
        return generate_latest(registry), CONTENT_TYPE_PLAIN_0_0_4
    return encode(registry), content_type


class _Range(NamedTuple):
    """Entry of an Accept header."""

    media_type: str
    parameters: dict[str, str]

    @property
    def quality(self) -> float:
        """Weight among the entries; 1 where it cannot be read."""
        try:
            return float(self.parameters.get("q", 1))
        except ValueError:
            return 1.0

    @property
    def is_protobuf(self) -> bool:
        wanted, *parameters = _parts(PROTOBUF)
        given = {f"{name}={value}" for name, value in self.parameters.items()}
        return self.media_type == wanted and given.issuperset(parameters)


def _prefers_protobuf(accept: str) -> bool:
    """Return whether it is named, and nothing else with a greater weight."""
    ranges = list(_ranges(accept))
    quality = max((one.quality for one in ranges if one.is_protobuf), default=0.0)
    return quality > 0 and all(one.quality <= quality for one in ranges)


def _ranges(accept: str) -> Iterator[_Range]:
    for entry in accept.split(","):
        media_type, *parameters = _parts(entry)
        named = (parameter.partition("=") for parameter in parameters)
        yield _Range(media_type, {name.strip(): value.strip() for name, _, value in named})


def _parts(entry: str) -> list[str]:
    return [part.strip() for part in entry.lower().split(";")]
