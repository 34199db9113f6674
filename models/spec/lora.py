"""Adapters (LoRA) as front ends and workers know them. No JAX in here: the front end imports it.

On a device an adapter is pages of a bank, each with `PAGE_RANK` ranks; a program of a step is made
for a number of pages a row, one of `PAGE_COUNTS`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

PAGE_RANK = 16
"""Ranks of a page: rows of a tile of bfloat16 on TPUs."""
PAGE_COUNTS = (1, 2, 4, 8, 16)
"""Pages of a row that programs are made for."""
MAX_RANK = PAGE_RANK * PAGE_COUNTS[-1]
"""Highest rank that any row can have, over all its adapters."""

Expert = Literal["high", "low"]
"""Expert of Wan 2.2 that a file is for: of high noise (`transformer`) or of low (`transformer_2`).
"""
LOW_NOISE = "transformer_2"
"""Network that is Wan 2.2's expert of low noise."""


def pages_of(rank: int) -> int:
    """Return how many pages so many ranks take."""
    return max(1, math.ceil(rank / PAGE_RANK))


def page_count(pages: int) -> int:
    """Return the number of pages that programs are made for; 0 of none.

    Raises: ValueError: they are more than a row can have.
    """
    for count in (0, *PAGE_COUNTS):
        if pages <= count:
            return count
    raise ValueError(f"{pages} pages of adapters are more than {PAGE_COUNTS[-1]}")


class ScaleInterval(BaseModel):
    """Scale of an adapter in a part of the steps."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    start: float = Field(ge=0, le=1)
    """Share of the steps before it."""
    stop: float = Field(ge=0, le=1)
    scale: float


class RequestedLora(BaseModel):
    """Adapter of an accepted request, as the queue keeps it."""

    model_config = ConfigDict(frozen=True)

    name: str
    digest: str
    """SHA-256 of its file, in hexadecimal."""
    pages: int = Field(ge=1)
    networks: tuple[str, ...]
    """Names of the networks that it changes."""
    scales: tuple[ScaleInterval, ...]
    """Intervals of its scale, which is 0 outside of them."""

    @property
    def expert(self) -> Expert | None:
        """Expert of Wan 2.2 that its file is for; None: the one that diffusers takes."""
        return "low" if LOW_NOISE in self.networks else None

    def scale(self, step: int, steps: int) -> float:
        """Return its scale in a step, counted from 0."""
        inside = (one.scale for one in self.scales if one.start * steps <= step < one.stop * steps)
        return next(inside, 0.0)


class Lora(BaseModel):
    """Adapter that requests may name."""

    model_config = ConfigDict(frozen=True)

    name: str
    model: str
    """Name of the model that it is for."""
    digest: str
    """SHA-256 of its file, in hexadecimal; empty: it could not be read."""
    bytes: int = 0
    """Size of its file."""
    rank: int = 0
    """The highest rank of a layer."""
    networks: tuple[str, ...] = ()
    """Names of the networks that it changes."""
    trigger: str = ""
    """Words that a prompt should hold."""
    preview: str | None = None
    """Store key of an image that shows it."""
    origin: Literal["settings", "upload"] = "settings"
    """Whether the operator's settings name it, or a tenant has uploaded it."""
    tenants: tuple[str, ...] = ()
    """Tenants that may use it; empty: all."""
    error: str | None = None
    """Reason why it cannot be used; None: it can."""

    @property
    def pages(self) -> int:
        """Pages of a bank that it takes."""
        return pages_of(self.rank)

    def may_use(self, tenant: str) -> bool:
        """Return whether a tenant may use it."""
        return not self.tenants or tenant in self.tenants


def always(scale: float) -> tuple[ScaleInterval, ...]:
    """Return the intervals of a scale that all steps have."""
    return (ScaleInterval(start=0, stop=1, scale=scale),)


def pages_of_request(loras: Iterable[RequestedLora]) -> int:
    """Return the pages that programs of such a request are made for: its rank bucket."""
    return page_count(sum(lora.pages for lora in loras))
