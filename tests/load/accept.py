"""How many requests a second one front end accepts: `python -m tests.load.accept`.

Starts an embedded Redis and one front end as processes of their own, and posts small requests over
kept connections for a few seconds. Nothing serves them: this is the front door alone.
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
from collections.abc import Iterator
from pathlib import Path

from deploy.local.embedded_redis import embedded
from service.jobs.queue import Queue
from service.settings.queue import QueueSettings
from tests.service.standin import SPEC

BODY = json.dumps({"prompt": "a red circle on a blue background", "model": SPEC.name}).encode()
REQUEST = (
    b"POST /v1/generate HTTP/1.1\r\nHost: atelier\r\nContent-Type: application/json\r\n"
    b"Content-Length: %d\r\n\r\n" % len(BODY)
) + BODY


@contextlib.contextmanager
def front_end(redis_url: str, state: Path) -> Iterator[tuple[int, int]]:
    """One `atelier serve`; its port and its process id."""
    with socket.create_server(("127.0.0.1", 0), backlog=1024) as listener:
        fd = listener.fileno()
        process = subprocess.Popen(
            [sys.executable, "-m", "atelier", "serve", "--fd", str(fd)],
            env=os.environ
            | {
                "ATELIER_REDIS__URL": redis_url,
                "ATELIER_STATE_DIR": str(state),
                "ATELIER_QUEUE__MAX_QUEUED": "1000000",
            },
            pass_fds=[fd],
        )
        port = listener.getsockname()[1]
    try:
        yield port, process.pid
    finally:
        process.terminate()
        process.wait()


async def client(port: int, until: float, latencies_s: list[float]) -> None:
    """One connection: the next request as soon as the last one is answered."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    with contextlib.closing(writer):
        while time.perf_counter() < until:
            started = time.perf_counter()
            writer.write(REQUEST)
            head = await reader.readuntil(b"\r\n\r\n")
            assert b" 202 " in head.split(b"\r\n", 1)[0], head
            await reader.readexactly(_length(head))
            latencies_s.append(time.perf_counter() - started)


def _length(head: bytes) -> int:
    name = b"content-length: "
    start = head.lower().index(name) + len(name)
    return int(head[start : head.index(b"\r\n", start)])


def cpu_s(process_id: int) -> float:
    """Seconds of processor time that a process has taken."""
    user, system = Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


async def load(
    redis_url: str, port: int, process_id: int, connections: int, seconds: float
) -> None:
    queue = await Queue.connect(redis_url, QueueSettings())
    await queue.register("cold", SPEC, ready=False)
    await queue.close()
    await client(port, time.perf_counter() + 1, [])  # warms up
    latencies_s: list[float] = []
    before_s = cpu_s(process_id)
    until = time.perf_counter() + seconds
    await asyncio.gather(*(client(port, until, latencies_s) for _ in range(connections)))
    each_s = (cpu_s(process_id) - before_s) / len(latencies_s)
    cuts = statistics.quantiles(latencies_s, n=100)
    print(
        f"{len(latencies_s) / seconds:.0f} accepted requests/s over {connections} connections;"
        f" median {1000 * cuts[49]:.1f} ms, 99 % within {1000 * cuts[98]:.1f} ms;"
        f" {1000 * each_s:.2f} ms of processor time each, so {1 / each_s:.0f}/s on a free core"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--connections", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=5)
    args = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as folder,
        embedded(Path(folder)) as redis_url,
        front_end(redis_url, Path(folder)) as (port, process_id),
    ):
        asyncio.run(load(redis_url, port, process_id, args.connections, args.seconds))


if __name__ == "__main__":
    main()
