"""The ledger: what each ended job delivered and used, and who pays for it.

The scripts write the records (`scripts/ledger.lua`), in the same moment as a job's end.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict

from service.jobs.model.job import DEFAULT_CLASS, JobState, Output

LOST = "lost"
"""Outcome, in the sums, of device-seconds that had no part in how their job ended."""
TENANT, HOUSE = "tenant", "house"


@dataclass(frozen=True)
class Origin:
    """Place where a worker runs, and what it makes outputs with. None: not known."""

    chip: str | None = None
    """Kind of its chips, as the planner's table has it; `cpu` where there are none."""
    chips: float = 1
    """Number of chips of its mesh slice."""
    region: str | None = None
    spot: bool = False
    """True if the machine may be taken away."""
    checkpoint: str | None = None
    """Fingerprint of the model's checkpoint."""


@dataclass(frozen=True)
class Delivered:
    """Sums of what a job delivers."""

    images: int = 0
    videos: int = 0
    frames: int = 0
    """Frames of its videos."""
    pixels: int = 0
    """Pixels of its images, and of all frames of its videos."""

    @classmethod
    def of(cls, request: Mapping[str, Any], outputs: Iterable[Output]) -> Delivered:
        """Sum up outputs of a request, whose frames may be files of their own."""
        found = list(outputs)
        frames = [output.num_frames or 1 for output in found]
        pixels = sum(
            one.width * one.height * count for one, count in zip(found, frames, strict=True)
        )
        length = request.get("num_frames") or 1
        if length == 1 and all(output.num_frames is None for output in found):
            return cls(images=len(found), pixels=pixels)
        return cls(videos=-(-sum(frames) // length), frames=sum(frames), pixels=pixels)


class LedgerRecord(BaseModel):
    """One line of the ledger. Times are seconds since the epoch, by Redis's clock."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    id: str
    """Number of the record: none is there twice."""
    job: str
    """Id of the job."""
    is_correction: bool = False
    """True for device-seconds that a worker reported after the job's end, when a compilation that
    the job had caused was over. It adds to the record of the end, and repeats nothing of it."""
    tenant: str
    tenant_class: str = DEFAULT_CLASS
    key: str | None = None
    """Id of the API key that it was sent with; null: none, or nobody noted it."""
    model: str
    """Model whose workers served it."""
    served_as: str | None = None
    """Model that the request named, where workers of another one served it."""
    outcome: JobState
    error: str | None = None
    """Code of its error."""
    created_at: float | None = None
    ended_at: float
    attempts: int = 0
    images: int = 0
    videos: int = 0
    frames: int = 0
    pixels: int = 0
    """Delivered: nothing of a job that did not succeed, or paused."""
    steps: int = 0
    """Denoising steps, summed over the images."""
    device_seconds: float = 0.0
    """Seconds of a mesh slice, of all attempts."""
    tenant_seconds: float = 0.0
    """Device-seconds that the tenant pays for."""
    house_seconds: float = 0.0
    """Device-seconds that the house pays for: the rest."""
    lost_seconds: float = 0.0
    """Device-seconds, of the house's, of attempts that had no part in how the job ended."""
    compile_seconds: float = 0.0
    """Device-seconds spent compiling programs."""
    pool: str | None = None
    """Worker of the last attempt, as the next five."""
    chip: str | None = None
    chips: float = 1
    """Number of chips of its mesh slice: chip-seconds are device-seconds times these."""
    region: str | None = None
    spot: bool = False
    checkpoint: str | None = None
    """Fingerprint of the checkpoint."""
