"""Adapters (LoRA) in requests, jobs and model specs. No JAX: front ends import this module.

On a device an adapter occupies pages of a bank, each with `PAGE_RANK` ranks. A step program is
compiled for a fixed number of pages per row, one of `PAGE_COUNTS`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

PAGE_RANK = 16
"""Ranks per page: rows of a bfloat16 tile on TPUs."""
PAGE_COUNTS = (1, 2, 4, 8, 16, 32)
"""Pages per row for which programs are compiled."""
MAX_RANK = PAGE_RANK * PAGE_COUNTS[-1]
"""Maximum total rank of a row's adapters."""

ENDINGS = ("safetensors", "sft")
"""Endings of safetensors files, in lowercase."""

Expert = Literal["high", "low"]
"""Expert of Wan 2.2 that a file is for: high noise (`transformer`) or low noise (`transformer_2`).
"""
LOW_NOISE = "transformer_2"
"""Network name of Wan 2.2's low-noise expert."""


def pages_of(rank: int, has_magnitudes: bool = False) -> int:
    """Return the number of pages for an adapter of that rank.

    Args:
        has_magnitudes: whether one more page holds the magnitudes of its vectors (DoRA).
    """
    return max(1, math.ceil(rank / PAGE_RANK)) + has_magnitudes


def without_ending(name: str) -> str:
    """Return an adapter's name without a file extension, which some clients add."""
    stem, _, ending = name.rpartition(".")
    return stem.rstrip() if stem and ending.lower() in ENDINGS else name


def page_count(pages: int) -> int:
    """Round a number of bank pages up to a count that programs are compiled for; 0 stays 0.

    Raises: ValueError: a row cannot have so many pages.
    """
    for count in (0, *PAGE_COUNTS):
        if pages <= count:
            return count
    raise ValueError(f"{pages} pages of adapters are more than {PAGE_COUNTS[-1]}")


class ScaleInterval(BaseModel):
    """Scale of an adapter in an interval of the steps."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    start: float = Field(ge=0, le=1)
    """Share of the steps before the interval."""
    stop: float = Field(ge=0, le=1)
    scale: float


class RequestedLora(BaseModel):
    """Adapter of an accepted request, as stored in the queue."""

    model_config = ConfigDict(frozen=True)

    name: str
    digest: str
    """SHA-256 of the file, in hexadecimal."""
    pages: int = Field(ge=0)
    networks: tuple[str, ...]
    """Names of the networks that the adapter changes."""
    scales: tuple[ScaleInterval, ...]
    """Scale by interval; 0 outside all intervals."""
    has_magnitudes: bool = False
    """Whether its last page holds the magnitudes of its vectors (DoRA)."""
    is_reduced: bool = False
    """Whether the file has a higher rank than its pages."""
    vectors: int = 0
    """Tokens that an embedding stands for, which takes no pages; 0: it is no embedding."""

    @property
    def expert(self) -> Expert | None:
        """Expert of Wan 2.2 that the file is for; None: the expert that diffusers chooses."""
        return "low" if LOW_NOISE in self.networks else None

    def scale(self, step: int, steps: int) -> float:
        """Return the adapter's scale in a step, counted from 0."""
        inside = (
            interval.scale
            for interval in self.scales
            if interval.start * steps <= step < interval.stop * steps
        )
        return next(inside, 0.0)


class Lora(BaseModel):
    """Adapter that requests may name, with its file's properties and access rules."""

    model_config = ConfigDict(frozen=True)

    name: str
    model: str
    """Name of the model that the adapter is for."""
    digest: str
    """SHA-256 of the file, in hexadecimal; empty: the file could not be read."""
    bytes: int = 0
    """Size of the file."""
    rank: int = 0
    """Highest rank of a layer in banks."""
    networks: tuple[str, ...] = ()
    """Names of the networks that the adapter changes, or that read the embedding."""
    has_magnitudes: bool = False
    """Whether it has the magnitudes of its vectors (DoRA), which take a page."""
    is_reduced: bool = False
    """Whether the file has a higher rank."""
    warnings: tuple[str, ...] = ()
    """Differences between the file and what requests use."""
    vectors: int = 0
    """Tokens that an embedding (textual inversion) stands for; 0: it is no embedding."""
    embeddings: Mapping[str, int] = Field(default_factory=dict)
    """Number of vectors of each embedding that the adapter's file also contains, by name."""
    trigger: str = ""
    """Words that a prompt should contain."""
    preview: str | None = None
    """Store key of an example image."""
    origin: Literal["settings", "upload"] = "settings"
    """Source of the adapter: the operator's settings, or a tenant's upload."""
    tenants: tuple[str, ...] = ()
    """Tenants that may use the adapter; empty: all."""
    error: str | None = None
    """Reason why the adapter is unusable; None: usable."""

    @property
    def pages(self) -> int:
        """Number of a bank's pages that the adapter occupies."""
        return 0 if self.vectors else pages_of(self.rank, self.has_magnitudes)

    def may_use(self, tenant: str) -> bool:
        """Return whether a tenant may use the adapter."""
        return not self.tenants or tenant in self.tenants


def always(scale: float) -> tuple[ScaleInterval, ...]:
    """Return scale intervals with the same scale in all steps."""
    return (ScaleInterval(start=0, stop=1, scale=scale),)


def pages_of_request(loras: Iterable[RequestedLora]) -> int:
    """Return the rank bucket of a request: the pages that its programs are compiled for."""
    return page_count(sum(lora.pages for lora in loras))
