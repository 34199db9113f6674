"""Embeddings of a worker: from the settings and from a tenant; present, deleted and unusable."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from models import registry
from models.adapters.adaptable_layers import names_of
from models.interface.pipeline import Pipeline, generate
from models.parallel.axis_rules import Layout
from models.spec.embeddings import path_of
from models.spec.lora import RequestedLora, always
from service.jobs.model.job import Job, JobState, new_job_id
from service.jobs.queue import Queue
from service.jobs.storage.object_store import Store, lora_key
from service.settings.loras import EmbeddingSettings
from service.settings.models import ModelSettings
from service.settings.pools import PoolSettings
from service.settings.settings import Settings
from tests.workers.demo_adapters import adapter
from tests.workers.jobs import ended, pixels
from tests.workers.polling import DEADLINE_S
from workers.engine.engine import Engine
from workers.loading.loras import digest_of
from workers.pool.process import prepared_loras
from workers.pool.worker import Worker, WorkerParts
from workers.programs.aot_cache import NoExecutables

MODEL = "sdxl-demo"
DEMO = Path(__file__).parents[3] / "models/demo/sdxl"
POOL = PoolSettings(model=MODEL, slots=2, preview_every_s=0, store_patience_s=0.5)
SIZE = {"width": 32, "height": 32, "num_inference_steps": 2}


def embedding(folder: Path, name: str, sizes: dict[str, int]) -> dict[str, np.ndarray]:
    """Write an embedding of two vectors; return them by encoder."""
    draw = np.random.default_rng(len(name)).standard_normal
    vectors = {encoder: draw((2, size)).astype(np.float32) for encoder, size in sizes.items()}
    arrays = {"clip_l": vectors["clip"], "clip_g": vectors["clip_2"]}
    save_file(arrays, folder / f"{name}.safetensors")
    return vectors


def requested(folder: Path, name: str) -> RequestedLora:
    return RequestedLora(
        name=name,
        digest=digest_of(folder / f"{name}.safetensors"),
        pages=0,
        networks=("clip", "clip_2"),
        scales=always(1.0),
        vectors=2,
    )


def job(pipeline: Pipeline, prompt: str, *embeddings: RequestedLora) -> Job:
    spec = pipeline.spec
    request = {**spec.defaults_for("text-to-image"), **SIZE, "num_images": 1, "seed": 5}
    request |= {"prompt": prompt, "output": {"format": "png"}}
    return Job(
        id=new_job_id(),
        model=MODEL,
        bucket=spec.bucket(request, embeddings),
        tenant="acme",
        request=request,
        loras=list(embeddings),
        steps=2,
    )


async def test_embeddings_of_settings_and_tenants_change_images(
    layout: Layout, queue: Queue, store: Store, tmp_path: Path
) -> None:
    pipeline = registry.load(MODEL, str(DEMO), "float32", {})
    sizes = dict(pipeline.spec.embedding_sizes)
    vectors = {name: embedding(tmp_path, name, sizes) for name in ("mood", "theirs", "deleted")}
    lora = adapter(tmp_path / "lora.safetensors", 1)
    sources = {"mood": tmp_path / "mood.safetensors", "lora": lora, "none": tmp_path / "none"}
    settings = Settings(
        models={MODEL: ModelSettings(source=str(DEMO), dtype="float32")},
        pools={"demo": POOL},
        embeddings={
            name: EmbeddingSettings(source=str(source), model=MODEL)
            for name, source in sources.items()
        },
        state_dir=tmp_path / "state",
    )
    mood, theirs, deleted = (requested(tmp_path, name) for name in vectors)
    file = (tmp_path / "theirs.safetensors").read_bytes()
    await store.put(lora_key("acme", theirs.digest), file, "x/y")
    jobs = [
        job(pipeline, "a red circle"),
        job(pipeline, "a red circle, mood", mood),
        job(pipeline, "a red circle, theirs, mood", theirs, mood),
        job(pipeline, "deleted", deleted),
    ]
    files = await prepared_loras(
        settings, POOL, pipeline, partial(names_of, pipeline), NoExecutables(), store
    )
    spec = pipeline.spec
    assert not spec.lora_pages and not spec.lora_layers
    assert (spec.loras["mood"].vectors, spec.loras["mood"].pages) == (2, 0)
    errors = {name: entry.error for name, entry in spec.loras.items()}
    assert errors["mood"] is None and "none" in str(errors["none"])
    assert "none of its layers belongs to this model" in str(errors["lora"])
    engine = Engine(pipeline, layout, 2, lora_files=files.find)
    worker = Worker("demo", WorkerParts(engine, queue, store), POOL, 3.0)
    task = asyncio.create_task(worker.run([]))
    try:
        for item in jobs:
            await queue.put(item)
        plain, alone, both, missing = [await ended(queue, item) for item in jobs]
        worker.stop_now()
        await asyncio.wait_for(task, DEADLINE_S)
    finally:
        task.cancel()
        engine.close()
    assert missing.state is JobState.FAILED and missing.error is not None
    assert missing.error.code == "lora_gone" and "was deleted before" in missing.error.message
    images = [(await pixels(store, item))[0] for item in (plain, alone, both)]
    assert not np.array_equal(images[0], images[1]) and not np.array_equal(images[1], images[2])
    paths = {
        path_of(name, encoder): array.tobytes()
        for name in ("mood", "theirs")
        for encoder, array in vectors[name].items()
    }
    fields = {**jobs[2].request, "loras": [entry.model_dump() for entry in jobs[2].loras]}
    np.testing.assert_array_equal(images[2], generate(pipeline, fields, paths))
