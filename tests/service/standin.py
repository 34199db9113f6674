"""Stand-in worker without a model: it claims jobs from the real queue and stores a small image for
each."""

from __future__ import annotations

import asyncio
import hashlib
import io
from types import TracebackType
from typing import Self

import numpy as np
from PIL import Image

from models.spec.controls import ControlKind
from models.spec.model_spec import Limits, ModelSpec
from models.spec.option import Option
from service.jobs.model.job import Job, JobError, Output, Snapshot, Usage
from service.jobs.queue import Claim, Queue
from service.jobs.redis.tasks import cancel
from service.jobs.storage.object_store import Store, output_key, sibling_key, snapshot_key
from service.schemas.request_parts import MEDIA_TYPES
from workers.media.image import sheets_of
from workers.media.video import encode_video

MODEL = "flux-demo"
POOL = "stand-in"
SIZE_PX = 32
HEARTBEAT_S = 2.0

SPEC = ModelSpec(
    name=MODEL,
    family="flux",
    tasks=("text-to-image", "image-to-image"),
    fields=frozenset(
        [
            "prompt",
            "prompt_2",
            "negative_prompt",
            "width",
            "height",
            "num_inference_steps",
            "guidance_scale",
            "num_images",
            "seed",
            "max_sequence_length",
            "sigmas",
            "image",
            "strength",
            "reference_images",
            "control",
        ]
    ),
    defaults={
        "width": 96,
        "height": 64,
        "num_inference_steps": 4,
        "guidance_scale": 3.5,
        "max_sequence_length": 64,
    },
    controls={"canny": ControlKind()},
    task_defaults={"image-to-image": {"strength": 0.6, "guidance_scale": 7.0}},
    limits=Limits(
        size_multiple_px=16,
        min_side_px=32,
        max_side_px=256,
        max_pixels=128 * 128,
        max_steps=50,
        max_images=4,
        max_sequence_length=128,
        max_reference_images=2,
        max_controls=1,
    ),
    bucket_fields=("width", "height", "max_sequence_length"),
    fingerprint="stand-in",
)


VIDEO = SPEC.model_copy(
    update={
        "name": "wan-demo",
        "family": "wan",
        "tasks": ("text-to-video", "image-to-video"),
        "fields": SPEC.fields - {"sigmas", "strength", "hires", "reference_images", "control"}
        | {"num_frames", "fps", "last_image", "scheduler", "control_video", "mask_video"},
        "defaults": {**SPEC.defaults, "num_frames": 5, "fps": 8},
        "task_defaults": {},
        "limits": SPEC.limits.model_copy(update={"max_frames": 19, "frames_multiple": 4}),
        "schedulers": {
            "unipc": {
                "flow_shift": Option(kind="number", minimum=0),
                "solver_order": Option(kind="integer", minimum=1, maximum=3),
                "solver_type": Option(kind="text", choices=("bh1", "bh2")),
                "lower_order_final": Option(kind="boolean"),
                "use_karras_sigmas": Option(kind="boolean", excludes=("use_beta_sigmas",)),
                "use_beta_sigmas": Option(kind="boolean", excludes=("use_karras_sigmas",)),
            },
            "euler": {},
        },
        "bucket_fields": ("width", "height", "num_frames"),
    }
)


def clip(file_format: str, frames: int, fps: int = VIDEO.defaults["fps"]) -> bytes:
    """A small video: a red square that moves right on blue."""
    return encode_video(_frames(frames), file_format, fps)


def _frames(frames: int) -> np.ndarray:
    pixels = np.zeros((frames, SIZE_PX, SIZE_PX, 3), np.uint8)
    pixels[..., 2] = 255
    for number in range(frames):
        pixels[number, 8:16, number : number + 8] = (255, 0, 0)
    return pixels


