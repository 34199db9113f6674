"""How the engine hides encoding, and how it starts. No test: run it on a quiet machine.

    python -m tests.bench.engine FOLDER [--width 96 --height 96]

Prints how long a step's turn takes while other pictures are being encoded and decoded, against
while nothing else happens, and the seconds of a first (cold) and a second (warm) start. How fast a
step is, `atelier bench engine` tells.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import jax

from models import catalog
from models.pipeline import Pipeline
from workers.compile_cache import keep_compiled
from workers.engine import Engine
from workers.mesh import one_device
from workers.row import Row

MODEL = "bench"
SLOTS = 4


def main() -> None:
    options = arguments()
    if options.start_with:
        print(json.dumps(asyncio.run(start(options, Path(options.start_with)))))
        return
    with tempfile.TemporaryDirectory() as cache:
        for name in ("cold", "warm"):
            print(f"{name} start: {in_new_process(cache)}", flush=True)
        keep_compiled(Path(cache))
        asyncio.run(measure(options))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", help="a checkpoint in diffusers' layout")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--width", type=int, default=96)
    parser.add_argument("--height", type=int, default=96)
    parser.add_argument("--text-tokens", type=int, default=32)
    parser.add_argument("--start-with", help=argparse.SUPPRESS)
    return parser.parse_args()


def in_new_process(cache: str) -> dict[str, float]:
    command = [sys.executable, "-m", "tests.bench.engine", *sys.argv[1:], "--start-with", cache]
    found: dict[str, float] = json.loads(
        subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout
    )
    return found


async def start(options: argparse.Namespace, cache: Path) -> dict[str, float]:
    """Seconds to load the checkpoint, and from there to a compiled engine."""
    keep_compiled(cache)
    started = time.perf_counter()
    pipeline = load(options)
    loaded = time.perf_counter()
    with engine(pipeline) as made:
        await made.warm_up([request(options, 0)])
    compiled = time.perf_counter()
    return {"load_s": round(loaded - started, 2), "compile_s": round(compiled - loaded, 2)}


async def measure(options: argparse.Namespace) -> None:
    with engine(load(options)) as made:
        await made.warm_up([request(options, 0)])
        await turns(made, options, company=True)  # the table of step times fills
        quiet = await turns(made, options, company=False)
        busy = await turns(made, options, company=True)
        print(f"a step's turn, alone: {spread(quiet)}; beside encodes and decodes: {spread(busy)}")


async def turns(made: Engine, options: argparse.Namespace, company: bool) -> list[float]:
    """Seconds between the steps of one long picture, short ones coming and going or not."""
    times: list[float] = []
    is_done = asyncio.Event()

    async def keep_company() -> None:
        while not is_done.is_set():
            await made.generate({**request(options, 1), "num_inference_steps": 1}, {})

    def on_step(row: Row) -> None:
        times.append(time.perf_counter())

    others = asyncio.create_task(keep_company()) if company else None
    await made.generate({**request(options, 0), "num_inference_steps": 300}, {}, on_step)
    is_done.set()
    if others:
        await others
    return [after - before for before, after in pairwise(times)]


def spread(seconds: list[float]) -> str:
    tenths = quantiles(seconds, n=10)
    return f"median {median(seconds) * 1e3:.2f} ms, 90 % under {tenths[-1] * 1e3:.2f} ms"


@contextmanager
def engine(pipeline: Pipeline) -> Iterator[Engine]:
    made = Engine(pipeline, one_device(jax.devices()[0]), SLOTS)
    try:
        yield made
    finally:
        made.close()


def load(options: argparse.Namespace) -> Pipeline:
    return catalog.load(MODEL, options.folder, options.dtype, {})


def request(options: argparse.Namespace, seed: int) -> dict[str, Any]:
    return {
        "prompt": "a red circle on a blue background",
        "seed": seed,
        "width": options.width,
        "height": options.height,
        "num_inference_steps": 20,
        "guidance_scale": 3.5,
        "max_sequence_length": options.text_tokens,
    }


if __name__ == "__main__":
    main()
