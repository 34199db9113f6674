"""Cost of an accepted request to the front end: `python -m lab.load.accept`.

Starts an embedded Redis and a front end (`atelier serve`) as processes and posts small requests
over keep-alive connections. No pool serves them: only admission is measured, with a registered pool
of known costs, so that responses have a position and an estimate.

`--against FOLDER` also starts the front end of another checkout with its own Redis, and alternates
between both; on a shared machine, only ratios of processor time are meaningful. With `--rate`,
requests are sent at planned times regardless of earlier responses. `--prefer return=minimal
--against .` compares short responses with usual ones.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from redis.asyncio import Redis

from deploy.local.embedded_redis import embedded
from service.auth.api_keys import ApiKeys
from service.jobs.queue import Queue
from service.jobs.scheduling.cost_model import CostKey, CostRow, PoolFacts
from service.settings.queue import QueueSettings
from tests.service.round_trips import fewest_commands
from tests.service.standin import SPEC

ROOT = Path(__file__).parents[2]
BODY = json.dumps({"prompt": "a red circle on a blue background", "model": SPEC.name}).encode()
LAYOUT, POOL, SLOTS = "a", "pool", 4
FOR_AN_HOUR = QueueSettings(lease_s=3600)
WARM_UP_S = 1.0
COUNTED = 21
"""Number of sequential requests whose Redis commands are counted."""
TENANT = "studio"
QUOTAS = {
    "MAX_QUEUED": "1000000",
    "DEVICE_SECONDS_PER_HOUR": "1000000000",
    "STORED_BYTES": "1000000000000",
}


@dataclass
class Side:
    """A front end and its measurements."""

    name: str
    port: int
    process_id: int
    redis_url: str
    prefer: str = ""
    """Value of the requests' header `Prefer`; empty: none."""
    request: bytes = b""
    latencies_s: list[float] = field(default_factory=list)
    each_ms: list[float] = field(default_factory=list)
    """Front end's processor milliseconds per request, by turn."""
    redis_ms: list[float] = field(default_factory=list)
    """Redis's processor milliseconds per request, by turn."""
    per_s: list[float] = field(default_factory=list)
    """Responses per second, by turn."""


@contextlib.contextmanager
def front_end(name: str, checkout: Path, has_keys: bool, has_quotas: bool) -> Iterator[Side]:
    """Run `atelier serve` of a checkout with its own Redis."""
    with contextlib.ExitStack() as stack:
        state = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        redis_url = stack.enter_context(embedded(state))
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=1024))
        variables = {
            "ATELIER_REDIS__URL": redis_url,
            "ATELIER_STATE_DIR": str(state),
            "ATELIER_QUEUE__MAX_QUEUED": "1000000",
            "ATELIER_SERVER__KEYS": str(has_keys).lower(),
            "PYTHONPATH": str(checkout),
        }
        for quota, limit in QUOTAS.items() if has_quotas else ():
            variables[f"ATELIER_TENANTS__{TENANT.upper()}__{quota}"] = limit
        process = subprocess.Popen(
            [sys.executable, "-m", "atelier", "serve", "--fd", str(listener.fileno())],
            cwd=checkout,
            env=os.environ | variables,
            stderr=stack.enter_context((state / "log").open("wb")),
            pass_fds=[listener.fileno()],
        )
        try:
            yield Side(name, listener.getsockname()[1], process.pid, redis_url)
        finally:
            process.terminate()
            process.wait()


async def prepare(side: Side, has_keys: bool, queued: int) -> None:
    """Register a pool with known costs, make a key, and queue the initial jobs."""
    queue = await Queue.connect(side.redis_url, FOR_AN_HOUR)
    await queue.register(POOL, SPEC, ready=True, facts=PoolFacts(LAYOUT, SLOTS))
    bucket = SPEC.bucket(SPEC.defaults, ())
    row = CostRow(step_s=0.01, encode_s=0.01, decode_s=0.01)
    await queue.measured(SPEC.name, {CostKey(bucket, LAYOUT, 1): row})
    key = ""
    if has_keys:
        async with contextlib.aclosing(ApiKeys(queue.redis)) as keys:
            key = f"Authorization: Bearer {(await keys.create(TENANT))[1]}\r\n"
    await queue.close()
    head = f"POST /v1/generate HTTP/1.1\r\nHost: localhost\r\n{key}"
    head += f"Prefer: {side.prefer}\r\n" if side.prefer else ""
    head += f"Content-Type: application/json\r\nContent-Length: {len(BODY)}\r\n\r\n"
    side.request = head.encode() + BODY
    await post_requests(side, queued)


@contextlib.asynccontextmanager
async def connected(side: Side) -> AsyncIterator[Connection]:
    reader, writer = await asyncio.open_connection("127.0.0.1", side.port)
    with contextlib.closing(writer):
        yield Connection(side, reader, writer)


@dataclass
class Connection:
    """A client's keep-alive connection."""

    side: Side
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def exchange(self, status: bytes = b" 202 ") -> bytes:
        """Post a request; return the response's body after checking its status."""
        self.writer.write(self.side.request)
        head = await self.reader.readuntil(b"\r\n\r\n")
        assert status in head.split(b"\r\n", 1)[0], head
        return await self.reader.readexactly(_length(head))


