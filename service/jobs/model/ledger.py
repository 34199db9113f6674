"""Usage ledger: delivered outputs, device-seconds and payer of each ended job.

The scripts write a record atomically with a job's end (`scripts/ledger.lua`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict

from service.jobs.model.job import DEFAULT_CLASS, JobState, Output

LOST = "lost"
"""Outcome, in the sums, of device-seconds of attempts that did not contribute to their job's
end."""
TENANT, HOUSE = "tenant", "house"
"""Payers of device-seconds: the tenant, or the operator of the service."""


@dataclass(frozen=True)
class Origin:
    """Location of a worker, and its checkpoint. None: unknown."""

    chip: str | None = None
    """Kind of its chips, named as in the planner's table; `cpu` for CPUs."""
    chips: float = 1
    """Number of chips of its mesh slice."""
    region: str | None = None
    spot: bool = False
    """True if the machine may be preempted by the cloud provider."""
    checkpoint: str | None = None
    """Fingerprint of the model's checkpoint."""


@dataclass(frozen=True)
class DeliveredOutputs:
    """Sums of a job's delivered outputs."""

    images: int = 0
    videos: int = 0
    frames: int = 0
    """Number of frames of its videos."""
    pixels: int = 0
    """Pixels of its images, and of all frames of its videos."""

    @classmethod
    def of(cls, request: Mapping[str, Any], outputs: Iterable[Output]) -> DeliveredOutputs:
        """Sum up a job's outputs. The frames of a video may be separate files."""
        files = list(outputs)
        frames = [output.num_frames or 1 for output in files]
        pixels = sum(
            file.width * file.height * count for file, count in zip(files, frames, strict=True)
        )
        length = request.get("num_frames") or 1
        if length == 1 and all(output.num_frames is None for output in files):
            return cls(images=len(files), pixels=pixels)
        return cls(videos=-(-sum(frames) // length), frames=sum(frames), pixels=pixels)


class LedgerRecord(BaseModel):
    """Ledger line of one ended job. Times are seconds since the epoch, by Redis's clock."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    id: str
    """Unique id of the record."""
    job: str
    """Id of the job."""
    is_correction: bool = False
    """True for device-seconds that a worker reported after the job's end, when a compilation caused
    by the job finished. They are in addition to the record of the end."""
    tenant: str
    tenant_class: str = DEFAULT_CLASS
    key: str | None = None
    """Id of the API key of the request; null: no key, or not recorded."""
    model: str
    """Model whose workers served it."""
    served_as: str | None = None
    """Model that the request named, if another model's workers served it."""
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
    """Delivered pixels. Nothing counts as delivered unless the job succeeded or paused."""
    steps: int = 0
    """Denoising steps, summed over the images."""
    device_seconds: float = 0.0
    """Seconds of a mesh slice, over all attempts."""
    tenant_seconds: float = 0.0
    """Device-seconds that the tenant pays for."""
    house_seconds: float = 0.0
    """Device-seconds that the operator of the service pays for: the rest."""
    lost_seconds: float = 0.0
    """Part of `house_seconds`: attempts that did not contribute to the job's end."""
    compile_seconds: float = 0.0
    """Device-seconds spent compiling programs."""
    pool: str | None = None
    """Worker of the last attempt. The next four fields describe the worker, too."""
    chip: str | None = None
    chips: float = 1
    """Number of chips of its mesh slice: chip-seconds are device-seconds times `chips`."""
    region: str | None = None
    spot: bool = False
    checkpoint: str | None = None
    """Fingerprint of the checkpoint: of the last attempt, or at the job's acceptance."""
