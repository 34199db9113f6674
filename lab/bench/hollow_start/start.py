"""A pool's start, like `workers.pool.process.run_pool`, with a model without weights."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec
from jaxtyping import Array

from lab.bench.hollow_start.parts import Parts
from models.checkpoint.direct_io import BLOCK
from models.interface.pipeline import Fields, Pipeline
from models.loading.preview import MeanLatents
from models.loading.random_weights import RandomWeights
from models.loading.sources import Reader
from models.nn.kernels.int8_matmul import eight_bit_for
from models.nn.kernels.select import kernel_for
from models.parallel.axis_rules import Layout
from models.text.tokenizer import Tokenizer
from models.weights.sharing import PlacedArrays
from service.settings.models import ModelSettings
from service.settings.pools import PoolSettings
from workers.engine.engine import Engine
from workers.loading import model as loading
from workers.loading.layout import ChosenLayout, slice_devices
from workers.loading.model import MeshSlice
from workers.plan.offload import Residency
from workers.pool.process import run_pool as _pool  # noqa: F401  (a pool imports it)
from workers.pool.trials import Trials
from workers.programs import warmup
from workers.programs.batch_sizes import fast
from workers.programs.program_folder import ProgramFolder
from workers.programs.xla_cache import use_compile_cache
from workers.slice.mesh import make_mesh
from workers.slice.mesh_shape import MeshShape


def started(name: str, dtype: str, slots: int, folder: Path, parts: Parts) -> None:
    """Run a start from the settings until the pool would be ready.

    Args:
        folder: of the model and of the caches shared by starts.
    """
    kept_in = folder / "kept"
    model = ModelSettings.model_validate({"source": str(folder / "model"), "dtype": dtype})
    pool = PoolSettings.model_validate({"model": name, "slots": slots})
    with parts.part("the runtime starts"):
        loading.set_up(pool, model, None)
        use_compile_cache(kept_in)
        devices = slice_devices(None)
        programs = ProgramFolder(kept_in, devices)
    with parts.part("plan"):
        opened = plan_slice(name, pool, model, devices, programs)
    with parts.part("networks, tokenizers"):
        pipeline = loading.load_placed(pool, opened.model or model, opened, Hollow(opened, parts))
        jax.block_until_ready(
            [leaf for leaf in jax.tree.leaves(pipeline.weights) if isinstance(leaf, jax.Array)]
        )
    requests = warmup.requests(pipeline.spec, model.warmup or [{}])
    asyncio.run(warm_up(pipeline, opened, requests, parts))


def plan_slice(
    name: str,
    pool: PoolSettings,
    model: ModelSettings,
    devices: Sequence[jax.Device],
    folder: ProgramFolder,
) -> MeshSlice:
    """Plan like a pool; on a CPU without checking memory, which untouched weights do not need."""
    if devices[0].platform != "cpu":
        return loading.plan_slice(name, pool, model, devices, folder)
    _, executables_, _ = loading.sketches_of(pool, model, folder)
    shape = MeshShape().over(len(devices), 1, frozenset())
    eight_bit_ = eight_bit_for(devices[0].device_kind)
    layout = Layout(
        make_mesh(shape, devices), kernel_for(devices[0], model.dtype), eight_bit=eight_bit_
    )
    return MeshSlice(
        layout,
        ChosenLayout(shape, pool.slots or 1, Residency(), "hollow"),
        executables=executables_,
    )


async def warm_up(
    pipeline: Pipeline, opened: MeshSlice, requests: Sequence[Fields], parts: Parts
) -> None:
    slots = opened.chosen.slots
    with parts.part("programs"):
        engine = Engine(pipeline, opened.layout, slots, fast(slots), executables=opened.executables)
        await engine.readiness.warm_up(requests)
    if not is_cpu(opened):
        trials = Trials(engine, requests, [0.0] * len(requests))
        with parts.part("trial steps, alone"):
            await trials.run_alone()
        with parts.part("trial steps, batches, which readiness does not wait for"):
            await trials.run_batches()
    engine.close()


def is_cpu(opened: MeshSlice) -> bool:
    return bool(opened.layout.mesh.devices.flat[0].platform == "cpu")


class Hollow(RandomWeights):
    """Weights that are not read; everything else of the checkpoint is."""

    def __init__(self, opened: MeshSlice, parts: Parts) -> None:
        super().__init__(NamedSharding(opened.layout.mesh, PartitionSpec()))
        self._files: Reader = loading.files_of(opened, PlacedArrays())
        self._is_cpu = is_cpu(opened)
        self._parts = parts

    def _draw(self, path: str, number: int, leaf: nnx.Variable) -> Array:
        if not self._is_cpu:
            with self._parts.part("  drawing weights"):
                return jax.block_until_ready(super()._draw(path, number, leaf))
        with self._parts.part("  untouched memory"):
            abstract: Any = leaf.get_value()
            zeros = untouched(tuple(leaf.shape), np.dtype(leaf.dtype))
            return jax.device_put(zeros, abstract.sharding or self._everywhere)

    def preview(self, mean_latents: MeanLatents, latent_channels: int) -> nnx.Linear:
        with self._parts.part("  fit of previews"):
            return self._files.preview(mean_latents, latent_channels)

    def clip_tokenizer(self, folder: Path) -> Tokenizer:
        with self._parts.part("  tokenizers"):
            return self._files.clip_tokenizer(folder)

    def t5_tokenizer(self, folder: Path) -> Tokenizer:
        with self._parts.part("  tokenizers"):
            return self._files.t5_tokenizer(folder)


def untouched(shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
    """Zeros, aligned to a block, that use no space until written; a CPU array is this memory."""
    nbytes = math.prod(shape) * dtype.itemsize
    memory = np.zeros(nbytes + BLOCK, np.uint8)
    start = -memory.ctypes.data % BLOCK
    return memory[start : start + nbytes].view(dtype).reshape(shape)
