"""One process of a slice that draws what a file lists: real hosts' messages, no queue around.

The processes find each other once; each case has a model, lines and an engine of its own, so that
many layouts share one start of JAX.
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
from service.settings.mesh import HostsSettings
from service.settings.models import ModelSettings
from service.settings.pools import PoolSettings
from service.settings.settings import Settings
from workers.engine.adapters import LoraFiles
from workers.engine.engine import Engine
from workers.engine.passes import Told
from workers.loading import model as loading
from workers.loading.upscalers import load_upscalers
from workers.multihost.exits import leave
from workers.multihost.follower import Follower
from workers.multihost.followers import Followers
from workers.multihost.handshake import Handshake
from workers.multihost.leader import Leader
from workers.multihost.leader_link import LeaderLink
from workers.multihost.rendezvous import join, meet
from workers.pool.process import first_device
from workers.programs.batch_sizes import BatchSizes, of_settings
from workers.programs.program_folder import ProgramFolder
from workers.programs.step_latency import BatchLayout

SILENCE_S = 60.0
Asked = tuple[Fields, dict[str, bytes]]
"""A request and its images."""
FILES = "files"
"""Field of what is asked for that has the files of its images, by path."""
ROUNDS = 3
"""Of all requests at once: enough steps to try an elastic layout."""


def main(coordinator: str, hosts: int, index: int, cases: Path, folder: Path) -> None:
    """Args: folder: for each case's pixels, by the first process, and for what is traced once."""
    logging.basicConfig(level=logging.INFO)
    own = HostsSettings(count=hosts, coordinator=coordinator, index=index)
    join(own)
    for name, case in json.loads(cases.read_text()).items():
        lines = meet(own, SILENCE_S)
        pool, model = PoolSettings(**case["pool"]), ModelSettings(**case["model"])
        kept = ProgramFolder(folder / "kept", jax.devices())
        pipeline, opened = loading.load(name, pool, model, jax.devices(), kept)
        batching = of_settings(pool, model, opened.layout, pool.slots)
        terms = Handshake.of(pipeline, opened.layout, batching.sizes, batching.elastic)
        if index:
            link = LeaderLink(lines[0], SILENCE_S)
            link.follow(Follower(pipeline, opened.layout, terms))
            link.close()
            continue
        followers = Followers(lines, SILENCE_S)
        leader = Leader(followers, terms)
        asked = [read(request, cases.parent) for request in case["requests"]]
        files = files_of(case.get("loras", {}))
        settings = Settings(models={name: model}, upscalers=case.get("upscalers", {}))
        upscalers = load_upscalers(settings, pipeline, first_device(opened.layout))
        drawn = asyncio.run(
            draw(pipeline, opened.layout, batching, leader, asked, files, upscalers)
        )
        np.savez(folder / f"{name}.npz", *drawn)
        followers.close()
    jax.distributed.shutdown()


def files_of(paths: Mapping[str, str]) -> LoraFiles:
    """Adapters' files by their digests."""

    async def find(lora: RequestedLora, tenant: str) -> Path:
        return Path(paths[lora.digest])

    return find


def read(request: Fields, folder: Path) -> Asked:
    """A request whose images are named by their files in that folder."""
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
    """Pixels of each request, with a preview beside; then, where several fit, of all at once, side
    by side on parts of the slice."""
    slots = max(batching.sizes)
    beside: dict[str, Any] = {"lora_files": files, "upscalers": upscalers}
    engine = Engine(pipeline, layout, slots, batching, leader, **beside)
    previews = []
    requests = [({**pipeline.spec.defaults, **fields}, images) for fields, images in requests]

    async def one(request: Asked) -> np.ndarray:
        def on_step(row: Any) -> None:
            if row.done == 1:
                previews.append(asyncio.create_task(engine.preview(row)))

        fields, images = request
        asked = {name: value for name, value in fields.items() if name != STOP_AT_STEP}
        begin = None
        if stop_at := fields.get(STOP_AT_STEP):
            draft = await engine.draft(asked, images, stop_at, Told())
            begin = await engine.take_snapshot(draft.row)
            assert begin.done == stop_at and engine.snapshot_bytes(draft.row)
        made = await engine.generate(asked, images, on_step, begin)
        return made.pixels

    try:
        made = [await one(request) for request in requests]
        if slots > 1:
            first, images = requests[0]
            await engine.warm_up([first])
            await engine.larger_ready([first])
            (phase,) = engine.programs.of(pipeline.prepare(first, images)).phases.values()
            del phase.programs[
                BatchLayout(slots)
            ]  # so that rows go side by side, if not one by one
            for _ in range(ROUNDS):
                made += await asyncio.gather(*(one(request) for request in requests))
            assert BatchLayout(slots, slots) in phase.times.known()
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
