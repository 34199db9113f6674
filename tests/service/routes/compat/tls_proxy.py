"""TLS proxy in front of a server, for clients that support HTTPS only."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.service.jobs.tls import Certificates, copy


@asynccontextmanager
async def behind_tls(port: int, certificates: Certificates) -> AsyncIterator[int]:
    """Run a TLS proxy for a server's port; yield its port on 127.0.0.1."""

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        up_reader, up_writer = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.gather(copy(reader, up_writer), copy(up_reader, writer))

    server = await asyncio.start_server(relay, "127.0.0.1", 0, ssl=certificates.context())
    async with server:
        yield server.sockets[0].getsockname()[1]


def certificates(folder: Path) -> Certificates:
    """Create a new folder with certificates."""
    folder.mkdir()
    return Certificates(folder)
