"""Usage of a mesh slice by one claim."""

from __future__ import annotations

import asyncio

from service.jobs.queue import ClaimUsage
from workers.engine.row import ImageRow
from workers.programs.compilation import Compilation


class Bill:
    """Usage of device time and other resources by one claim, over all its images."""

    def __init__(self) -> None:
        self._image_s: dict[int, float] = {}
        self._compilations: list[Compilation] = []
        self._inputs_s = 0.0

    def read_inputs(self, cpu_s: float) -> None:
        """Record the CPU time of decoding and scaling the request's input images and videos."""
        self._inputs_s += cpu_s

    def step(self, image: int, row: ImageRow) -> None:
        """Record one image's device-seconds after a step."""
        self._image_s[image] = row.claim_seconds

    def finish(self, image: int, device_s: float) -> None:
        """Record the total device-seconds of a finished image."""
        self._image_s[image] = device_s

    def compile(self, compilation: Compilation) -> None:
        """Charge a compilation that this claim was the first to need, used or not."""
        self._compilations.append(compilation)

    @property
    def spent(self) -> ClaimUsage:
        """Device and compile time that the claim has used until now."""
        return self._with(sum(compilation.spent_s for compilation in self._compilations))

    @property
    def final(self) -> ClaimUsage:
        """Usage of a finished job, with estimates for its larger batches still compiling."""
        return self._with(sum(compilation.charge_s for compilation in self._compilations))

    def _with(self, compile_s: float) -> ClaimUsage:
        return ClaimUsage(self._inputs_s + compile_s + sum(self._image_s.values()), compile_s)

    @property
    def is_settled(self) -> bool:
        """Return whether none of the claim's compilations is running."""
        return all(compilation.is_over for compilation in self._compilations)

    async def settled(self) -> None:
        """Wait until none of the claim's compilations is running."""
        await asyncio.gather(*(compilation.over() for compilation in self._compilations))
