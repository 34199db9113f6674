"""Compile all executables that a pool's workers need before they are ready.

Models, layouts, requests and programs come from the same code as in a worker. Only the checkpoint's
configs are read; weights are abstract shapes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import wait
from pathlib import Path

import jax

from models.adapters.adaptable_layers import names_of
from models.checkpoint.hub import CONFIGS, resolve, single_file
from models.interface.pipeline import Pipeline
from models.loading.sources import FILES, Shapes
from models.spec.model_spec import ModelSpec
from service.jobs.storage.errors import StoreError
from service.jobs.storage.object_store import Store
from service.settings.settings import Settings
from workers.building.stored import BuildReport, ProgramOutcome, StoredPrograms
from workers.building.target import Target
from workers.engine.latency_stats import LatencyStats
from workers.engine.passes import ImagePass, warm_up_passes
from workers.loading import model as loading
from workers.loading import pool_models
from workers.loading.loras import configured_loras
from workers.loading.model import MeshSlice
from workers.loading.pool_models import PoolModel
from workers.loading.upscalers import upscaler_bytes
from workers.plan.lowered import concrete
from workers.programs import batch_sizes, warmup
from workers.programs.cache import ProgramCache
from workers.programs.compiler import Compiler
from workers.programs.executable_store import MANIFESTS, SETTING
from workers.programs.launcher import OneHost
from workers.slice.device_chip import is_described


class TokenizerReader(Shapes):
    """Checkpoint reader of tokenizers only: programs depend on tokens, but not on weights."""

    clip_tokenizer = staticmethod(FILES.clip_tokenizer)
    t5_tokenizer = staticmethod(FILES.t5_tokenizer)
    chat_tokenizer = staticmethod(FILES.chat_tokenizer)
    gemma_tokenizer = staticmethod(FILES.gemma_tokenizer)


def build(
    settings: Settings,
    pool_name: str,
    target: Target,
    url: str,
    on_program: Callable[[ProgramOutcome], None],
) -> list[ProgramOutcome]:
    """Compile the executables of all models of a pool into a store; return every program's outcome.

    Changes the JAX configuration of this process.

    Args:
        on_program: called with each program.

    Raises:
        ConfigError: the settings lack a required name, or do not fit the devices.
        PlanError: no compiler is available for these devices.
        StoreError: the store does not answer, or does not exist.
        models.checkpoint.folder.CheckpointError, ValueError: the model cannot be loaded.
    """
    target.check(pool_name, settings.pools[pool_name])
    store = Store(url, setting=SETTING)
    asyncio.run(store.exists(MANIFESTS))  # fail on a missing bucket before compiling
    settings = with_local_configs(settings, pool_name)
    models = pool_models.from_settings(settings, pool_name)
    target.set_up(models[0].pool, models[0].model)
    devices, report = target.devices(), BuildReport(on_program)
    programs = StoredPrograms(store, devices, report)
    extra_bytes = upscaler_bytes(settings, models)
    try:
        by_turns = settings.pools[pool_name].by_turns
        for group in [[entry] for entry in models] if by_turns else [models]:
            slices = pool_models.plan_slices(pool_name, group, devices, programs, extra_bytes)
            for entry, opened in zip(group, slices, strict=True):
                _build_model(settings, entry, opened, report)
    finally:
        programs.save()
    return report.programs


def with_local_configs(settings: Settings, pool_name: str) -> Settings:
    """Return settings in which each hub id of a pool is replaced by a local folder of its configs.

    Single files are unchanged: their header is read in place.

    Raises: CheckpointError: the hub or store lacks them; StoreUnavailable: it is unreachable.
    """
    served = [settings.models[name] for name in settings.pools[pool_name].models]
    names = {
        *settings.pools[pool_name].models,
        *(served_model.base for served_model in served if served_model.lora),
    }
    folders = {
        name: str(resolve(model.source, patterns=CONFIGS))
        for name, model in settings.models.items()
        if name in names and model.source and not _is_local(model.source)
    }
    models = {
        name: model.model_copy(update={"source": folders[name]}) if name in folders else model
        for name, model in settings.models.items()
    }
    return settings.model_copy(update={"models": models})


def _is_local(source: str) -> bool:
    """Return whether a checkpoint's source is a local folder, or a single file in any location."""
    return Path(source).expanduser().exists() or single_file(source) is not None


def _build_model(
    settings: Settings, pool_model: PoolModel, opened: MeshSlice, report: BuildReport
) -> None:
    """Compile the programs of one model for its warm-up requests.

    Raises: ConfigError: a warm-up request is invalid; the error of a program it needs.
    """
    model = opened.model or pool_model.model
    options = loading.read_arguments(model, opened, TokenizerReader())
    pipeline = loading.read(pool_model.pool, model, **options)
    if any(entry.get("loras") for entry in model.warmup):
        pipeline.spec = _with_loras(settings, pipeline, opened)
    compiler = Compiler(pipeline, opened.layout, opened.executables)
    slots = opened.chosen.slots
    sizes = batch_sizes.of_settings(pool_model.pool, model, opened.layout, slots)
    cache = ProgramCache(compiler, OneHost(), compiler.batch_layouts(sizes.sizes, sizes.elastic))
    if is_described(opened.layout.mesh.devices.flat[0]):
        jax.set_mesh(concrete(opened.layout.mesh))  # kernels read the chip's kind from this mesh
    try:
        for fields in warmup.requests(pipeline.spec, model.warmup):
            for image_pass in warm_up_passes(pipeline, fields):
                _build_pass(cache, compiler, image_pass, report)
    finally:
        cache.close()


def _build_pass(
    cache: ProgramCache, compiler: Compiler, image_pass: ImagePass, report: BuildReport
) -> None:
    """Compile the programs of one pass of a request, and store their facts for a worker's start."""
    programs = cache.of(image_pass.prepared)
    cache.count(programs, image_pass.prepared)
    for program in programs.necessary():
        program.result()
    bucket = LatencyStats(compiler.pipeline.spec).bucket(image_pass.fields)
    took_s = programs.compilation.can_begin()
    if bucket and took_s is not None:
        compiler.record_compile_s(bucket, took_s)
    for program in programs.optional():
        try:
            program.result()
        except StoreError:
            raise
        except Exception as error:
            report.add(ProgramOutcome("step", f"a batch size does not compile: {error}"))
    wait(
        [
            step_kind.flops
            for step_kind in programs.step_kinds.values()
            if step_kind.flops is not None
        ]
    )


def _with_loras(settings: Settings, pipeline: Pipeline, opened: MeshSlice) -> ModelSpec:
    """Return the spec with the settings' LoRA adapters, which warm-up requests name."""
    adapters = configured_loras(settings, pipeline.spec, names_of(pipeline), opened.executables)
    return pipeline.spec.model_copy(
        update={"loras": {name: adapter.lora for name, adapter in adapters.items()}}
    )
