"""What the service adds to a job's time over the engine alone. No test: run it on a quiet machine.

    python -m tests.bench.service [FOLDER] [--requests 40]

Starts `atelier up` and an engine in this process on the same checkpoint, and asks the two in turn
for the same picture: over HTTP with `Accept: image/png`, and by `Engine.generate` and the same PNG
encoder. Prints the median of each, the median difference pair by pair, and its quartiles.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from statistics import median, quantiles

import httpx
import jax

import models.demo
from models import catalog
from tests.e2e.system import System
from workers.compile_cache import keep_compiled
from workers.engine import Engine
from workers.media import encode
from workers.mesh import one_device

DEMO = Path(models.demo.__file__).parent / "flux"
PROMPT = "a red circle on a blue background"
WARM_UP = 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", nargs="?", default=str(DEMO))
    parser.add_argument("--requests", type=int, default=40)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as state:
        system = System(Path(state), "--model", f"bench={options.folder}", "--dtype", "float32")
        try:
            url = system.url
            asyncio.run(measure(url, options.folder, options.requests, Path(state)))
        finally:
            system.close()


async def measure(url: str, folder: str, requests: int, state: Path) -> None:
    keep_compiled(state / "engine-cache")
    pipeline = catalog.load("bench", folder, "float32", {})
    engine = Engine(pipeline, one_device(jax.devices()[0]), 1)
    fields = {**pipeline.spec.defaults, "prompt": PROMPT, "seed": 0, "num_images": 1}

    async def alone() -> None:
        picture = await engine.generate(fields, {})
        await asyncio.to_thread(encode, picture.pixels, "png", None)

    async with httpx.AsyncClient(base_url=url, timeout=60) as client:

        async def served() -> None:
            body = {"prompt": PROMPT, "seed": 0}
            answer = await client.post("/v1/generate", json=body, headers={"Accept": "image/png"})
            answer.raise_for_status()

        for _ in range(WARM_UP):
            await alone()
            await served()
        pairs = [(await timed_ms(alone), await timed_ms(served)) for _ in range(requests)]
    engine.close()
    added = [theirs - ours for ours, theirs in pairs]
    low, _, high = quantiles(added, n=4)
    print(f"engine alone  {median(ours for ours, _ in pairs):7.1f} ms")
    print(f"over HTTP     {median(theirs for _, theirs in pairs):7.1f} ms")
    print(f"added         {median(added):7.1f} ms (quartiles {low:.1f} to {high:.1f})")


async def timed_ms(call: Callable[[], Awaitable[None]]) -> float:
    started = time.perf_counter()
    await call()
    return 1000 * (time.perf_counter() - started)


if __name__ == "__main__":
    main()
