"""Overlap of steps with encoding and decoding, and start times of the engine. Not a test: run it on
a quiet machine.

    python -m lab.bench.engine FOLDER [--width 96 --height 96 --steps 300]

Prints the step times of an image while other images are encoded and decoded, and while nothing else
runs; the time of a decode; then the seconds of a cold and a warm start. `atelier bench engine`
measures the speed of steps.
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

from models import registry
from models.interface.pipeline import Pipeline
from tests.workers.observing import Observing
from workers.engine.engine import Engine
from workers.engine.row import Row
from workers.programs.step_latency import MEMORY
from workers.programs.xla_cache import use_compile_cache
from workers.slice.mesh import one_device

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
        use_compile_cache(Path(cache))
        asyncio.run(measure(options))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", help="a checkpoint in diffusers' layout")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--width", type=int, help="left out: the model's own")
    parser.add_argument("--height", type=int)
    parser.add_argument("--steps", type=int, default=300, help="of the image that is watched")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--start-with", help=argparse.SUPPRESS)
    return parser.parse_args()


def in_new_process(cache: str) -> dict[str, float]:
    command = [sys.executable, "-m", "lab.bench.engine", *sys.argv[1:], "--start-with", cache]
    seconds: dict[str, float] = json.loads(
        subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout
    )
    return seconds


async def start(options: argparse.Namespace, cache: Path) -> dict[str, float]:
    """Seconds to load the checkpoint, and then to compile the engine."""
    use_compile_cache(cache)
    started = time.perf_counter()
    pipeline = load(options)
    loaded = time.perf_counter()
    with engine(pipeline) as engine_:
        await engine_.readiness.warm_up([request(pipeline, options)])
        await engine_.readiness.larger_ready([request(pipeline, options)])
    compiled = time.perf_counter()
    return {"load_s": round(loaded - started, 2), "compile_s": round(compiled - loaded, 2)}


async def measure(options: argparse.Namespace) -> None:
    with engine(load(options)) as engine_:
        await engine_.readiness.warm_up([request(engine_.pipeline, options)])
        await engine_.readiness.larger_ready([request(engine_.pipeline, options)])
        await watched(engine_, options, company=True)  # fills the table of step times
        for number in range(options.rounds):
            alone_s, _ = await watched(engine_, options, company=False)
            shared_s, others = await watched(engine_, options, company=True)
            for _ in range(MEMORY):
                shape = await engine_.readiness.try_out(request(engine_.pipeline, options), 1)
            decode_s = shape.decode_times.median or 0.0
            print(
                f"round {number}: a step, alone: {spread(alone_s)}; beside {others} images of one"
                f" step: {spread(shared_s)}; a decode: {decode_s * 1e3:.1f} ms;"
                f" each of them held the watched image up by"
                f" {(sum(shared_s) - sum(alone_s)) / max(1, others) * 1e3:.1f} ms",
                flush=True,
            )


async def watched(
    engine_: Engine, options: argparse.Namespace, company: bool
) -> tuple[list[float], int]:
    """Seconds between the steps of a long image, and the number of short images meanwhile."""
    times: list[float] = []
    ended, is_done = 0, asyncio.Event()

    async def generate_short() -> None:
        nonlocal ended
        short = request(engine_.pipeline, options) | {"num_inference_steps": 1}
        while not is_done.is_set():
            await engine_.generate(short, {})
            ended += 1

    def on_step(row: Row) -> None:
        times.append(time.perf_counter())

    short_images = asyncio.create_task(generate_short()) if company else None
    long = request(engine_.pipeline, options) | {"num_inference_steps": options.steps}
    await engine_.generate(long, {}, Observing(on_step))
    is_done.set()
    at_end = ended
    if short_images:
        await short_images
    return [after - before for before, after in pairwise(times)], at_end


def spread(seconds: list[float]) -> str:
    tenths = quantiles(seconds, n=10)
    return (
        f"median {median(seconds) * 1e3:.1f} ms, 90 % under {tenths[-1] * 1e3:.1f},"
        f" longest {max(seconds) * 1e3:.1f}"
    )


@contextmanager
def engine(pipeline: Pipeline) -> Iterator[Engine]:
    engine_ = Engine(pipeline, one_device(jax.devices()[0]), SLOTS)
    try:
        yield engine_
    finally:
        engine_.close()


def load(options: argparse.Namespace) -> Pipeline:
    return registry.load(MODEL, options.folder, options.dtype, {})


def request(pipeline: Pipeline, options: argparse.Namespace) -> dict[str, Any]:
    sizes = {"width": options.width, "height": options.height}
    chosen_sizes = {name: value for name, value in sizes.items() if value}
    defaults = pipeline.spec.defaults_for(pipeline.spec.tasks[0])
    return {**defaults, "prompt": "a red circle", "seed": 1, "num_images": 1, **chosen_sizes}


if __name__ == "__main__":
    main()
