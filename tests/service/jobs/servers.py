"""Real Redis servers for failover tests: a primary, replicas, Sentinels, and a TCP relay."""

from __future__ import annotations

import asyncio
import socket
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, contextmanager, suppress
from pathlib import Path

from redis.asyncio import Redis
from redis.exceptions import RedisError

from deploy.local.embedded_redis import server_program

READY_S = 30.0
LOOK_S = 0.05
CHUNK_BYTES = 2**16
PRIMARY = "atelier"
SENTINELS = 3
DOWN_AFTER_MS = 500


def free_port() -> int:
    with closing(socket.socket()) as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


class Server:
    """A Redis server process on its own port.

    Args:
        options: command-line options by name.
    """

    def __init__(self, folder: Path, *arguments: str, **options: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.port = free_port()
        all_options = {"port": str(self.port), "bind": "127.0.0.1", "dir": str(folder), **options}
        parts = [part for name, value in all_options.items() for part in (f"--{name}", value)]
        self._command = [server_program(), *arguments, *parts]
        self._log = folder / "log"
        self.start()

    def start(self) -> None:
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(self._command, stdout=log, stderr=log)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def client(self) -> Redis:
        return Redis(port=self.port, decode_responses=True, protocol=2)

    async def until(self, section: str, **facts: object) -> None:
        """Wait until a section of INFO has these values."""
        async with asyncio.timeout(READY_S), self.client() as redis:
            while True:
                with suppress(RedisError, OSError):
                    info = await redis.info(section)
                    if all(info.get(name) == value for name, value in facts.items()):
                        return
                await asyncio.sleep(LOOK_S)


KEPT = {"appendonly": "yes", "appendfsync": "always", "save": ""}


@asynccontextmanager
async def pair(folder: Path, through: int | None = None) -> AsyncIterator[tuple[Server, Server]]:
    """Run a primary and a synchronized replica.

    Args:
        through: port through which the replica reaches the primary; None: directly.
    """
    with running(Server(folder / "a", **KEPT)) as primary:
        await primary.until("replication", role="master")
        with running(Server(folder / "b", **KEPT)) as replica:
            await follow(replica, through or primary.port)
            yield primary, replica


async def follow(replica: Server, port: int) -> None:
    """Make a server the replica of the one at `port`, and wait until it is synchronized."""
    await replica.until("replication")
    async with replica.client() as redis:
        await redis.replicaof("127.0.0.1", port)
    await replica.until("replication", role="slave", master_link_status="up")


@contextmanager
def running(server: Server) -> Iterator[Server]:
    try:
        yield server
    finally:
        server.kill()


@asynccontextmanager
async def watched(folder: Path, primary: Server, *more: str) -> AsyncIterator[list[Server]]:
    """Run Sentinels that monitor a primary; wait until they have discovered each other and its
    replica.

    Args:
        more: further lines of their configuration files.
    """
    sentinels: list[Server] = []
    try:
        for number in range(SENTINELS):
            home = folder / f"sentinel{number}"
            home.mkdir()
            file = home / "sentinel.conf"
            lines = (
                f"sentinel monitor {PRIMARY} 127.0.0.1 {primary.port} 2",
                f"sentinel down-after-milliseconds {PRIMARY} {DOWN_AFTER_MS}",
                f"sentinel failover-timeout {PRIMARY} 5000",
                *more,
            )
            file.write_text("\n".join(lines) + "\n")
            sentinels.append(Server(home, str(file), "--sentinel"))
        for sentinel in sentinels:
            await _knows_all(sentinel)
        yield sentinels
    finally:
        for sentinel in sentinels:
            sentinel.kill()


async def _knows_all(sentinel: Server) -> None:
    async with asyncio.timeout(READY_S), sentinel.client() as redis:
        while True:
            with suppress(RedisError, OSError):
                facts = (await redis.sentinel_masters())[PRIMARY]
                others = facts["num-other-sentinels"]
                if (others, facts["num-slaves"]) == (SENTINELS - 1, 1):
                    return
            await asyncio.sleep(LOOK_S)


def url_of(sentinels: list[Server]) -> str:
    places = ",".join(f"127.0.0.1:{sentinel.port}" for sentinel in sentinels)
    return f"redis+sentinel://{places}/{PRIMARY}"


class Relay:
    """Relay from a fixed port to a server that can be replaced."""

    def __init__(self, target: int) -> None:
        self.target = target
        self._flows = asyncio.Event()
        self._flows.set()
        self._serving: set[asyncio.Task[None]] = set()
        self._open: set[asyncio.StreamWriter] = set()
        self.port = 0

    def hold(self) -> None:
        """Stop forwarding; connections stay open."""
        self._flows.clear()

    def release(self) -> None:
        """Continue forwarding, beginning with the data held back."""
        self._flows.set()

    def cut(self) -> None:
        """Close all connections, and discard the data held back."""
        for writer in self._open:
            writer.transport.abort()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task
        self._serving.add(task)
        try:
            up_reader, up_writer = await asyncio.open_connection("127.0.0.1", self.target)
        except OSError:
            return writer.close()
        ends = {writer, up_writer}
        self._open |= ends
        await asyncio.gather(self._pass(reader, up_writer), self._pass(up_reader, writer))
        self._open -= ends

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with closing(writer), suppress(OSError):
            while some := await reader.read(CHUNK_BYTES):
                await self._flows.wait()
                writer.write(some)

    async def end(self) -> None:
        self.release()
        self.cut()
        await asyncio.gather(*self._serving)


@asynccontextmanager
async def relay(target: int) -> AsyncIterator[Relay]:
    made = Relay(target)
    async with await asyncio.start_server(made.serve, "127.0.0.1", 0) as server:
        made.port = server.sockets[0].getsockname()[1]
        yield made
        await made.end()
