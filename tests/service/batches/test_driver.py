"""Front ends that are killed during a batch: another one continues, and each line ends once."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from pathlib import Path

from service.jobs.queue import Claim, Queue
from service.jobs.redis.keys import PREFIX
from service.jobs.storage.object_store import Store
from tests.service.batches.test_batches import URL, jsonl, line, reached, results
from tests.service.eventually import eventually
from tests.service.openai_clients import openai_client
from tests.service.standin import StandIn
from tests.service.test_server import process

LINES, BEFORE = 40, 3
"""Number of lines in the batch, and of those that end before the front end is killed."""
SETTINGS = {
    "ATELIER_SERVER__KEYS": "false",
    "ATELIER_BATCHES": json.dumps({"poll_every_s": 0.05, "lease_s": 3600, "window": 3}),
}


class Stopping(StandIn):
    """Stand-in worker that finishes only the first jobs until `may_go_on` is set."""

    def __init__(self, queue: Queue, store: Store) -> None:
        super().__init__(queue, store)
        self.may_go_on = asyncio.Event()

    async def _run(self, claim: Claim) -> None:
        if len(self.received) > BEFORE:
            await self.may_go_on.wait()
        await super()._run(claim)


async def test_another_front_end_takes_over_a_batch(
    redis_url: str, queue: Queue, tmp_path: Path
) -> None:
    store = Store(str(tmp_path / "outputs"))
    async with Stopping(queue, store) as pool:
        async with process(redis_url, tmp_path, **SETTINGS) as (first, address):
            client = openai_client(address)
            content = jsonl(*(line(number) for number in range(LINES)))
            file = await client.files.create(file=content, purpose="batch")
            batch = await client.batches.create(
                input_file_id=file.id, endpoint=URL, completion_window="24h"
            )

            async def is_in_the_middle() -> bool:
                current = await queue.batch(batch.id)
                return current is not None and current.completed == BEFORE

            await eventually(is_in_the_middle)
            first.kill()
            await first.wait()
            await client.close()
        await queue.redis.zadd(f"{PREFIX}openbatches", {batch.id: 0})  # the lease's end
        pool.may_go_on.set()
        async with process(redis_url, tmp_path, **SETTINGS) as (_, address):
            client = openai_client(address)
            batch = await reached(client, batch, "completed")
            done = await results(client, batch.output_file_id)
            await client.close()
    assert batch.request_counts and batch.request_counts.completed == LINES
    assert list(done) == [f"cat-{number}" for number in range(LINES)]
    made = Counter(job.request["seed"] for job in pool.received)
    assert made == Counter(range(LINES)), "a line had no job, or several"
    ids = {record["response"]["request_id"] for record in done.values()}
    assert ids == {job.id for job in pool.received}
