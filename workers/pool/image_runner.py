"""Execution of one image of a job: generate, check, store, and report its progress."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from models.interface.pipeline import PreparedRow
from models.spec.request_images import with_images
from service.jobs.model.job import STOP_AT_STEP, Snapshot, Stage
from service.recipes.recipe import Recipe, recipe_of, step_digests
from service.tracing import spans
from workers.engine.generation import EngineOutput, ImageRequest
from workers.engine.observer import Observer
from workers.engine.passes import STEPS
from workers.engine.row import ImageRow
from workers.engine.snapshot import RowSnapshot
from workers.pool.job_context import JobContext
from workers.pool.output_files import OutputFiles
from workers.pool.quality_samples import ServedOutput
from workers.programs.compilation import Compilation


@dataclass
class Eta:
    """Estimate of an image's remaining wall-clock time, including delays by other images."""

    row: ImageRow
    """Row with its first step in this worker done."""
    first: int = field(init=False)
    begun_at: float = field(init=False)
    latest: float = field(init=False)

    def __post_init__(self) -> None:
        self.first = self.row.done
        self.begun_at = self.latest = time.monotonic()

    def step(self) -> None:
        """Record the time at which the image's step has ended."""
        self.latest = time.monotonic()

    @property
    def seconds_left(self) -> float | None:
        """Estimated seconds of the image's remaining steps; None: too few are done."""
        done = self.row.done - self.first
        if not done:
            return None
        left = self.row.to_do - self.row.done + self.row.after_work
        return (self.latest - self.begun_at) / done * left


class JobEvents(Protocol):
    """Events of one image that concern its whole job."""

    def on_prepared(self, prepared: PreparedRow) -> None:
        """Receive an image's prepared request with its warnings."""

    def on_compiling(self) -> None:
        """Record that the job waits for programs to compile."""

    def on_denoising(self) -> None:
        """Record that the job's programs are compiled."""


