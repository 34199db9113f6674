"""Program of one process of a slice: generates the images that a file lists.

It exchanges the messages of real hosts, without a queue. The processes connect once. Each case has
its own model, connections and engine, so that many layouts share one start of JAX.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from models.interface.pipeline import Fields, Pipeline
from models.parallel.axis_rules import Layout
from models.spec.lora import RequestedLora
from models.upscale.load import LoadedUpscaler
from service.jobs.model.job import STOP_AT_STEP
from service.settings.models import ModelSettings
from service.settings.pools import HostsSettings, PoolSettings
from service.settings.settings import Settings
from tests.workers.observing import Observing
from workers.engine.adapters import LoraFiles
from workers.engine.engine import Engine
from workers.engine.generation import ImageRequest
from workers.loading import model as loading
from workers.loading.upscalers import load_upscalers
from workers.multihost.exits import exit_now
from workers.multihost.follower import Follower
from workers.multihost.followers import Followers
from workers.multihost.handshake import Handshake
from workers.multihost.leader import Leader
from workers.multihost.leader_link import LeaderLink
from workers.multihost.rendezvous import connect_all, join
from workers.pool.process import first_device
from workers.programs.batch_sizes import BatchSizes, of_settings
from workers.programs.program_folder import ProgramFolder
from workers.programs.step_latency import BatchLayout

SILENCE_S = 60.0
Asked = tuple[Fields, dict[str, bytes]]
"""A request and its images."""
FILES = "files"
"""Field of a listed request with the files of its images, by path."""
ROUNDS = 3
"""Number of times that all requests run together, to try an elastic layout."""


def main(coordinator: str, hosts: int, index: int, cases: Path, folder: Path) -> None:
    """Run all cases as one process of the slice.

    Args:
        folder: Receives the first process's pixels of each case, and traced programs.
    """
    logging.basicConfig(level=logging.INFO)
    hosts_settings = HostsSettings(count=hosts, coordinator=coordinator, index=index)
    join(hosts_settings)
    for name, case in json.loads(cases.read_text()).items():
        lines = connect_all(hosts_settings, SILENCE_S)
        pool, model = PoolSettings(**case["pool"]), ModelSettings(**case["model"])
        programs = ProgramFolder(folder / "kept", jax.devices())
        pipeline, opened = loading.load(name, pool, model, jax.devices(), programs)
        batching = of_settings(pool, model, opened.layout, pool.slots)
        terms = Handshake.of(pipeline, opened.layout, batching.sizes, batching.elastic)
        if index:
            link = LeaderLink(lines[0], SILENCE_S)
            link.follow(Follower(pipeline, opened.layout, terms))
            link.close()
            continue
        followers = Followers(lines, SILENCE_S)
        leader = Leader(followers, terms)
        requests = [read(request, cases.parent) for request in case["requests"]]
        files = files_of(case.get("loras", {}))
        settings = Settings(models={name: model}, upscalers=case.get("upscalers", {}))
        upscalers = load_upscalers(settings, pipeline, first_device(opened.layout))
        images = asyncio.run(
            draw(pipeline, opened.layout, batching, leader, requests, files, upscalers)
        )
        np.savez(folder / f"{name}.npz", *images)
        followers.close()
    jax.distributed.shutdown()


def files_of(paths: Mapping[str, str]) -> LoraFiles:
    """Return a function that finds adapters' files by their digests."""

    async def find(lora: RequestedLora, tenant: str) -> Path:
        return Path(paths[lora.digest])

    return find


def read(request: Fields, folder: Path) -> Asked:
    """Return a request's fields, and its images read from their files in `folder`."""
    fields = {name: value for name, value in request.items() if name != FILES}
    named = request.get(FILES, {})
    return fields, {path: (folder / name).read_bytes() for path, name in named.items()}


async def draw(
    pipeline: Pipeline,
    layout: Layout,
    batching: BatchSizes,
    leader: Leader,
    requests: Sequence[Asked],
    files: LoraFiles,
    upscalers: Mapping[str, LoadedUpscaler],
) -> list[np.ndarray]:
    """Return the pixels of each request.

    If several slots fit, then also run all requests at once, side by side on parts of the slice.
    """
    slots = max(batching.sizes)
    options: dict[str, Any] = {"lora_files": files, "upscalers": upscalers}
    engine = Engine(pipeline, layout, slots, batching, leader, **options)
    previews = []
    requests = [({**pipeline.spec.defaults, **fields}, images) for fields, images in requests]

    async def generate_pixels(request: Asked) -> np.ndarray:
        def on_step(row: Any) -> None:
            if row.done == 1:
                previews.append(asyncio.create_task(engine.preview(row)))

        fields, images = request
        plain = {name: value for name, value in fields.items() if name != STOP_AT_STEP}
        begin = None
        if stop_at := fields.get(STOP_AT_STEP):
            draft = await engine.draft(ImageRequest(plain, images), stop_at)
            begin = await engine.take_snapshot(draft.row)
            assert begin.done == stop_at and engine.snapshots.bytes(draft.row)
        results = await engine.generate(plain, images, Observing(on_step), begin)
        return results.pixels

    try:
        results = [await generate_pixels(request) for request in requests]
        if slots > 1:
            first, images = requests[0]
            await engine.readiness.warm_up([first])
            await engine.readiness.larger_ready([first])
            (step_kind,) = engine.programs.of(pipeline.prepare(first, images)).step_kinds.values()
            del step_kind.programs[BatchLayout(slots)]  # leaves rows side by side, or one by one
            for _ in range(ROUNDS):
                results += await asyncio.gather(*(generate_pixels(request) for request in requests))
            assert BatchLayout(slots, slots) in step_kind.times.measured()
        for preview in previews:
            assert np.ptp(await preview) > 0
        return results
    finally:
        engine.close()


if __name__ == "__main__":
    address, count, number, listed, out = sys.argv[1:]
    try:
        main(address, int(count), int(number), Path(listed), Path(out))
    except Exception as error:  # JAX would wait for the others
        logging.exception("this process failed")
        exit_now(1, error)
