"""Capacity accounting: the number of images that a worker may still claim."""

from __future__ import annotations

import asyncio

LEAVING_STEPS = 4
"""An image with at most this many steps left frees its slot for a successor, which is claimed,
prepared and encoded meanwhile. The slot changes hands without a gap, and no worker hoards jobs that
an idle one could begin."""
JOBS_A_SLOT = 4
"""Maximum number of jobs per slot, in all stages together, including finished ones that wait for
Redis or the store: a bound on their memory."""


class Capacity:
    """Slots of one worker, which images occupy from their claim until shortly before their end."""

    def __init__(self, slots: int) -> None:
        self._slots = slots
        self._images = 0
        self._jobs = 0
        self._suspects = 0
        self._changed = asyncio.Event()

    @property
    def free(self) -> int:
        """Number of images that may be claimed now; 0 while a suspect job runs."""
        if self._suspects or self._jobs >= JOBS_A_SLOT * self._slots:
            return 0
        return self._slots - self._images

    def unoccupied(self, images: int, jobs: int) -> int:
        """Return the free slots if running jobs hold that many, regardless of reservations."""
        return self._slots - images if jobs < JOBS_A_SLOT * self._slots else 0

    @property
    def is_full(self) -> bool:
        """True if every slot is taken, and only that prevents a claim."""
        in_bounds = not self._suspects and self._jobs < JOBS_A_SLOT * self._slots
        return in_bounds and self._images >= self._slots

    @property
    def is_unused(self) -> bool:
        """True if no slot is taken, which must hold whenever no job runs."""
        return not (self._images or self._jobs or self._suspects)

    async def wait(self) -> int:
        """Wait until slots are free; return the number of images that may be claimed."""
        while self.free <= 0:
            self._changed.clear()
            await self._changed.wait()
        return self.free

    def enter(self, images: int, is_suspect: bool = False) -> Reservation:
        """Reserve slots for the images of a job.

        Args:
            is_suspect: a worker crashed while running this job, so it runs alone.
        """
        return Reservation(self, images, is_suspect)

    def _change(self, images: int, jobs: int, suspects: int = 0) -> None:
        self._images += images
        self._jobs += jobs
        self._suspects += suspects
        self._changed.set()


class Reservation:
    """Reservation of one job: the slots of its images."""

    def __init__(self, capacity: Capacity, images: int, is_suspect: bool) -> None:
        self._capacity = capacity
        self._taken = set(range(images))
        self._is_released = False
        self._suspects = int(is_suspect)
        capacity._change(images, 1, self._suspects)

    @property
    def images_with_slot(self) -> int:
        """Number of images that still occupy a slot."""
        return len(self._taken)

    def step(self, image: int, steps_to_go: int) -> None:
        """Count one step of an image, which frees its slot shortly before the end."""
        if steps_to_go <= LEAVING_STEPS and image in self._taken:
            self._taken.remove(image)
            self._capacity._change(-1, 0)

    def wait(self, image: int) -> None:
        """Release the slot of an image that waits for its programs, so that others can use it."""
        if image in self._taken:
            self._taken.remove(image)
            self._capacity._change(-1, 0)

    def reacquire(self, image: int) -> None:
        """Reacquire a slot for an image whose programs are ready, even above capacity.

        No effect once the job has left, because its engine may report a stage afterwards.
        """
        if self._is_released:
            return
        self._taken.add(image)
        self._capacity._change(1, 0)

    def release(self) -> None:
        """Release all slots of a job that has ended. Call it once."""
        self._capacity._change(-len(self._taken), -1, -self._suspects)
        self._taken.clear()
        self._is_released = True