class ImageRunner(Observer):
    """Runner of one image, which also observes the image's generation."""

    def __init__(
        self, context: JobContext, files: OutputFiles, events: JobEvents, number: int
    ) -> None:
        self.pace: Eta | None = None
        """Estimate of the remaining steps; None: no step has run, or the image is finished."""
        self.is_waiting = False
        """Whether the image waits for programs, adapters or another job, without a slot."""
        self._context = context
        self._files = files
        self._events = events
        self._number = number
        self._images: Mapping[str, bytes] = {}
        self._digests: Mapping[str, str] = {}
        self._regenerated_s = 0.0
        """Device-seconds of a draft that was generated again."""
        self._skipped = 0
        """Steps of the schedule that a draft with fewer steps has replaced."""

    async def run(self, images: Mapping[str, bytes], digests: Mapping[str, str]) -> Snapshot:
        """Return the image's snapshot with its files, generated now or by an earlier claim.

        Args:
            images: input images of the request by path, with videos replaced by their frames.
            digests: SHA-256 of the input images as sent, by path.

        Raises: GenerationFailed, EngineFailed, StoreError, NoVerdict.
        """
        self._images, self._digests = images, digests
        job, snapshots = self._context.job, self._context.snapshots
        snapshot = await snapshots.finished(self._number)
        if snapshot is None:
            with spans.with_attributes({"atelier.image": self._number}):
                if job.stop_at_step:
                    snapshot = await self._draft(job.stop_at_step)
                else:
                    snapshot = await self._finish()
            if job.images > 1 and not job.stop_at_step:
                await snapshots.finish(snapshot)
        self._context.reservation.step(self._number, 0)
        self.pace = None
        return snapshot

    async def _draft(self, stop_at: int) -> Snapshot:
        """Generate the draft of one image of an audition, and store its preview."""
        context, number, fields = self._context, self._number, self._fields
        begin = await context.snapshots.begin(number, self._named(fields))
        request = ImageRequest(fields, self._images, context.job.tenant, begin)
        draft = await context.worker.engine.draft(request, stop_at, self)
        preview, seed = draft.preview, fields["seed"]
        context.bill.finish(number, preview.claim_seconds)
        self.on_stage("storing")
        outputs = await self._files.save(number, self._recipe(seed, preview), seed, preview)
        return await context.snapshots.draft(number, draft.row, outputs)

    async def _finish(self) -> Snapshot:
        """Generate the image, check it, and store its files."""
        context, number, fields = self._context, self._number, self._fields
        worker, job, seed = context.worker, context.job, fields["seed"]
        begin = await self._begin(fields)
        generated = await worker.engine.generate(fields, self._images, self, begin, job.tenant)
        context.bill.finish(number, generated.claim_seconds + self._regenerated_s)
        self.on_stage("storing")
        recipe = self._recipe(seed, generated)
        outputs = await self._files.save(number, recipe, seed, generated)
        if not job.deaths:  # it may crash a worker again
            worker.quality_samples.offer(
                ServedOutput(fields, self._images, job.tenant, generated.pixels)
            )
        return Snapshot(
            index=number,
            step=generated.steps - self._skipped,
            fence=context.claim.fence,
            device_seconds=generated.device_seconds,
            outputs=tuple(outputs),
        )

    async def _begin(self, fields: dict[str, Any]) -> RowSnapshot | None:
        """Return the snapshot that the image resumes from; None: start at the first step.

        A missing draft of another request is generated again, because the image depends on it.
        """
        drafted, snapshots = self._context.job.drafted, self._context.snapshots
        if drafted is None:
            return await snapshots.begin(self._number, self._named(fields))
        draft_fields = drafted.of(self._number, fields["seed"])
        earlier = {
            name: value
            for name, value in (fields | draft_fields).items()
            if name not in draft_fields or draft_fields[name] is not None
        }
        engine, position, observer = self._context.worker.engine, None, DraftObserver(self)
        if STEPS in draft_fields:
            request = self._request(fields)
            position = await engine.position(request, earlier, drafted.steps, observer)
            self._skipped = position - drafted.steps
        names = self._named(fields), self._named(earlier)
        begin = await snapshots.begin(self._number, *names, position)
        if begin is None:
            draft = await engine.draft(self._request(earlier), drafted.steps, observer)
            begin = replace(await engine.take_snapshot(draft.row), device_seconds=0.0)
            begin = begin.at_step(position)
            self._regenerated_s = draft.preview.claim_seconds
        return begin

    def _request(self, fields: dict[str, Any]) -> ImageRequest:
        return ImageRequest(fields, self._images, self._context.job.tenant)

    @property
    def _fields(self) -> dict[str, Any]:
        """Resolved request of the image."""
        job = self._context.job
        fields = {**job.request, "seed": job.seed_of(self._number), "num_images": 1}
        fields.pop(STOP_AT_STEP, None)
        if job.loras:
            fields["loras"] = [lora.model_dump(mode="json") for lora in job.loras]
        else:
            fields.pop("loras", None)
        return fields

    def _named(self, fields: dict[str, Any]) -> dict[str, Any]:
        """Return a request with digests of its input images, comparable across jobs."""
        return with_images(fields, lambda path, _: self._digests[path])

    def _recipe(self, seed: int, generated: EngineOutput) -> Recipe:
        """Return the recipe that the image's files contain."""
        job, spec = self._context.job, self._context.worker.engine.pipeline.spec
        recipe = recipe_of(job.request, seed, spec, job.loras, self._digests)
        drafted = job.drafted.of(self._number, seed) or None if job.drafted else None
        is_complete = len(generated.digests) == generated.steps  # not from an earlier version
        digests = generated.digests if is_complete and spec.batching.mode == "exact" else ()
        return recipe.model_copy(update={"drafted": drafted, "step_digests": step_digests(digests)})

    def on_prepared(self, prepared: PreparedRow) -> None:
        """Pass the request's warnings on to the job."""
        self._events.on_prepared(prepared)

    def on_inputs_read(self, cpu_s: float) -> None:
        """Charge the CPU time of reading input images to the claim."""
        self._context.bill.read_inputs(cpu_s)

    def on_compile(self, compilation: Compilation) -> None:
        """Charge the compilation to the job's claim."""
        self._context.bill.compile(compilation)

    def on_stage(self, stage: Stage, expected_s: float | None = None) -> None:
        """Report the image's stage; free its slot while it waits for programs or adapters."""
        self._context.progress.stage(self._number, stage, expected_s)
        if stage in ("compiling", "loading_adapters"):
            self.free_slot()
        if stage == "compiling":
            self._events.on_compiling()
        elif stage == "denoising":
            self.take_slot()
            self._events.on_denoising()

    def on_step(self, row: ImageRow) -> None:
        """Record a step in the slots, the estimate, the usage, the snapshots and the progress."""
        context, number = self._context, self._number
        context.reservation.step(number, row.image_steps - row.image_done)
        if self.pace is None or self.pace.row is not row:
            self.pace = Eta(row)
        self.pace.step()
        context.bill.step(number, row)
        context.snapshots.step(number, row)
        context.progress.step(number, row)

    def free_slot(self) -> None:
        """Free the image's slot while it waits. Idempotent."""
        if not self.is_waiting:
            self.is_waiting = True
            self._context.reservation.wait(self._number)

    def take_slot(self) -> None:
        """Take a slot again after a wait. Idempotent."""
        if self.is_waiting:
            self.is_waiting = False
            self._context.reservation.reacquire(self._number)

    def charge_step(self, row: ImageRow) -> None:
        """Record a step's device time only, without progress."""
        self._context.bill.step(self._number, row)


class DraftObserver(Observer):
    """Observer of work on an image's draft: inputs and steps are charged, not reported."""

    def __init__(self, image: ImageRunner) -> None:
        self._image = image

    def on_inputs_read(self, cpu_s: float) -> None:
        """Charge the CPU time of reading input images to the claim."""
        self._image.on_inputs_read(cpu_s)

    def on_compile(self, compilation: Compilation) -> None:
        """Charge the compilation to the job's claim."""
        self._image.on_compile(compilation)

    def on_stage(self, stage: Stage, expected_s: float | None = None) -> None:
        """Report the draft's stage as the image's."""
        self._image.on_stage(stage, expected_s)

    def on_step(self, row: ImageRow) -> None:
        """Charge the step of the draft to the job's claim."""
        self._image.charge_step(row)
