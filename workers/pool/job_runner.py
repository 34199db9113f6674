"""Execution of one claimed job in the worker, from its request to its recorded result."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial

from opentelemetry.trace import INVALID_SPAN, Span

from models.interface.pipeline import PreparedRow
from models.spec.request import RequestError
from models.spec.request_images import image_values
from service.jobs.model.job import FieldWarning, JobError, JobState, Output, Snapshot, Usage
from service.jobs.storage.errors import NotStored, StoreError
from service.jobs.storage.object_store import small_images_of
from service.safety.verdict import NoVerdict
from service.tracing import spans
from workers.engine.adapters import LoraGone
from workers.engine.errors import EngineFailed, GenerationFailed, generation_errors
from workers.pool import equal_job, metrics
from workers.pool.image_runner import ImageRunner
from workers.pool.job_context import JobContext
from workers.pool.output_files import OutputFiles
from workers.retry import until_reached

log = logging.getLogger(__name__)

CLIENT_CAUSES = (RequestError, LoraGone)
"""Causes of failures that the client is responsible for; logged without a traceback."""


def digests_of(images: Mapping[str, bytes]) -> dict[str, str]:
    """Return the SHA-256 of each image, by path."""
    return {path: hashlib.sha256(data).hexdigest() for path, data in images.items()}


class JobRunner:
    """Runner of one claimed job.

    `run` returns once the queue has recorded the result, or has rejected it. Cancel the task to
    stop.
    """

    def __init__(self, context: JobContext) -> None:
        self.claim = context.claim
        self.bill = context.bill
        self.reservation = context.reservation
        self._context = context
        self._worker = context.worker
        self._engine = context.worker.engine
        self._queue = context.worker.queue
        self._snapshots = context.snapshots
        self._job = context.job
        self._files = OutputFiles(context)
        self._images = [
            ImageRunner(context, self._files, self, number) for number in range(self._job.images)
        ]
        self._saved_s: float | None = None
        """Device-seconds that the copied outputs took to generate; None: nothing is copied."""
        self._warning: asyncio.Task[bool] | None = None
        """Task that sends the request's warnings to the queue."""
        self._begun_at = time.monotonic()
        self._is_suspended = False
        buckets = (bucket for bucket, _ in self._job.passes())
        self.may_compile = not all(map(self._engine.costs.is_compiled, buckets))
        """Whether the job needs programs that may have to be compiled."""
        self.span: Span = INVALID_SPAN
        """Trace span of this attempt at the job."""
        self.is_ending = False
        """Whether the result is being sent to the queue, which then reports whether the claim was
        valid."""

    async def run(self) -> str:
        """Run the job; return its outcome: succeeded, paused, failed, queued (again), or lost.

        If the engine fails, the job is lost, as in a crash: its lease expires, and it then runs
        alone in another worker. Releasing it as a normal attempt would let it crash other jobs
        repeatedly.
        """
        try:
            outputs, usage = await self._make()
        except GenerationFailed as failure:
            return await self._fail(failure.error, failure.__cause__)
        except EngineFailed as error:
            log.warning("the engine failed, another worker takes job %s: %s", self._job.id, error)
            return "lost"
        except StoreError as error:
            retry = not isinstance(error, NotStored)
            return await self._fail(JobError(code="store", message=str(error)), retry=retry)
        except NoVerdict as error:
            absent = JobError(code="safety_unavailable", message=str(error))
            return await self._fail(absent, retry=True)
        except Exception as error:
            log.exception("job %s failed with an internal error", self._job.id)
            message = f"{type(error).__name__} in the pool; its log has the whole error"
            return await self._fail(JobError(code="internal", message=message), retry=True)
        return await self._finish(outputs, usage)

    @property
    def seconds_left(self) -> float | None:
        """Estimated seconds of the job's remaining steps, by pace or prediction; None: unknown."""
        estimates = self._estimates
        if estimates or self._job.run_s is None:
            return max(estimates, default=None)
        return self._job.run_s * (1 - self._job.step / max(1, self._job.steps))

    def may_yield(self, quantum_s: float) -> bool:
        """Return whether the job may be preempted.

        It must have run for `quantum_s`, which pays for the preemption, and no worker may have
        crashed while running it.
        """
        has_run = time.monotonic() - self._begun_at >= quantum_s
        is_free = not (self.is_ending or self._is_suspended or self._job.deaths)
        return has_run and is_free and self._snapshots.pay_suspension

    def ends_within(self, seconds: float) -> bool:
        """Return whether the job may end within that time, by its pace."""
        if self._is_suspended or any(image.is_waiting for image in self._images):
            return False  # the time of compiling and of later steps is unknown
        return max(self._estimates, default=0) <= seconds

    @property
    def _estimates(self) -> list[float]:
        """Return estimates of the remaining seconds of images whose pace is known."""
        paces = [image.pace for image in self._images if image.pace is not None]
        return [pace.seconds_left for pace in paces if pace.seconds_left is not None]

    async def suspend(self, seconds: float) -> None:
        """Pause the job's steps and store their state within the given time; then cancel it."""
        self._is_suspended = True
        self.span.add_event("put aside")
        try:
            async with asyncio.timeout(seconds):
                await self._snapshots.suspend(seconds / 2)
        except TimeoutError:
            log.warning("the last steps of job %s are not stored: the time is over", self._job.id)

    async def suspend_if_complete(self, seconds: float) -> bool:
        """Suspend the job if its complete state can be stored, else resume; True if suspended."""
        await self.suspend(seconds)
        if self._snapshots.are_complete and not self.is_ending:
            return True
        self._snapshots.resume()
        self.span.add_event("goes on")
        self._is_suspended = False
        return False

    async def _make(self) -> tuple[list[Output], Usage]:
        """Generate all images of the job concurrently; the first failure cancels the others."""
        has_run = self._job.snapshots or self._job.deaths  # in an earlier claim
        if self._job.awaited and not has_run and (copied := await self._copied()):
            return copied, self._usage([])
        reporting = asyncio.create_task(self._context.progress.run())
        try:
            inputs, digests = await self._inputs()
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(image.run(inputs, digests)) for image in self._images]
            self._context.progress.close()
            await reporting
            if self._warning:
                await self._warning
        except ExceptionGroup as failures:
            first = failures.exceptions[0]
            raise first from first.__cause__
        finally:
            reporting.cancel()
            if self._warning:
                self._warning.cancel()
        snapshots = [task.result() for task in tasks]
        outputs = [output for snapshot in snapshots for output in snapshot.outputs]
        return outputs, self._usage(snapshots)

    async def _copied(self) -> list[Output]:
        """Return the images of an equal job; empty if this job must generate its own.

        Raises: StoreError: they cannot be stored.
        """
        store, patience = self._worker.store, self._worker.patience
        with self._without_slots():
            other = await equal_job.awaited_result(self._queue, self._job)

        async def read(key: str) -> bytes:
            return await patience.until_stored(store.get, key)

        copied: list[Output] = []
        for output in other.outputs if other else ():
            data = await equal_job.read(store, patience, output)
            if data is None:
                return []
            if self._job.encodes:
                encoded = await self._files.encode_again(output, data)
                if encoded is None:
                    return []
                copied.append(encoded)
                continue
            small_files = await small_images_of(read, output.key) if output.num_frames else {}
            key = await self._files.put(output.index, output.content_type, data, small_files)
            small_bytes = sum(map(len, small_files.values()))
            copied.append(output.model_copy(update={"key": key, "beside_bytes": small_bytes}))
        if other and copied:
            original = await until_reached(self._queue.original_job, other)
            self._saved_s = original.usage.device_seconds
        return copied

    @contextmanager
    def _without_slots(self) -> Iterator[None]:
        """Release the job's slots inside the context, while it waits for another job."""
        may_compile, self.may_compile = self.may_compile, False
        self._queue.wake_claims(self._job.model)
        for image in self._images:
            image.free_slot()
        try:
            yield
        finally:
            self.may_compile = may_compile
            for image in self._images:
                image.take_slot()

    async def _inputs(self) -> tuple[Mapping[str, bytes], dict[str, str]]:
        """Return the request's input images by path, videos as frames, and the images' digests."""
        until_stored, store = self._worker.patience.until_stored, self._worker.store
        keys = image_values(self._job.request)
        images = {path: await until_stored(store.get, key) for path, key in keys.items()}
        if not images:
            return images, {}
        digests = await asyncio.to_thread(digests_of, images)  # hashing may take long
        with generation_errors("reading the videos"), spans.span("videos"):
            spec = self._engine.pipeline.spec
            scaled = await self._worker.videos.scaled(images, self._job.request, spec)
        self.bill.read_inputs(scaled.cpu_s)
        return scaled.images, digests

    def on_prepared(self, prepared: PreparedRow) -> None:
        """Report warnings about fields without effect once, since all images have the same."""
        reported = self._job.warnings
        candidates = (
            FieldWarning(field=item.field, message=item.message) for item in prepared.warnings
        )
        new = [warning for warning in candidates if warning not in reported]
        if new and self._warning is None:
            warn = until_reached(self._queue.warn, self.claim, [*reported, *new])
            self._warning = asyncio.create_task(warn)

    def on_compiling(self) -> None:
        """Record that the job waits for programs, even in a bucket with compiled programs.

        Another solver, for example, needs further programs.
        """
        self.may_compile = True

    def on_denoising(self) -> None:
        """Let claims that this job's compilation has held back continue."""
        if self.may_compile:
            self.may_compile = False
            self._queue.wake_claims(self._job.model)

    async def clear_up(self) -> None:
        """Delete the stored files of a job whose claim is no longer valid. Raises: StoreError."""
        await self._files.clear_up()

    def _usage(self, snapshots: list[Snapshot]) -> Usage:
        spent = self.bill.final
        waited_s = (self._job.started_at or self._job.created_at) - self._job.created_at
        return Usage(
            steps=max(
                0, sum(snapshot.step for snapshot in snapshots) - (self._job.draft_steps or 0)
            ),
            device_seconds=spent.device_s,
            compile_seconds=spent.compile_s,
            queue_seconds=waited_s,
        )

    async def _finish(self, outputs: list[Output], usage: Usage) -> str:
        self.is_ending = True
        with spans.span("finish"):
            finished = await until_reached(self._queue.finish, self.claim, outputs, usage)
        if finished:
            metrics.finished(self._job, outputs, usage)
            if self._saved_s is not None:
                metrics.reuse.saved(self._job.model, self._saved_s)
            return JobState.PAUSED if self._job.stop_at_step else JobState.SUCCEEDED
        log.info("the claim of job %s is no longer valid: its files are deleted", self._job.id)
        try:
            await self.clear_up()
        except StoreError as error:
            log.warning("files of %s remain until the job expires: %s", self._job.id, error)
        return "lost"

    async def _fail(
        self, error: JobError, cause: BaseException | None = None, *, retry: bool = False
    ) -> str:
        logged_cause = None if isinstance(cause, CLIENT_CAUSES) else cause
        details = (self._job.id, error.code, error.message)
        log.warning("job %s failed: %s: %s", *details, exc_info=logged_cause)
        self.is_ending = True
        spans.fail(self.span, error.code)
        with spans.span("finish"):
            spent = self.bill.spent
            fail = partial(self._queue.fail, self.claim, error, retry=retry, spent=spent)
            state = await until_reached(fail)
        return state or "lost"
