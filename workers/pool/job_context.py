"""Context of a running job: what its worker provides, and what belongs to its claim."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import numpy as np

from service.jobs.model.job import Job, MadeBy
from service.jobs.queue import Claim, Queue
from service.jobs.storage.object_store import Store
from workers.engine.backend import Backend
from workers.media.input_videos import InputVideos
from workers.media.outputs import Marking
from workers.pool.capacity import Reservation
from workers.pool.progress import Bill, Progress
from workers.pool.quality_samples import QualitySamples
from workers.pool.snapshots import Snapshots
from workers.retry import Patience

OutputCheck = Callable[[Job, int, np.ndarray], Awaitable[None]]
"""Check of the pixels of a job's image or video. Raises: GenerationFailed, NoVerdict."""


async def no_check(job: Job, number: int, pixels: np.ndarray) -> None:
    """Accept every output: no safety hook is configured."""


@dataclass(frozen=True)
class WorkerContext:
    """Parts of a worker that all its jobs share."""

    engine: Backend
    queue: Queue
    store: Store
    patience: Patience
    marking: Marking
    check: OutputCheck
    quality_samples: QualitySamples
    made_by: MadeBy
    videos: InputVideos


@dataclass(frozen=True)
class JobContext:
    """Parts of one claimed job in a worker."""

    worker: WorkerContext
    claim: Claim
    progress: Progress
    snapshots: Snapshots
    reservation: Reservation
    bill: Bill

    @property
    def job(self) -> Job:
        """Job that was claimed."""
        return self.claim.job
