"""Build of a pool's executables: all that its workers compile before they are ready.

The models, layouts, requests and programs are found by what a worker finds them by, from the
checkpoint's configs alone: weights are shapes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import wait
from pathlib import Path

import jax

from models.adapters.names_of import names_of
from models.checkpoint.hub import CONFIGS, resolve, single_file
from models.interface.pipeline import Pipeline
from models.loading.sources import FILES, Shapes
from models.spec.model_spec import ModelSpec
from service.jobs.storage.errors import StoreError
from service.jobs.storage.object_store import Store
from service.settings.settings import Settings
from workers.building.stored import BuildReport, Built, StoredPrograms
from workers.building.target import Target
from workers.engine.latency_stats import LatencyStats
from workers.engine.passes import ImagePass, warm_up_passes
from workers.loading import model as loading
from workers.loading import together
from workers.loading.loras import configured_loras
from workers.loading.model import MeshSlice
from workers.loading.together import Wanted
from workers.loading.upscalers import upscaler_bytes
from workers.plan.lowered import concrete
from workers.programs import batch_sizes, warmup
from workers.programs.cache import ProgramCache
from workers.programs.compiler import Compiler
from workers.programs.executable_store import MANIFESTS, SETTING
from workers.programs.launcher import OneHost
from workers.slice.device_chip import is_described


class Unweighted(Shapes):
    """Reader of tokenizers alone: programs depend on what prompts come to, and on no weight."""

    clip_tokenizer = staticmethod(FILES.clip_tokenizer)
    t5_tokenizer = staticmethod(FILES.t5_tokenizer)
    qwen_tokenizer = staticmethod(FILES.qwen_tokenizer)
    gemma_tokenizer = staticmethod(FILES.gemma_tokenizer)


def build(
    settings: Settings, pool_name: str, target: Target, url: str, tell: Callable[[Built], None]
) -> list[Built]:
    """Build the executables of all models of a pool into a store. Sets JAX up.

    Args:
        tell: called with each program.

    Returns all programs, and what became of them.

    Raises:
        ConfigError: the settings do not name what is needed, or do not fit the devices.
        PlanError: there is no compiler for these devices.
        StoreError: the store does not answer, or is not there.
        models.checkpoint.folder.CheckpointError, ValueError: the model cannot be loaded.
    """
    target.check(pool_name, settings.pools[pool_name])
    store = Store(url, setting=SETTING)
    asyncio.run(store.exists(MANIFESTS))  # a bucket that is not there is said before minutes are by
    settings = configs_alone(settings, pool_name)
    models = together.wanted(settings, pool_name)
    target.set_up(models[0].pool, models[0].model)
    devices, report = target.devices(), BuildReport(tell)
    programs = StoredPrograms(store, devices, report)
    beside = upscaler_bytes(settings, models)
    try:
        by_turns = settings.pools[pool_name].by_turns
        for group in [[one] for one in models] if by_turns else [models]:
            slices = together.planned(pool_name, group, devices, programs, beside)
            for one, opened in zip(group, slices, strict=True):
                _build_model(settings, one, opened, report)
    finally:
        programs.save()
    return report.programs


def configs_alone(settings: Settings, pool_name: str) -> Settings:
    """Return the settings with folders of configs, which alone are fetched, for hub ids of a pool.

    Single files stay as they are: their header is read where they lie.

    Raises: CheckpointError: the hub or store does not give them out; StoreAway: not now.
    """
    served = [settings.models[name] for name in settings.pools[pool_name].models]
    names = {*settings.pools[pool_name].models, *(one.base for one in served if one.lora)}
    folders = {
        name: str(resolve(model.source, patterns=CONFIGS))
        for name, model in settings.models.items()
        if name in names and model.source and not _is_there(model.source)
    }
    models = {
        name: model.model_copy(update={"source": folders[name]}) if name in folders else model
        for name, model in settings.models.items()
    }
    return settings.model_copy(update={"models": models})


def _is_there(source: str) -> bool:
    """Return whether a source is a folder of this machine, or a single file wherever it is."""
    return Path(source).expanduser().exists() or single_file(source) is not None


def _build_model(settings: Settings, one: Wanted, opened: MeshSlice, report: BuildReport) -> None:
    """Raises: ConfigError: a warm-up request cannot be made; the error of a program it needs."""
    model = opened.model or one.model
    how = loading.placing(model, opened, Unweighted())
    pipeline = loading.read(one.pool, model, **how)
    if any(entry.get("loras") for entry in model.warmup):
        pipeline.spec = _with_loras(settings, pipeline, opened)
    compiler = Compiler(pipeline, opened.layout, opened.executables)
    slots = opened.chosen.slots
    sizes = batch_sizes.of_settings(one.pool, model, opened.layout, slots)
    cache = ProgramCache(compiler, OneHost(), compiler.batch_layouts(sizes.sizes, sizes.elastic))
    if is_described(opened.layout.mesh.devices.flat[0]):
        jax.set_mesh(concrete(opened.layout.mesh))  # kernels that ask for the chip find it there
    try:
        for fields in warmup.requests(pipeline.spec, model.warmup):
            for each in warm_up_passes(pipeline, fields):
                _build_pass(cache, compiler, each, report)
    finally:
        cache.close()


def _build_pass(
    cache: ProgramCache, compiler: Compiler, one: ImagePass, report: BuildReport
) -> None:
    """Build what one pass of a request runs, and what a worker knows of it beforehand."""
    programs = cache.of(one.prepared)
    cache.count(programs, one.prepared)
    for program in programs.necessary():
        program.result()
    bucket = LatencyStats(compiler.pipeline.spec).bucket(one.fields)
    took_s = programs.compilation.can_begin()
    if bucket and took_s is not None:
        compiler.record_compile_s(bucket, took_s)
    for program in programs.optional():
        try:
            program.result()
        except StoreError:
            raise
        except Exception as error:
            report.add(Built("step", f"a batch size does not compile: {error}"))
    wait([phase.flops for phase in programs.phases.values() if phase.flops is not None])


def _with_loras(settings: Settings, pipeline: Pipeline, opened: MeshSlice) -> ModelSpec:
    """Return the spec with the adapters of the settings, which warm-up requests name."""
    found = configured_loras(settings, pipeline.spec, names_of(pipeline), opened.executables)
    return pipeline.spec.model_copy(update={"loras": {name: x.lora for name, x in found.items()}})
