"""One process of a slice that draws what a file lists: real hosts' messages, no queue around.

The processes find each other once; each case has a model, lines and an engine of its own, so that
many layouts share one start of JAX.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from models.pipeline import Fields, Pipeline
from models.sharding import Layout
from service.settings import HostsSettings, ModelSettings, PoolSettings
from workers import loading
from workers.batch_sizes import BatchSizes, of_settings
from workers.engine import Engine
from workers.hosts.follower import Follower
from workers.hosts.followers import Followers
from workers.hosts.leader import Leader
from workers.hosts.leaving import leave
from workers.hosts.link import Link
from workers.hosts.meeting import join, meet
from workers.hosts.terms import Terms
from workers.step_times import Way

SILENCE_S = 60.0
ROUNDS = 3
"""Of all requests at once: enough steps to try an elastic layout."""


def main(coordinator: str, hosts: int, index: int, cases: Path, folder: Path) -> None:
    """Args: folder: where the first process puts each case's pixels."""
    logging.basicConfig(level=logging.INFO)
    own = HostsSettings(count=hosts, coordinator=coordinator, index=index)
    join(own)
    for name, case in json.loads(cases.read_text()).items():
        lines = meet(own, SILENCE_S)
        pool, model = PoolSettings(**case["pool"]), ModelSettings(**case["model"])
        pipeline, opened = loading.load(name, pool, model, jax.devices())
        batching = of_settings(pool, model, opened.layout, pool.slots)
        terms = Terms.of(pipeline, opened.layout, batching.sizes, batching.elastic)
        if index:
            link = Link(lines[0], SILENCE_S)
            link.follow(Follower(pipeline, opened.layout, terms))
            link.close()
            continue
        followers = Followers(lines, SILENCE_S)
        leader = Leader(followers, terms)
        drawn = asyncio.run(draw(pipeline, opened.layout, batching, leader, case["requests"]))
        np.savez(folder / f"{name}.npz", *drawn)
        followers.close()
    jax.distributed.shutdown()


async def draw(
    pipeline: Pipeline,
    layout: Layout,
    batching: BatchSizes,
    leader: Leader,
    requests: Sequence[Fields],
) -> list[np.ndarray]:
    """Pixels of each request, with a preview beside; then, where several fit, of all at once, side
    by side on parts of the slice."""
    slots = max(batching.sizes)
    engine = Engine(pipeline, layout, slots, batching, leader)
    previews = []
    requests = [{**pipeline.spec.defaults, **request} for request in requests]

    async def one(request: Fields) -> np.ndarray:
        def on_step(row: Any) -> None:
            if row.done == 1:
                previews.append(asyncio.create_task(engine.preview(row)))

        made = await engine.generate(request, {}, on_step)
        return made.pixels

    try:
        made = [await one(request) for request in requests]
        if slots > 1:
            await engine.warm_up(requests[:1])
            (phase,) = engine.programs.shape(pipeline.prepare(requests[0], {})).phases.values()
            del phase.programs[Way(slots)]  # so that rows go side by side, if not one by one
            for _ in range(ROUNDS):
                made += await asyncio.gather(*(one(request) for request in requests))
            assert Way(slots, slots) in phase.times.known()
        for preview in previews:
            assert np.ptp(await preview) > 0
        return made
    finally:
        engine.close()


if __name__ == "__main__":
    address, count, number, listed, out = sys.argv[1:]
    try:
        main(address, int(count), int(number), Path(listed), Path(out))
    except Exception as error:  # JAX would wait for the others
        logging.exception("this process failed")
        leave(1, error)
