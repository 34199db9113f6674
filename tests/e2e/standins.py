"""Front end with stand-in pools as a process: `python -m tests.e2e.standins REDIS DIR`.

One stand-in makes images, another videos; each has more fields than the smallest real model. Two
require an image or videos. The first model by name belongs to a pool that no longer exists. The
process prints its address and runs until its standard input closes.
"""

from __future__ import annotations

import asyncio
import sys
from contextlib import AsyncExitStack
from pathlib import Path

from redis.asyncio import Redis

from models.spec.upscalers import Upscaler
from service.app import create_app
from service.jobs.queue import Queue
from service.jobs.storage.object_store import Store
from service.settings.queue import QueueSettings
from service.settings.settings import Settings
from tests.service.adapters import BROKEN, INK, OIL, TAKING
from tests.service.conftest import served
from tests.service.standin import SPEC, VIDEO, StandIn, picture

GATE = "tests:gate"
PAINTER = SPEC.model_copy(
    update={
        "tasks": ("text-to-image", "image-to-image", "inpainting"),
        "fields": SPEC.fields
        | {
            "mask_image",
            "control_image",
            "clip_skip",
            "eta",
            "guidance_rescale",
            "loras",
            "prompt_syntax",
            "upscale",
        },
        "upscalers": {
            "photo": Upscaler(scale=4, tile=64),
            "anime": Upscaler(scale=2, tile=64),
        },
        "lora_pages": TAKING.lora_pages,
        "lora_layers": TAKING.lora_layers,
        "loras": {
            "ink": INK.model_copy(update={"preview": "loras/previews/ink"}),
            "mood": INK.model_copy(update={"name": "mood", "trigger": "", "vectors": 2}),
            "oil": OIL,
            "broken": BROKEN,
        },
    }
)
MASKED = SPEC.model_copy(
    update={
        "name": "masked-edit",
        "tasks": ("image-to-image", "inpainting"),
        "fields": SPEC.fields - {"hires"} | {"mask_image"},
        "task_defaults": {"inpainting": {"strength": 0.6}},
        "strength_needs": "mask_image",
    }
)
"""Edits from pure noise; `strength` applies only with a mask."""
POSED = VIDEO.model_copy(
    update={
        "name": "posed-character",
        "tasks": ("image-to-video",),
        "fields": VIDEO.fields - {"control_video", "last_image"}
        | {"pose_video", "face_video", "background_video"},
        "needed": frozenset({"pose_video", "face_video"}),
    }
)
TWICE = SPEC.model_copy(
    update={
        "name": "twice-drawn",
        "tasks": ("text-to-image", "image-to-image", "inpainting"),
        "fields": SPEC.fields | {"mask_image"},
        "defaults": {**SPEC.defaults, "hires": {"scale": 1.5}},
    }
)
HELD = SPEC.model_copy(update={"name": "held"})
RETIRED = SPEC.model_copy(update={"name": "a-retired-model"})


class GatedStandIn(StandIn):
    """Holds its job at each step until a test pushes to the list `GATE`."""

    gate: Redis

    async def stepped(self) -> None:
        while not await self.gate.blpop([GATE], timeout=10):
            pass


async def main(redis_url: str, folder: Path) -> None:
    settings = Settings(state_dir=folder)
    store = Store(settings.store_url)
    queue = await Queue.connect(redis_url, QueueSettings())
    async with AsyncExitStack() as stack:
        stack.push_async_callback(queue.close)
        for spec in (PAINTER, VIDEO, MASKED, POSED, TWICE):
            await stack.enter_async_context(StandIn(queue, store, spec))
        gated = GatedStandIn(queue, store, HELD)
        gated.gate = await stack.enter_async_context(Redis.from_url(redis_url))
        await stack.enter_async_context(gated)
        await queue.register("retired", RETIRED, ready=True)
        await queue.unregister("retired", RETIRED.name)
        await store.put("loras/previews/ink", picture(), "image/png")
        app = create_app(settings, queue, store)
        print(await stack.enter_async_context(served(app, settings)), flush=True)
        await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Path(sys.argv[2])))
