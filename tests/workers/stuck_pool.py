"""Program that runs a worker of the toy pipeline whose steps, decoding and compiling may never end.

`python -m tests.workers.stuck_pool REDIS FOLDER DRAIN_S`. It prints the stage that blocks.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax

from models.interface.pipeline import PyTree
from models.interface.step_program import StepProgram
from service.settings.settings import Settings
from tests.workers.toy import SPEC, ToyPipeline
from workers.health.liveness import Liveness
from workers.loading.layout import ChosenLayout
from workers.loading.model import MeshSlice
from workers.loading.pool_models import LoadedModel
from workers.media.outputs import PLAIN_MARKING
from workers.plan.offload import Residency
from workers.pool.process import serve
from workers.programs.launcher import OneHost
from workers.slice.mesh import one_device
from workers.slice.mesh_shape import MeshShape

STAGES = ("decode", "step", "compile")


def for_ever(stage: str, value: Any) -> Any:
    print(f"stuck in {stage}", flush=True)
    threading.Event().wait()
    return value


class StuckPipeline(ToyPipeline):
    """Toy pipeline that blocks in the stage that a request names by its `phase` or `decode`."""

    def step(
        self,
        program: StepProgram,
        weights: PyTree,
        rows: PyTree,
        values: Mapping[str, jax.Array],
        modulations: PyTree = None,
    ) -> PyTree:
        if program.network == "compile":
            for_ever("compile", None)
        rows = super().step(StepProgram("plain"), weights, rows, values, modulations)
        if program.network == "step":
            return {**rows, "latents": stuck("step", rows["latents"])}
        return rows

    def decode(self, weights: PyTree, row: PyTree) -> jax.Array:
        row = dict(row)
        is_stuck = row.pop("hopeless_decode", None) is not None
        pixels = super().decode(weights, row)
        return stuck("decode", pixels) if is_stuck else pixels


def stuck(stage: str, value: jax.Array) -> jax.Array:
    return jax.pure_callback(lambda host: for_ever(stage, host), jax.typeof(value), value)


async def main(url: str, folder: Path, drain_s: float) -> int:
    pools = {"toy": {"model": SPEC.name, "slots": 4, "preview_every_s": 0, "drain_s": drain_s}}
    settings = Settings(
        redis={"url": url}, state_dir=folder, models={SPEC.name: {"source": "toy"}}, pools=pools
    )
    chosen = ChosenLayout(
        MeshShape().over(1), slots=4, residency=Residency(), why="it is the only one"
    )
    mesh_slice = MeshSlice(one_device(jax.devices()[0]), chosen)
    pool, model = settings.pools["toy"], settings.models[SPEC.name]
    loaded = LoadedModel(pool, model, StuckPipeline(), mesh_slice)
    return await serve(
        settings, "toy", [loaded], OneHost(), Liveness(), PLAIN_MARKING, loaded_at=time.time()
    )


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    sys.exit(asyncio.run(main(sys.argv[1], Path(sys.argv[2]), float(sys.argv[3]))))
