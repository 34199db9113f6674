"""Content negotiation by the HTTP headers Accept and Prefer."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from service.errors.problems import Malformed, NotAcceptable
from service.schemas.request_parts import MEDIA_TYPES

JSON = "application/json"
EVENTS = "text/event-stream"
OFFERS = (JSON, EVENTS, *MEDIA_TYPES.values())
"""Media types that /v1/generate can return, the preferred ones first."""

MAX_ENTRIES = 64
"""Maximum number of Accept entries. Each is matched against every offer."""

DEFAULT_WAIT_S = 60.0
"""Default of `Prefer: wait` without a number."""

_QUALITY = re.compile(r"[01](\.\d{0,3})?")
_SECONDS = re.compile(r"\d{1,9}")


@dataclass(frozen=True)
class Range:
    """Entry of an Accept header, for content negotiation."""

    pattern: str
    quality: float
    position: int

    def specificity(self, media_type: str) -> int:
        """Rank a match: 2 for the type itself, 1 for its family, 0 for */*, -1 for no match."""
        if self.pattern == media_type:
            return 2
        if self.pattern == media_type.partition("/")[0] + "/*":
            return 1
        return 0 if self.pattern == "*/*" else -1


def parse_accept(header: str) -> list[Range]:
    """Parse an Accept header; unreadable quality values count as 1.

    Raises: Malformed: too many entries.
    """
    if header.count(",") > MAX_ENTRIES:
        raise Malformed(f"the Accept header has more than {MAX_ENTRIES} entries")
    entries = (entry.split(";") for entry in header.split(",") if entry.strip())
    return [
        Range(pattern.strip().lower(), _quality(parameters), position)
        for position, (pattern, *parameters) in enumerate(entries)
    ]


def _quality(parameters: Sequence[str]) -> float:
    for parameter in parameters:
        name, _, value = parameter.strip().partition("=")
        if name.strip().lower() == "q" and _QUALITY.fullmatch(value.strip()):
            return min(1.0, float(value))
    return 1.0


def acceptable(header: str, offers: Sequence[str] = OFFERS) -> list[str]:
    """List the media types that the client accepts, the best first.

    Ordered by quality, then by specificity, then by the client's order.
    """
    ranges = parse_accept(header)
    ranked = [(rank, offer) for offer in offers if (rank := _rank(ranges, offer))]
    return [offer for _, offer in sorted(ranked, key=lambda pair: pair[0])]


def _rank(ranges: Sequence[Range], offer: str) -> tuple[float, int, int] | None:
    matching = [entry for entry in ranges if entry.specificity(offer) >= 0]
    if not matching:
        return None
    best = max(matching, key=lambda entry: entry.specificity(offer))
    rank = -best.quality, -best.specificity(offer), best.position
    return rank if best.quality > 0 else None


@dataclass(frozen=True)
class Answer:
    """Response format that the client of POST /v1/generate requested."""

    media_types: tuple[str, ...]
    """Accepted media types of images or video, best first; empty: the job as JSON."""
    events: bool = False
    """Whether to stream the job's events."""

    @property
    def bytes(self) -> bool:
        """Return whether the response is the output file itself."""
        return bool(self.media_types)


@lru_cache(maxsize=128)
def negotiate(header: str | None) -> Answer:
    """Select the best response format that the client accepts.

    Raises: NotAcceptable: no offer matches.
    """
    accepted = acceptable(header or "*/*")
    if not accepted:
        raise NotAcceptable(f"available: {', '.join(OFFERS)}; accept one of them, or */*")
    if accepted[0] == JSON:
        return Answer(())
    if accepted[0] == EVENTS:
        return Answer((), events=True)
    return Answer(tuple(offer for offer in accepted if offer not in (JSON, EVENTS)))


def preferred_wait_s(headers: Sequence[str]) -> float | None:
    """Parse the seconds of `Prefer: wait` or `wait=N` (RFC 7240); None if absent or unreadable."""
    for preference in _preferences(headers):
        name, _, value = preference.partition("=")
        value = value.strip().strip('"')
        if name.strip().lower() != "wait":
            continue
        if not value:
            return DEFAULT_WAIT_S
        return float(value) if _SECONDS.fullmatch(value) else None
    return None


def prefers_minimal(headers: Sequence[str]) -> bool:
    """Return whether the client wants a short response: `Prefer: return=minimal`.

    Source: RFC 7240, section 4.2.
    """
    for preference in _preferences(headers):
        name, _, value = preference.partition("=")
        if name.strip().lower() == "return":
            return value.strip().strip('"').lower() == "minimal"
    return False


def _preferences(headers: Sequence[str]) -> Iterator[str]:
    for header in headers:
        for preference in header.split(","):
            yield preference.split(";")[0].strip()
