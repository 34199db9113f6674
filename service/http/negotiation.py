"""Content negotiation by HTTP's own headers: Accept and Prefer."""

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
"""Media types that /v1/generate can answer with, the preferred ones first."""

MAX_ENTRIES = 64
"""Maximum number of Accept entries; each is matched against every offer."""

DEFAULT_WAIT_S = 60.0
"""Default of `Prefer: wait` without a number."""


@dataclass(frozen=True)
class Range:
    """Entry of an Accept header."""

    pattern: str
    quality: float
    position: int

    def specificity(self, media_type: str) -> int:
        """2 for the type itself, 1 for its family, 0 for */*, -1 where it does not match."""
        if self.pattern == media_type:
            return 2
        if self.pattern == media_type.partition("/")[0] + "/*":
            return 1
        return 0 if self.pattern == "*/*" else -1


def parse_accept(header: str) -> list[Range]:
    """The entries of an Accept header; one that cannot be read counts with quality 1.

    Raises: Malformed: there are more than anybody needs.
    """
    if header.count(",") > MAX_ENTRIES:
        raise Malformed(f"the Accept header has more than {MAX_ENTRIES} entries")
    found = (entry.split(";") for entry in header.split(",") if entry.strip())
    return [
        Range(pattern.strip().lower(), _quality(parameters), position)
        for position, (pattern, *parameters) in enumerate(found)
    ]


def _quality(parameters: Sequence[str]) -> float:
    for parameter in parameters:
        name, _, value = parameter.strip().partition("=")
        if name.strip().lower() == "q" and re.fullmatch(r"[01](\.\d{0,3})?", value.strip()):
            return min(1.0, float(value))
    return 1.0


def acceptable(header: str, offers: Sequence[str] = OFFERS) -> list[str]:
    """The offers that the client takes, the best first.

    Ordered by quality, then by how exactly they were asked for, then as the client wrote them.
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
    """Form of answer that POST /v1/generate was asked for."""

    media_types: tuple[str, ...]
    """Media types of images or video that the client takes, best first; empty: the job as JSON."""
    events: bool = False
    """The job's events as a stream."""

    @property
    def bytes(self) -> bool:
        """The output's own bytes, once they are there."""
        return bool(self.media_types)


@lru_cache(maxsize=128)
def negotiate(header: str | None) -> Answer:
    """Return the best of what the client accepts.

    Raises: NotAcceptable: nothing that there is fits.
    """
    accepted = acceptable(header or "*/*")
    if not accepted:
        raise NotAcceptable(f"there is {', '.join(OFFERS)}; ask for one of them, or for */*")
    if accepted[0] == JSON:
        return Answer(())
    if accepted[0] == EVENTS:
        return Answer((), events=True)
    return Answer(tuple(offer for offer in accepted if offer not in (JSON, EVENTS)))


def preferred_wait_s(headers: Sequence[str]) -> float | None:
    """Seconds of `Prefer: wait` or `wait=N` (RFC 7240); None where it is absent or unreadable."""
    for preference in _preferences(headers):
        name, _, value = preference.partition("=")
        value = value.strip().strip('"')
        if name.strip().lower() != "wait":
            continue
        if not value:
            return DEFAULT_WAIT_S
        return float(value) if re.fullmatch(r"\d{1,9}", value) else None
    return None


def _preferences(headers: Sequence[str]) -> Iterator[str]:
    for header in headers:
        for preference in header.split(","):
            yield preference.split(";")[0].strip()
