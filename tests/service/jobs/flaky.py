"""Lossy network: a relay in front of Redis that closes the connection after every other script
call, before its response."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from urllib.parse import unquote, urlsplit

CHUNK_BYTES = 2**20


class Flaky:
    def __init__(self, server: str) -> None:
        self._server = server
        self.lost: list[bytes] = []
        """Digests of the scripts whose responses were lost, in order."""
        self.is_deaf = False
        """Whether all responses of scripts are lost."""
        self._retried = True
        self._serving: set[asyncio.Task[None]] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._relay(reader, writer))
        self._serving.add(task)
        await task

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        up_reader, up_writer = await asyncio.open_unix_connection(self._server)
        with closing(up_writer), closing(writer):
            while request := await reader.read(CHUNK_BYTES):
                up_writer.write(request)
                answer = await up_reader.read(CHUNK_BYTES)
                if self._loses(request, answer):
                    break
                writer.write(answer)

    async def end(self) -> None:
        """Wait until clients have closed their connections."""
        await asyncio.gather(*self._serving)

    def _loses(self, request: bytes, answer: bytes) -> bool:
        """Drop each script's first response, not its repeat's."""
        if b"EVALSHA" not in request or answer.startswith(b"-NOSCRIPT"):
            return False
        if self.is_deaf:
            return True
        self._retried = not self._retried
        if not self._retried:
            self.lost.append(request.split(b"\r\n")[4])
        return not self._retried


@asynccontextmanager
async def flaky(redis_url: str, folder: Path) -> AsyncIterator[tuple[str, Flaky]]:
    """Run a relay; yield its URL and the relay."""
    relay = Flaky(unquote(urlsplit(redis_url).path))
    socket = folder / "flaky.sock"
    async with await asyncio.start_unix_server(relay.serve, socket):
        yield f"unix://{socket}", relay
        await relay.end()
