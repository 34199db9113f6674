"""Models from an object store: the folder's pixels, despite faults and in bounded memory."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from models import registry
from models.checkpoint.folder import CheckpointError
from models.checkpoint.object_file import CHUNK, ObjectFile
from models.interface.pipeline import generate
from models.weights.device_transfer import PIECE
from tests.models import object_store
from tests.models.object_store import Start, failing, is_read, once_each, put, upload
from tests.models.weights.test_loader import MEMORY, hollow_checkpoint, run_python
from tests.service.jobs.object_stores import BUCKET, Server

DEMO = Path("models/demo/sdxl")
URL = f"s3://{BUCKET}/demos/sdxl"
REQUEST = {"prompt": "a red circle", "seed": 3, "num_inference_steps": 2}
LAST = "vae/diffusion_pytorch_model.safetensors"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    with object_store.store_server(monkeypatch) as server:
        yield server


def test_the_pixels_are_the_folders(server: Server) -> None:
    """Models from an object store have the folder's pixels, although the first request of each
    range fails."""
    upload(server, DEMO, "demos/sdxl")
    server.fault = once_each(failing)
    streamed, local = (registry.load("m", source, "float32", {}) for source in (URL, str(DEMO)))
    assert streamed.spec == local.spec
    fields = {**local.spec.defaults, **REQUEST}
    images = [generate(pipeline, fields, {}) for pipeline in (streamed, local)]
    np.testing.assert_array_equal(*images)
    assert np.ptp(images[0]) > 0


def test_a_checkpoint_that_is_replaced_while_it_loads_is_refused(server: Server) -> None:
    upload(server, DEMO, "demos/sdxl")
    data, started = (DEMO / LAST).read_bytes(), threading.Event()

    def replacing(environ: dict[str, str], start: Start) -> None:
        if is_read(environ) and not started.is_set():
            started.set()
            put(server, f"demos/sdxl/{LAST}", data[:-4] + os.urandom(4))

    server.fault = replacing
    with pytest.raises(CheckpointError, match=rf"{URL}/{LAST}: has changed since"):
        registry.load("m", URL, "float32", {})


@pytest.mark.parametrize("dtype", ["jnp.float32", "jnp.bfloat16"])
def test_peak_memory_is_the_model_and_the_current_transfer(
    server: Server, tmp_path: Path, dtype: str
) -> None:
    hollow_checkpoint(tmp_path)
    server.fault = object_store.serving_file(tmp_path / "model.safetensors")
    url = f"s3://{BUCKET}/hollow/model.safetensors"
    place = (
        "__import__('models.checkpoint.safetensors').checkpoint.safetensors.ComponentFiles("
        f"'m', (__import__('models.checkpoint.hub').checkpoint.hub.single_file({url!r}),))"
    )
    script = MEMORY.replace("Path(FOLDER)", place).replace("DTYPE", dtype)
    peak_mb, model_mb = (float(line) for line in run_python(script).split())
    tensor_mb = 1600 * 1600 * 4 / 2**20
    on_its_way_mb = ObjectFile.readers * (PIECE + 3 * CHUNK) / 2**20
    assert model_mb < peak_mb < model_mb + on_its_way_mb + 2 * tensor_mb
