"""Backend of diffusers pipelines: bytes, progress, cancellation, previews and errors."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import DiffusionPipeline
from PIL import Image

from models.spec.model_spec import ModelSpec, Task
from service.settings.models import ModelSettings
from tests.workers.diffusers import tiny
from tests.workers.diffusers.direct import called, file_of, picture
from tests.workers.polling import DEADLINE_S
from workers.diffusers.engine import DiffusersEngine
from workers.diffusers.load import LoadedPipelines, load
from workers.engine.errors import EngineFailed, GenerationFailed
from workers.engine.observer import Observer
from workers.engine.uncompiled import UncompiledRow

pytestmark = pytest.mark.filterwarnings("ignore:::diffusers", "ignore:::transformers")
STEPS = 3


def request(spec: ModelSpec, task: Task, **fields: Any) -> dict[str, Any]:
    """Return a resolved request of one image, as the job runner passes it."""
    defaults = {**spec.defaults_for(task), "num_inference_steps": STEPS, "num_images": 1}
    return {**defaults, "prompt": "a red circle", "seed": 2**32 - 7, **fields}


def small_size(spec: ModelSpec) -> dict[str, int]:
    """Return a size below the default of pipelines that always state 1024 pixels."""
    usual = spec.defaults_for(spec.tasks[0])
    side = min(usual["width"], max(4 * spec.limits.size_multiple_px, 32))
    if "num_frames" not in usual:
        return {"width": side, "height": side}
    frames = min(usual["num_frames"], 1 + 2 * spec.limits.frames_multiple)
    return {"width": side, "height": side, "num_frames": frames}


class Record(Observer):
    """Observer that records steps and stages, and may cancel a task."""

    def __init__(self, cancel_at: int = 0) -> None:
        self.events: list[Any] = []
        self.rows: list[UncompiledRow] = []
        self.task: asyncio.Task[Any] | None = None
        self._cancel_at = cancel_at

    def on_step(self, row: Any) -> None:
        self.events.append((row.image_done, row.image_steps))
        self.rows.append(row)
        if self.task and row.done >= self._cancel_at:
            self.task.cancel()

    def on_stage(self, stage: Any, expected_s: float | None = None) -> None:
        self.events.append(stage)


@pytest.mark.parametrize("name", sorted(tiny.MAKERS.keys() - {"StableDiffusionPipeline"}))
async def test_images_equal_direct_calls(name: str, tmp_path: Path) -> None:
    """Images equal direct calls byte for byte, with the seed and the exact size of the request."""
    folder = tiny.make(name, tmp_path)
    pipelines = load("tiny", ModelSettings(source=str(folder), dtype="float32"))
    engine = DiffusersEngine(pipelines)
    fields = request(pipelines.spec, pipelines.spec.tasks[0], **small_size(pipelines.spec))
    output = await engine.generate(fields, {})
    engine.close()
    direct = DiffusionPipeline.from_pretrained(folder, dtype=torch.float32)
    assert np.array_equal(output.pixels, called(direct, fields))
    assert output.pixels.std() > 1


@pytest.mark.parametrize("images", [(), ("image",), ("image", "mask_image")])
async def test_every_task_equals_its_pipeline(
    engine: DiffusersEngine, pipelines: LoadedPipelines, images: tuple[str, ...]
) -> None:
    """The pipelines of further tasks share the weights of the checkpoint's own."""
    task = pipelines.spec.tasks[len(images)]
    pictures = {name: picture(mode="L" if "mask" in name else "RGB") for name in images}
    fields = request(pipelines.spec, task, num_inference_steps=4, width=16, height=16)
    files = {name: file_of(image) for name, image in pictures.items()}
    record = Record()
    output = await engine.generate({**fields, **dict.fromkeys(images, "a key")}, files, record)
    pictures |= {name: image.convert("RGB") for name, image in pictures.items()}
    assert np.array_equal(output.pixels, called(pipelines.by_task[task], fields, **pictures))
    done, to_do = record.events[1]
    assert (done, to_do) == (1, output.steps), "the scheduler's steps, not those of the request"
    assert record.events[-1] == "decoding"


async def test_a_canceled_image_ends_after_a_step(
    engine: DiffusersEngine, pipelines: LoadedPipelines
) -> None:
    fields = request(pipelines.spec, "text-to-image", num_inference_steps=40)
    record = Record(cancel_at=1)
    record.task = asyncio.create_task(engine.generate(fields, {}, record))
    with pytest.raises(asyncio.CancelledError):
        await record.task
    few = {**fields, "num_inference_steps": STEPS}
    output = await engine.generate(few, {})
    assert record.rows[0].is_ended and record.rows[0].done < 40
    assert np.array_equal(output.pixels, called(pipelines.default, few)), "the next is unaffected"


