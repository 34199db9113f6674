"""Worker process that claims and finishes jobs until the queue is empty, after a line on stdin.
ARGS: URL NAME."""

from __future__ import annotations

import asyncio
import sys

from service.jobs.queue import Queue
from service.settings.queue import QueueSettings
from tests.service.jobs.examples import MODEL, USAGE


async def main(url: str, name: str) -> None:
    queue = await Queue.connect(url, QueueSettings())
    print("ready", flush=True)
    sys.stdin.readline()
    while claims := await queue.claim(name, MODEL, 4):
        for claim in claims:
            if await queue.finish(claim, [], USAGE):
                print(claim.job.id)
    await queue.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2]))
