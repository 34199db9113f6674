"""Room: how many more images a pool may claim."""

from __future__ import annotations

import asyncio

LEAVING_STEPS = 4
"""An image with no more steps to go makes room for its successor, which is claimed, prepared and
encoded meanwhile: the slot changes hands without a gap, and no pool hoards what an idle one could
begin at once."""
JOBS_A_SLOT = 4
"""Jobs in all stages together, finished ones that wait for Redis or the store too: a bound on the
memory that they take."""


class Capacity:
    """Images take places when they are claimed, and leave them shortly before the last step."""

    def __init__(self, slots: int) -> None:
        self._slots = slots
        self._pictures = 0
        self._jobs = 0
        self._suspects = 0
        self._changed = asyncio.Event()

    @property
    def free(self) -> int:
        """Images that may be claimed now; 0 while a step may hang."""
        if self._suspects or self._jobs >= JOBS_A_SLOT * self._slots:
            return 0
        return self._slots - self._pictures

    @property
    def is_full(self) -> bool:
        """True while all slots for images are taken: one image less would leave capacity."""
        in_bounds = not self._suspects and self._jobs < JOBS_A_SLOT * self._slots
        return in_bounds and self._pictures >= self._slots

    @property
    def is_whole(self) -> bool:
        """True while no slot is taken, which holds whenever no job runs."""
        return not (self._pictures or self._jobs or self._suspects)

    async def wait(self) -> int:
        """Wait for capacity; return for how many images."""
        while self.free <= 0:
            self._changed.clear()
            await self._changed.wait()
        return self.free

    def enter(self, pictures: int, is_suspect: bool = False) -> Places:
        """Take slots.

        Args:
            is_suspect: a pool has died with this job: nobody comes in beside it.
        """
        return Places(self, pictures, is_suspect)

    def _change(self, pictures: int, jobs: int, suspects: int = 0) -> None:
        self._pictures += pictures
        self._jobs += jobs
        self._suspects += suspects
        self._changed.set()


class Places:
    """The places of one job's images."""

    def __init__(self, capacity: Capacity, pictures: int, is_suspect: bool) -> None:
        self._capacity = capacity
        self._taken = set(range(pictures))
        self._has_left = False
        self._suspects = int(is_suspect)
        capacity._change(pictures, 1, self._suspects)

    @property
    def pictures(self) -> int:
        """Number of images that still have their slot."""
        return len(self._taken)

    def step(self, picture: int, steps_to_go: int) -> None:
        """Count one image's step."""
        if steps_to_go <= LEAVING_STEPS and picture in self._taken:
            self._taken.remove(picture)
            self._capacity._change(-1, 0)

    def wait(self, picture: int) -> None:
        """Free the slot of an image that waits for its programs: others may have it meanwhile."""
        if picture in self._taken:
            self._taken.remove(picture)
            self._capacity._change(-1, 0)

    def come_back(self, picture: int) -> None:
        """Take a slot again for an image with its programs, even beyond the slots.

        Without effect once the job has left: its engine may report a stage after that.
        """
        if self._has_left:
            return
        self._taken.add(picture)
        self._capacity._change(1, 0)

    def leave(self) -> None:
        """The job has ended. To be called once."""
        self._capacity._change(-len(self._taken), -1, -self._suspects)
        self._taken.clear()
        self._has_left = True
