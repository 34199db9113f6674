"""Outputs as they were recorded: nothing damaged is served as good."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager

from service.errors.problems import Gone, OutputDamaged
from service.jobs.model.job import Output
from service.jobs.storage.errors import NotStored
from service.jobs.storage.object_store import Store
from service.metrics.http import Telemetry

log = logging.getLogger("atelier")

REMEMBERED = 10_000
"""Files whose bytes are known to be right, so that a range reads no more than itself."""
SHORT_BYTES = 2**16
"""Maximum size hashed in the event loop: a fraction of a millisecond."""


class Intact:
    """Reader of outputs; holds them against the size and digest that their job has.

    Whatever is read whole is hashed. Of a range the size is checked, and the whole file is hashed
    once for each version that the store has of it.
    """

    def __init__(self, store: Store, telemetry: Telemetry) -> None:
        self._store = store
        self._telemetry = telemetry
        self._known: OrderedDict[tuple[str, str], None] = OrderedDict()

    async def read(self, output: Output) -> bytes:
        """Return an output's bytes, as they were made.

        Raises: Gone, OutputDamaged, StoreError.
        """
        with _gone():
            data = await self._store.get(output.key)
        if len(data) != output.bytes:
            raise self._damaged(output, f"it has {len(data)} bytes, not {output.bytes}")
        if await _digest(data) != output.sha256:
            raise self._damaged(output, "its bytes are others than those that were recorded")
        return data

    async def read_part(self, output: Output, start: int, end: int) -> bytes:
        """Return a part of an output's bytes.

        Raises: as `read`.
        """
        version = (output.key, await self.check_size(output))
        if version not in self._known:
            data = await self.read(output)
            self._remember(version)
            return data[start:end]
        with _gone():
            return await self._store.get_range(output.key, start, end)

    async def check_size(self, output: Output) -> str:
        """The version that the store has of it. Raises: as `read`."""
        with _gone():
            there = await self._store.stat(output.key)
        if there.bytes != output.bytes:
            raise self._damaged(output, f"it has {there.bytes} bytes, not {output.bytes}")
        return there.version

    def _remember(self, version: tuple[str, str]) -> None:
        self._known[version] = None
        if len(self._known) > REMEMBERED:
            self._known.popitem(last=False)

    def _damaged(self, output: Output, how: str) -> OutputDamaged:
        log.error("the output %s is damaged in the store: %s", output.key, how)
        self._telemetry.damaged.inc()
        return OutputDamaged(
            f"output {output.index} of the job is damaged in the store ({how}); the same request "
            f"with seed {output.seed} makes it again"
        )


@contextmanager
def _gone() -> Iterator[None]:
    """Raises: Gone: in place of NotStored."""
    try:
        yield
    except NotStored as error:
        raise Gone(str(error), code="output_gone") from error


async def _digest(data: bytes) -> str:
    def digest() -> str:
        return hashlib.sha256(data).hexdigest()

    return digest() if len(data) <= SHORT_BYTES else await asyncio.to_thread(digest)
