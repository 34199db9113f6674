"""Reading of outputs with integrity checks against their recorded size and digest."""

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
from service.metrics.front_end import Telemetry

log = logging.getLogger("atelier")

MAX_VERIFIED = 10_000
"""Number of files remembered as intact, so that a range request reads only its range."""
SHORT_BYTES = 2**16
"""Maximum size hashed in the event loop: a fraction of a millisecond."""


class VerifiedOutputs:
    """Reader of outputs that verifies the size and digest recorded in their job.

    Whole reads are hashed. Range reads check the size, and the whole file is hashed once per stored
    version.
    """

    def __init__(self, store: Store, telemetry: Telemetry) -> None:
        self._store = store
        self._telemetry = telemetry
        self._verified: OrderedDict[tuple[str, str], None] = OrderedDict()

    async def read(self, output: Output) -> bytes:
        """Read an output file and verify its size and digest.

        Raises: Gone, OutputDamaged, StoreError.
        """
        with _gone():
            data = await self._store.get(output.key)
        if len(data) != output.bytes:
            raise self._damaged(output, f"it has {len(data)} bytes, not {output.bytes}")
        if await _digest(data) != output.sha256:
            raise self._damaged(output, "its bytes differ from the recorded digest")
        return data

    async def read_part(self, output: Output, start: int, end: int) -> bytes:
        """Read a range of an output's bytes.

        Raises: as `read`.
        """
        version = (output.key, await self.check_size(output))
        if version not in self._verified:
            data = await self.read(output)
            self._record_verified(version)
            return data[start:end]
        with _gone():
            return await self._store.get_range(output.key, start, end)

    async def check_size(self, output: Output) -> str:
        """Check the stored size and return the stored version. Raises: as `read`."""
        with _gone():
            stat = await self._store.stat(output.key)
        if stat.bytes != output.bytes:
            raise self._damaged(output, f"it has {stat.bytes} bytes, not {output.bytes}")
        return stat.version

    def _record_verified(self, version: tuple[str, str]) -> None:
        self._verified[version] = None
        if len(self._verified) > MAX_VERIFIED:
            self._verified.popitem(last=False)

    def _damaged(self, output: Output, how: str) -> OutputDamaged:
        log.error("the output %s is damaged in the store: %s", output.key, how)
        self._telemetry.damaged.inc()
        return OutputDamaged(
            f"output {output.index} of the job is damaged in the store ({how}); the same request"
            f" with seed {output.seed} generates it again"
        )


@contextmanager
def _gone() -> Iterator[None]:
    """Convert the store's NotStored error to Gone."""
    try:
        yield
    except NotStored as error:
        raise Gone(str(error), code="output_gone") from error


async def _digest(data: bytes) -> str:
    def digest() -> str:
        return hashlib.sha256(data).hexdigest()

    return digest() if len(data) <= SHORT_BYTES else await asyncio.to_thread(digest)
