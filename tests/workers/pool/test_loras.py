"""Adapters of a worker: from the settings and from a tenant; present, deleted and damaged."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from models import registry
from models.adapters.adaptable_layers import names_of
from models.adapters.install import install_banks
from models.interface.pipeline import Pipeline
from models.parallel.axis_rules import Layout
from models.spec.lora import RequestedLora
from service.jobs.model.job import Job, JobState, new_job_id
from service.jobs.queue import Queue
from service.jobs.storage.object_store import Store, lora_key
from service.settings.loras import LoraSettings
from service.settings.models import ModelSettings
from service.settings.pools import PoolSettings
from service.settings.settings import Settings
from tests.workers.demo_adapters import DEMO, adapter, requested
from tests.workers.jobs import ended, pixels
from tests.workers.polling import DEADLINE_S
from workers.engine.engine import Engine
from workers.loading.loras import digest_of
from workers.pool.process import prepared_loras
from workers.pool.worker import Worker, WorkerParts
from workers.programs.aot_cache import NoExecutables

MODEL = "flux-demo"
POOL = PoolSettings(model=MODEL, slots=4, preview_every_s=0, store_patience_s=0.5)
PAGES = 3


@pytest.fixture
def fresh() -> Pipeline:
    """Load a pipeline with empty banks. An engine takes over its pipeline's banks."""
    loaded = registry.load(MODEL, str(DEMO), "float32", {})
    install_banks(loaded, PAGES)
    return loaded


def job(pipeline: Pipeline, *loras: RequestedLora, **fields: Any) -> Job:
    spec = pipeline.spec
    defaults = {**spec.defaults_for("text-to-image"), "num_inference_steps": 3}
    request = {**defaults, "prompt": "two red circles", "num_images": 1, "seed": 5, **fields}
    request |= {"output": {"format": "png"}}
    if loras:
        request["loras"] = [{"name": lora.name, "scale": 0.8} for lora in loras]
    return Job(
        id=new_job_id(),
        model=MODEL,
        bucket=spec.bucket(request, loras),
        tenant="acme",
        request=request,
        loras=list(loras),
        steps=request["num_inference_steps"],
    )


@asynccontextmanager
async def pool(
    pipeline: Pipeline, layout: Layout, queue: Queue, store: Store, settings: Settings
) -> AsyncIterator[Pipeline]:
    adapters = await prepared_loras(
        settings, POOL, pipeline, partial(names_of, pipeline), NoExecutables(), store
    )
    engine = Engine(pipeline, layout, 4, lora_files=adapters.find)
    worker = Worker("demo", WorkerParts(engine, queue, store), POOL, 3.0)
    task = asyncio.create_task(worker.run([]))
    try:
        yield pipeline
        worker.stop_now()
        await asyncio.wait_for(task, DEADLINE_S)
    finally:
        task.cancel()
        engine.close()


def settings_with(folder: Path, **loras: LoraSettings) -> Settings:
    models = {MODEL: ModelSettings(source=str(DEMO), dtype="float32")}
    return Settings(models=models, pools={"demo": POOL}, loras=loras, state_dir=folder)


async def test_adapters_of_settings_and_tenants_change_images_and_deleted_ones_end_jobs(
    fresh: Pipeline, layout: Layout, queue: Queue, store: Store, tmp_path: Path
) -> None:
    """The store has lost a file that the worker's last start fetched, which is still used."""
    ink_file = adapter(tmp_path / "own.safetensors", 1)
    tenant_file = adapter(tmp_path / "theirs.safetensors", 2, rank=20)
    gone = adapter(tmp_path / "gone.safetensors", 3)
    damaged = adapter(tmp_path / "damaged.safetensors", 4)
    broken = tmp_path / "broken.safetensors"
    broken.write_bytes(b"nothing")
    ink = LoraSettings(source=str(ink_file), model=MODEL, trigger="ink", tenants=("acme",))
    settings = settings_with(
        tmp_path / "state",
        ink=ink,
        broken=LoraSettings(source=str(broken), model=MODEL),
        other=LoraSettings(source=str(ink_file), model="another-model"),
    )
    loras = requested("ink", ink_file), requested("theirs", tenant_file, 20)
    await store.put(lora_key("acme", loras[1].digest), tenant_file.read_bytes(), "x/y")
    cached = requested("cached", adapter(cached_file := tmp_path / "cached.safetensors", 5))
    (settings.state_dir / "loras").mkdir(parents=True, mode=0o700)
    cached_file.rename(settings.state_dir / "loras" / cached.digest)
    bad = requested("damaged", damaged)
    await store.put(lora_key("acme", bad.digest), damaged.read_bytes()[:-4] + b"1234", "x/y")
    async with pool(fresh, layout, queue, store, settings):
        spec = fresh.spec
        assert spec.loras.keys() == {"ink", "broken"}
        assert (spec.loras["ink"].rank, spec.loras["ink"].trigger) == (4, "ink")
        assert spec.loras["ink"].digest == loras[0].digest
        assert "safetensors" in str(spec.loras["broken"].error)
        assert "loras" in spec.fields and spec.lora_pages == PAGES
        jobs = [
            job(fresh),
            job(fresh, loras[0]),
            job(fresh, loras[1]),
            job(fresh, *loras),
            job(fresh, loras[0]),
            job(fresh, cached),
            job(fresh, requested("gone", gone)),
            job(fresh, bad),
        ]
        for item in jobs:
            await queue.put(item)
        *succeeded, missing, wrong = [await ended(queue, item) for item in jobs]
    images = [(await pixels(store, item))[0].astype(int) for item in succeeded]
    plain, ink_alone, theirs_alone, both, again, of_cached = images
    for item in (ink_alone, theirs_alone, both, of_cached):
        assert np.abs(item - plain).mean() > 1, "the adapter shows"
    assert np.abs(ink_alone - both).mean() > 1 and np.abs(theirs_alone - both).mean() > 1
    assert (ink_alone == again).all()
    for item, reason in ((missing, "was deleted before"), (wrong, "is damaged")):
        assert item.state is JobState.FAILED and item.error is not None
        assert item.error.code == "lora_gone" and reason in item.error.message


def test_a_digest_is_sha_256(tmp_path: Path) -> None:
    file = tmp_path / "x"
    file.write_bytes(b"abc")
    assert digest_of(file) == hashlib.sha256(b"abc").hexdigest()
    (tmp_path / "adapter_config.json").write_bytes(b"{}")
    assert digest_of(file) == hashlib.sha256(b"abc").hexdigest()
    weights = file.rename(tmp_path / "adapter_model.safetensors")
    assert digest_of(weights) == hashlib.sha256(b"abc{}").hexdigest(), "the config scales them"