def _length(head: bytes) -> int:
    name = b"content-length: "
    start = head.lower().index(name) + len(name)
    return int(head[start : head.index(b"\r\n", start)])


async def post_requests(side: Side, requests: int) -> None:
    """Post that many requests in sequence."""
    async with connected(side) as connection:
        for _ in range(requests):
            await connection.exchange()


async def closed_loop(side: Side, connections: int, seconds: float) -> list[float]:
    """Latencies over connections that each send the next request after a response."""
    deadline, latencies_s = time.perf_counter() + seconds, list[float]()

    async def client() -> None:
        async with connected(side) as connection:
            while (started := time.perf_counter()) < deadline:
                await connection.exchange()
                latencies_s.append(time.perf_counter() - started)

    await asyncio.gather(*(client() for _ in range(connections)))
    return latencies_s


async def open_loop(side: Side, connections: int, seconds: float, rate: float) -> list[float]:
    """Latencies from the planned times, `rate` per second, regardless of other responses."""
    latencies_s, started = list[float](), time.perf_counter()
    planned = iter([started + number / rate for number in range(round(seconds * rate))])

    async def client() -> None:
        async with connected(side) as connection:
            for planned_at in planned:
                await asyncio.sleep(max(0.0, planned_at - time.perf_counter()))
                await connection.exchange()
                latencies_s.append(time.perf_counter() - planned_at)

    await asyncio.gather(*(client() for _ in range(connections)))
    return latencies_s


def cpu_s(process_id: int) -> float:
    """Processor seconds of a process."""
    user, system = Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


async def redis_cpu_s(side: Side) -> float:
    """Processor seconds of a side's Redis."""
    async with Redis.from_url(side.redis_url) as redis:
        statistics_ = await redis.info("cpu")
    return float(statistics_["used_cpu_user"] + statistics_["used_cpu_sys"])


async def turn(side: Side, args: argparse.Namespace) -> None:
    """Load one side for a while and record its costs."""
    before_s, redis_s = cpu_s(side.process_id), await redis_cpu_s(side)
    started = time.perf_counter()
    if args.rate:
        latencies_s = await open_loop(side, args.connections, args.seconds, args.rate)
    else:
        latencies_s = await closed_loop(side, args.connections, args.seconds)
    side.per_s.append(len(latencies_s) / (time.perf_counter() - started))
    side.each_ms.append(1000 * (cpu_s(side.process_id) - before_s) / len(latencies_s))
    side.redis_ms.append(1000 * (await redis_cpu_s(side) - redis_s) / len(latencies_s))
    side.latencies_s += latencies_s


async def measure(sides: Sequence[Side], args: argparse.Namespace) -> None:
    for side in sides:
        await prepare(side, args.keys, args.queued)
        await closed_loop(side, args.connections, WARM_UP_S)
    for number in range(args.turns):
        for side in sides if number % 2 else reversed(sides):
            await turn(side, args)
    for side in sides:
        commands = await fewest_commands(side.redis_url, COUNTED, lambda: post_requests(side, 1))  # noqa: B023
        print(line(side), f"a request alone sends Redis {', '.join(commands)}", sep="; ")
    if len(sides) == 2:
        ratios = [
            our_ms / their_ms
            for our_ms, their_ms in zip(*(side_.each_ms for side_ in sides), strict=True)
        ]
        low, middle, high = quartiles(ratios)
        print(f"processor time, ours to theirs: {middle:.3f} ({low:.3f} to {high:.3f})")


def line(side: Side) -> str:
    """Text with the figures of a side."""
    low, each, high = quartiles(side.each_ms)
    cuts = statistics.quantiles(side.latencies_s, n=100)
    return (
        f"{side.name}: {len(side.latencies_s)} accepted, {statistics.median(side.per_s):.0f}/s;"
        f" {each:.3f} ms of the front end's processor each ({low:.3f} to {high:.3f}),"
        f" {statistics.median(side.redis_ms):.3f} ms of Redis's;"
        f" median {1000 * cuts[49]:.1f} ms, 99 % within {1000 * cuts[98]:.1f} ms"
    )


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    if len(values) < 2:
        return values[0], values[0], values[0]
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, middle, high


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--connections", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=5, help="of a turn")
    parser.add_argument("--turns", type=int, default=1)
    parser.add_argument("--rate", type=float, help="requests a second; left out: as many as go")
    parser.add_argument("--queued", type=int, default=0, help="jobs that wait from the beginning")
    parser.add_argument("--keys", action="store_true", help="with API keys")
    parser.add_argument("--quotas", action="store_true", help="of a tenant, by its key")
    parser.add_argument("--against", type=Path, metavar="FOLDER", help="another checkout")
    parser.add_argument("--prefer", default="", help="header Prefer of our requests")
    args = parser.parse_args(words)
    args.keys = args.keys or args.quotas
    checkouts = {"ours": ROOT} | ({"theirs": args.against.resolve()} if args.against else {})
    with contextlib.ExitStack() as stack:
        sides = [
            stack.enter_context(front_end(name, checkout, args.keys, args.quotas))
            for name, checkout in checkouts.items()
        ]
        sides[0].prefer = args.prefer
        asyncio.run(measure(sides, args))


if __name__ == "__main__":
    main()