def picture(file_format: str = "PNG", size: tuple[int, int] = (SIZE_PX, SIZE_PX)) -> bytes:
    """A small image file: red on the left, blue on the right."""
    image = Image.new("RGB", size, "red")
    image.paste("blue", (size[0] // 2, 0, *size))
    file = io.BytesIO()
    image.save(file, file_format)
    return file.getvalue()


class StandIn:
    """Context manager that runs claimed jobs one after the other.

    Every job waits for `may_finish` after its last step. `failure`, if set, fails every job.
    """

    def __init__(
        self, queue: Queue, store: Store, spec: ModelSpec = SPEC, pool: str = POOL
    ) -> None:
        self.queue = queue
        self.pool = pool
        self.store = store
        self.spec = spec
        self.may_finish = asyncio.Event()
        self.may_finish.set()
        self.failure: JobError | None = None
        self.received: list[Job] = []
        self.has_claimed = asyncio.Event()

    async def __aenter__(self) -> Self:
        await self.queue.register(self.pool, self.spec, ready=True)
        self._tasks = [asyncio.create_task(work()) for work in (self._serve, self._beat)]
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await cancel(*self._tasks)
        for task in self._tasks:
            if not task.cancelled():
                task.result()

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(HEARTBEAT_S)
            await self.queue.register(self.pool, self.spec, ready=True)

    async def _serve(self) -> None:
        while True:
            for claim in await self.queue.claim(self.pool, self.spec.name, 1, wait_s=5):
                self.received.append(claim.job)
                self.has_claimed.set()
                await self._run(claim)

    async def _run(self, claim: Claim) -> None:
        steps = claim.job.steps
        for step in range(1, steps + 1):
            await self.queue.progress(claim, step, steps, "data:image/png;base64,AA==")
            await self.stepped()
        await self.may_finish.wait()
        if self.failure:
            await self.queue.fail(claim, self.failure)
            return
        request = claim.job.request
        in_parts = request["output"]["format"] == "png" and request.get("num_frames", 1)
        count = claim.job.images * (in_parts or 1)
        outputs = [await self._output(claim, index) for index in range(count)]
        if claim.job.stop_at_step:
            await self._keep_drafts(claim)
        usage = Usage(steps=steps, device_seconds=0.1)
        if not await self.queue.finish(claim, outputs, usage):
            await self.store.delete([f"outputs/{claim.job.id}/"])

    async def stepped(self) -> None:
        """Hook after each step, which may delay the job. This implementation returns at once."""

    async def _keep_drafts(self, claim: Claim) -> None:
        job, step, drafts = claim.job, claim.job.stop_at_step or 0, []
        for number in range(job.images):
            key = snapshot_key(job.id, claim.fence, number, step)
            await self.store.put(key, b"a state", "application/octet-stream")
            drafts.append(
                Snapshot(index=number, step=step, fence=claim.fence, key=key, bytes=len(b"a state"))
            )
        await self.queue.snapshot(claim, drafts)

    async def _output(self, claim: Claim, index: int) -> Output:
        request = claim.job.request
        chosen = request["output"]["format"]
        moves = chosen in ("mp4", "webm", "gif")
        frames = request["num_frames"] if moves else None
        data = clip(chosen, frames, request["fps"]) if moves else picture(chosen.upper())
        content_type = MEDIA_TYPES[chosen]
        key = output_key(claim.job.id, claim.fence, index, content_type)
        await self.store.put(key, data, content_type)
        previews = sheets_of(_frames(frames)) if moves else {}
        for name, small in previews.items():
            await self.store.put(sibling_key(key, name), small, "image/webp")
        return Output(
            index=index,
            key=key,
            content_type=content_type,
            width=SIZE_PX,
            height=SIZE_PX,
            seed=request["seed"] + index,
            sha256=hashlib.sha256(data).hexdigest(),
            bytes=len(data),
            beside_bytes=sum(map(len, previews.values())),
            num_frames=frames,
            fps=request["fps"] if moves else None,
            duration_s=frames / request["fps"] if moves else None,
        )
