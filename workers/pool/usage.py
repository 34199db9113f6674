"""Usage of a mesh slice by one claim."""

from __future__ import annotations

import asyncio

from service.jobs.queue import Spent
from workers.engine.row import Row
from workers.programs.compilation import Compilation


class Bill:
    """Bill of one claim, over all its images, without what earlier claims have used."""

    def __init__(self) -> None:
        self._pictures: dict[int, float] = {}
        self._compilations: list[Compilation] = []
        self._videos_s = 0.0

    def read_videos(self, cpu_s: float) -> None:
        """Record the processor time that decoding and scaling the request's videos took."""
        self._videos_s += cpu_s

    def step(self, picture: int, row: Row) -> None:
        """Record one image's step."""
        self._pictures[picture] = row.own_seconds

    def finish(self, picture: int, device_s: float) -> None:
        """Record that one image is done; it took that in all."""
        self._pictures[picture] = device_s

    def compile(self, compilation: Compilation) -> None:
        """Charge a compilation that this claim was the first to need, used or not."""
        self._compilations.append(compilation)

    @property
    def spent(self) -> Spent:
        """Usage until now."""
        return self._with(sum(one.spent_s for one in self._compilations))

    @property
    def final(self) -> Spent:
        """Return the usage of a job that is done.

        With what its larger batches will take that are still to be compiled.
        """
        return self._with(sum(one.charge_s for one in self._compilations))

    def _with(self, compile_s: float) -> Spent:
        return Spent(self._videos_s + compile_s + sum(self._pictures.values()), compile_s)

    @property
    def is_settled(self) -> bool:
        """Return whether nothing is compiled on its account any more."""
        return all(one.is_over for one in self._compilations)

    async def settled(self) -> None:
        """Wait until then."""
        await asyncio.gather(*(one.over() for one in self._compilations))