async def test_previews_are_small_images(
    engine: DiffusersEngine, pipelines: LoadedPipelines
) -> None:
    """The second step waits until the preview is requested."""
    fields = request(pipelines.spec, "text-to-image")
    previews: list[asyncio.Task[np.ndarray | None]] = []
    is_requested = threading.Event()

    class Previewed(Observer):
        def on_step(self, row: Any) -> None:
            if not previews:
                previews.append(asyncio.create_task(engine.preview(row)))
                asyncio.get_running_loop().call_soon(is_requested.set)  # after the task has begun

    calls: list[bool] = []
    hook = pipelines.default.unet.register_forward_pre_hook(
        lambda *_: calls.append(bool(calls) and is_requested.wait(DEADLINE_S))
    )
    output = await engine.generate(fields, {}, Previewed())
    hook.remove()
    shown = await previews[0]
    assert shown is not None and shown.shape == (16, 16, 3) and shown.std() > 1
    assert not np.array_equal(shown, output.pixels)
    assert np.array_equal(output.pixels, called(pipelines.default, fields)), "no bit depends on it"
    latents = torch.zeros(1, 4, 128, 64)
    small = pipelines.preview(pipelines.default, (128, 256), latents)
    assert small is not None and small.shape == (64, 32, 3)
    assert pipelines.preview(pipelines.default, (16, 16), torch.zeros(1, 4, 2, 8, 8)) is None


async def test_pipeline_rejection_is_an_invalid_request(
    engine: DiffusersEngine, pipelines: LoadedPipelines
) -> None:
    fields = request(pipelines.spec, "text-to-image", width=17)
    with pytest.raises(GenerationFailed, match="divisible by 8") as refused:
        await engine.generate(fields, {})
    assert refused.value.error.code == "invalid_request"


@pytest.mark.parametrize(
    "error, code",
    [
        (torch.OutOfMemoryError("CUDA out of memory"), "out_of_memory"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), "out_of_memory"),
        (RuntimeError("shapes differ"), "internal"),
    ],
)
async def test_torch_errors_have_their_codes(
    engine: DiffusersEngine,
    pipelines: LoadedPipelines,
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
    code: str,
) -> None:
    def fail(*args: Any, **kwargs: Any) -> None:
        raise error

    monkeypatch.setattr(pipelines.default.unet, "forward", fail)
    with pytest.raises(GenerationFailed) as failed:
        await engine.generate(request(pipelines.spec, "text-to-image"), {})
    assert failed.value.error.code == code
    assert not engine.failure.done()


async def test_a_failed_device_ends_the_engine(
    engine: DiffusersEngine, pipelines: LoadedPipelines, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: Any, **kwargs: Any) -> None:
        raise torch.AcceleratorError("device-side assert", 0)

    monkeypatch.setattr(pipelines.default.unet, "forward", fail)
    for _ in range(2):
        with pytest.raises(EngineFailed):
            await engine.generate(request(pipelines.spec, "text-to-image"), {})
    assert engine.failure.done()


async def test_latents_that_are_not_finite_fail_their_image(
    engine: DiffusersEngine, pipelines: LoadedPipelines
) -> None:
    fields = request(pipelines.spec, "text-to-image", guidance_scale=1e38)
    with pytest.raises(GenerationFailed, match="not finite"):
        await engine.generate(fields, {})


async def test_costs_are_measured_by_bucket(
    engine: DiffusersEngine, pipelines: LoadedPipelines
) -> None:
    fields = request(pipelines.spec, "text-to-image")
    await engine.generate(fields, {})
    ((key, row),) = engine.costs.rows("cpu", 1).items()
    assert (key.bucket, key.batch) == (pipelines.spec.bucket(fields), 1)
    assert min(row.step_s, row.decode_s) > 0
    assert engine.costs.available == (key.bucket,)


def test_an_image_takes_the_requests_size(pipelines: LoadedPipelines) -> None:
    from workers.diffusers.call import opened

    fields = {"width": 8, "height": 4}
    files = {"image": file_of(picture())}
    image = opened(pipelines.by_task["image-to-image"], fields, files)["image"]
    assert isinstance(image, Image.Image) and image.size == (8, 4)


async def test_decoded_image_that_is_not_finite_fails(
    pipelines: LoadedPipelines, engine: DiffusersEngine
) -> None:
    """diffusers converts NaN to black pixels."""
    weight = pipelines.default.vae.decoder.conv_in.weight
    finite = weight.data.clone()
    weight.data *= torch.inf
    try:
        with pytest.raises(GenerationFailed, match="whose output is not finite") as failed:
            await engine.generate(request(pipelines.spec, "text-to-image"), {})
    finally:
        weight.data = finite
    assert failed.value.error.code == "non_finite"


def test_canceled_preview_does_not_end_its_row() -> None:
    row = UncompiledRow(2, lambda row: None)
    for finish in (lambda: row.advance(True, lambda: None), row.end):
        row.preview = Future()
        row.preview.cancel()
        finish()
        assert row.preview is None
