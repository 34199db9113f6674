"""Run of one claimed job in the pool, from its request to its files."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections.abc import Iterator, Mapping
from functools import partial

from models.interface.pipeline import Prepared, RequestError
from models.spec.request_images import image_values
from service.jobs.model.job import Job, JobError, JobState, Output, Snapshot, Stage, Usage, Warned
from service.jobs.queue import Claim, Queue
from service.jobs.storage.errors import NotStored, StoreError
from service.jobs.storage.object_store import Store, beside_key, job_folders, output_key
from service.recipes.recipe import Recipe, recipe_of
from service.safety.verdict import SafetyAbsent
from service.tracing import spans
from service.tracing.span import NOTHING
from workers.engine.adapters import LoraGone
from workers.engine.engine import Engine, EngineOutput
from workers.engine.errors import EngineDied, GenerationFailed
from workers.engine.row import Row
from workers.engine.stage_timing import Turns
from workers.media import sheets
from workers.media.marking import Marking
from workers.media.outputs import File, count, files
from workers.media.sound import Sound
from workers.pool import metrics
from workers.pool.capacity import Places
from workers.pool.eta import Eta
from workers.pool.output_checks import OutputCheck
from workers.pool.progress import Progress
from workers.pool.snapshots import Snapshots
from workers.pool.usage import Bill
from workers.retry import Patience, until_reached

log = logging.getLogger(__name__)

CLIENTS_OWN = (RequestError, LoraGone)
"""Causes of a failure that are the client's: the log needs no traceback of them."""


class JobRunner:
    """`run` ends when the queue has taken the job's end, or knows better. Cancel it to stop."""

    def __init__(
        self,
        claim: Claim,
        engine: Engine,
        queue: Queue,
        store: Store,
        patience: Patience,
        progress: Progress,
        snapshots: Snapshots,
        places: Places,
        bill: Bill,
        marking: Marking,
        check: OutputCheck,
    ) -> None:
        self.claim = claim
        self.bill = bill
        self._check = check
        self._job = claim.job
        self._marking = marking
        self._engine = engine
        self._queue = queue
        self._store = store
        self._patience = patience
        self._progress = progress
        self._snapshots = snapshots
        self._paces: dict[int, Eta] = {}
        self._storing: set[asyncio.Task[None]] = set()
        self._stored: list[str] = []
        """Keys of files that are stored, or about to be."""
        self._warning: asyncio.Task[bool] | None = None
        """Tells the queue of the request's warnings."""
        self._begun_at = time.monotonic()
        self._is_aside = False
        self._waiting: set[int] = set()
        """Images whose programs are compiled, or whose adapters are loaded."""
        self.may_compile = not engine.costs.is_compiled(claim.job.bucket)
        """Whether it needs programs that may have to be compiled."""
        self.places = places
        self.span = NOTHING
        """Span of this attempt."""
        self.is_ending = False
        """The queue is being told the end, and will answer whether the claim was still ours."""

    async def run(self) -> str:
        """Do the job; return its outcome: succeeded, failed, queued (again), or lost.

        A job whose engine dies is lost, as with a pool that dies: its lease lapses, and it goes on
        alone elsewhere. Given back as tried, it would take its neighbours along again and again.
        """
        try:
            outputs, usage = await self._make()
        except GenerationFailed as failure:
            return await self._fail(failure.error, failure.__cause__)
        except EngineDied as error:
            log.warning("job %s is left to another pool: %s", self._job.id, error)
            return "lost"
        except StoreError as error:
            retry = not isinstance(error, NotStored)
            return await self._fail(JobError(code="store", message=str(error)), retry=retry)
        except SafetyAbsent as error:
            absent = JobError(code="safety_unavailable", message=str(error))
            return await self._fail(absent, retry=True)
        except Exception as error:
            log.exception("job %s failed by a mistake of ours", self._job.id)
            message = f"{type(error).__name__} in the pool; its log has the whole error"
            return await self._fail(JobError(code="internal", message=message), retry=True)
        return await self._finish(outputs, usage)

    @property
    def seconds_left(self) -> float | None:
        """Seconds left of its steps, by their pace or as predicted; None: unknown."""
        left = [pace.seconds_left for pace in self._paces.values()]
        known = [one for one in left if one is not None]
        if known or self._job.run_s is None:
            return max(known, default=None)
        return self._job.run_s * (1 - self._job.step / max(1, self._job.steps))

    def may_yield(self, quantum_s: float) -> bool:
        """Return whether it may be preempted.

        It has run for that long, which pays for it, and not as one that a pool has died with.
        """
        has_run = time.monotonic() - self._begun_at >= quantum_s
        is_free = not (self.is_ending or self._is_aside or self._job.deaths)
        return has_run and is_free and self._snapshots.pay_aside

    def ends_within(self, seconds: float) -> bool:
        """Return whether it may, by what is known of its pace."""
        if self._is_aside or self._waiting:
            return False  # how long compiling takes, and what comes after it, nobody knows
        left = [pace.seconds_left for pace in self._paces.values()]
        return max((one for one in left if one is not None), default=0) <= seconds

    async def put_aside(self, seconds: float) -> None:
        """Stop its steps, and keep what is done in the time that there is. Cancel it then."""
        self._is_aside = True
        self.span.event("put aside")
        try:
            async with asyncio.timeout(seconds):
                await self._snapshots.put_aside(seconds / 2)
        except TimeoutError:
            log.warning("what job %s has done last is not kept: no time", self._job.id)

    async def put_aside_whole(self, seconds: float) -> bool:
        """Put aside only if all can be kept, and go on otherwise; return whether it was."""
        await self.put_aside(seconds)
        if self._snapshots.are_complete and not self.is_ending:
            return True
        self._snapshots.go_on()
        self.span.event("goes on")
        self._is_aside = False
        return False

    async def _make(self) -> tuple[list[Output], Usage]:
        """Make all images, side by side; the first that fails stops the others."""
        telling = asyncio.create_task(self._progress.run())
        try:
            images = await self._read_images()
            async with asyncio.TaskGroup() as group:
                tasks = [
                    group.create_task(self._make_one(number, images))
                    for number in range(self._job.images)
                ]
            self._progress.close()
            await telling
            if self._warning:
                await self._warning
        except ExceptionGroup as failures:
            first = failures.exceptions[0]
            raise first from first.__cause__
        finally:
            telling.cancel()
            if self._warning:
                self._warning.cancel()
        made = [task.result() for task in tasks]
        return [output for one in made for output in one.outputs], self._usage(made)

    async def _read_images(self) -> dict[str, bytes]:
        """The request's images by path."""
        keys = image_values(self._job.request)
        until_stored = self._patience.until_stored
        return {path: await until_stored(self._store.get, key) for path, key in keys.items()}

    async def _make_one(self, number: int, images: Mapping[str, bytes]) -> Snapshot:
        """Return one image with its files, made here or by an earlier claim."""
        made = await self._snapshots.finished(number)
        if made is None:
            made = await self._finish_one(number, images)
            if self._job.images > 1:
                await self._snapshots.finish(made)
        self.places.step(number, 0)
        self._paces.pop(number, None)
        return made

    async def _finish_one(self, number: int, images: Mapping[str, bytes]) -> Snapshot:
        seed = self._job.request["seed"] + number
        fields = {**self._job.request, "seed": seed, "num_images": 1}
        if self._job.loras:
            fields["loras"] = [lora.model_dump(mode="json") for lora in self._job.loras]
        else:
            fields.pop("loras", None)

        def on_step(row: Row) -> None:
            self.places.step(number, row.image_steps - row.image_done)
            if number not in self._paces or self._paces[number].row is not row:
                self._paces[number] = Eta(row)
            self._paces[number].step()
            self.bill.step(number, row)
            self._snapshots.step(number, row)
            self._progress.step(number, row)

        on_stage = partial(self._stage, number)
        with spans.saying({"atelier.image": number}):
            begin = await self._snapshots.begin(number, fields)
            picture = await self._engine.generate(
                fields,
                images,
                on_step,
                begin,
                self._warn,
                on_stage,
                self.bill.compile,
                self._job.tenant,
            )
            self.bill.finish(number, picture.own_seconds)
            on_stage("storing")
            await self._check(self._job, number, picture.pixels)
            recipe = await asyncio.to_thread(self._recipe, seed, images)
            outputs = await self._save(number, recipe, seed, picture)
        return Snapshot(
            index=number,
            step=picture.steps,
            fence=self.claim.fence,
            device_seconds=picture.device_seconds,
            outputs=tuple(outputs),
        )

    def _warn(self, prepared: Prepared) -> None:
        """Report what of the request has no effect; once, since all images have the same."""
        known = self._job.warnings
        found = (Warned(field=one.field, message=one.message) for one in prepared.warnings)
        new = [warning for warning in found if warning not in known]
        if new and self._warning is None:
            warn = until_reached(self._queue.warn, self.claim, [*known, *new])
            self._warning = asyncio.create_task(warn)

    def _stage(self, number: int, stage: Stage, expected_s: float | None = None) -> None:
        self._progress.stage(number, stage, expected_s)
        if stage in ("compiling", "loading_adapters") and number not in self._waiting:
            self._waiting.add(number)
            self.places.wait(number)
        if stage == "compiling":
            self.may_compile = True  # also of a bucket that is at hand: by another scheduler, say
        elif stage == "denoising":
            self._begin_steps(number)

    def _begin_steps(self, number: int) -> None:
        if number in self._waiting:
            self._waiting.remove(number)
            self.places.come_back(number)
        if self.may_compile:
            self.may_compile = False
            self._queue.look_again(self._job.model)

    def _recipe(self, seed: int, images: Mapping[str, bytes]) -> Recipe:
        """Return what an image's files say of themselves."""
        job, spec = self._job, self._engine.pipeline.spec
        digests = {name: hashlib.sha256(data).hexdigest() for name, data in images.items()}
        return recipe_of(job.request, seed, spec, job.loras, digests)

    async def _save(
        self, number: int, recipe: Recipe, seed: int, made: EngineOutput
    ) -> list[Output]:
        """Encode and store, one file after the other: beside the steps, and in little memory."""
        rate_hz = self._engine.pipeline.spec.sound_hz
        sound = None if made.sound is None or not rate_hz else Sound(made.sound, rate_hz)
        encoding = files(made.pixels, self._job.request, recipe, self._marking, sound)
        turns = Turns(self._job.model)
        index = number * count(made.pixels, self._job.request)
        outputs: list[Output] = []
        with turns:
            while file := await self._next_file(encoding, turns):
                with turns.of("store"):
                    outputs.append(await self._store_file(index + len(outputs), seed, file))
        return outputs

    async def _next_file(self, encoding: Iterator[File], turns: Turns) -> File | None:
        with turns.of("media"):
            return await asyncio.to_thread(next, encoding, None)

    async def _store_file(self, index: int, seed: int, file: File) -> Output:
        key = output_key(self._job.id, self.claim.fence, index, file.content_type)
        await self._patience.until_stored(self._put, key, file.data, file.content_type)
        for name, data in file.beside.items():
            small = beside_key(key, name)
            await self._patience.until_stored(self._put, small, data, sheets.CONTENT_TYPE)
        return Output(
            index=index,
            key=key,
            content_type=file.content_type,
            width=file.width,
            height=file.height,
            seed=seed,
            sha256=hashlib.sha256(file.data).hexdigest(),
            pixels_sha256=file.pixels_sha256,
            bytes=len(file.data),
            num_frames=file.num_frames,
            fps=file.fps,
            duration_s=file.duration_s,
            sound_hz=file.sound_hz,
        )

    async def _put(self, key: str, data: bytes, content_type: str) -> None:
        """Store to the end, even where the work is stopped: half a write can't be called back."""
        self._stored.append(key)
        put = self._store.put(key, data, content_type)
        storing = asyncio.create_task(put)
        self._storing.add(storing)
        storing.add_done_callback(self._storing.discard)
        await asyncio.shield(storing)

    async def clear_up(self) -> None:
        """Delete what a job that is not ours to end leaves behind.

        Of one that has been deleted meanwhile everything; of another what was stored here and
        belongs to none of its finished images.

        Raises: StoreError.
        """
        await asyncio.gather(*self._storing, return_exceptions=True)
        job = await until_reached(self._queue.get, self._job.id)
        await self._store.delete(job_folders(self._job.id) if job is None else self._unknown(job))

    def _unknown(self, job: Job) -> list[str]:
        images = [job.outputs, *(snapshot.outputs for snapshot in job.snapshots)]
        known = tuple(output.key for outputs in images for output in outputs)
        return [key for key in self._stored if not key.startswith(known)]

    def _usage(self, made: list[Snapshot]) -> Usage:
        spent = self.bill.final
        waited_s = (self._job.started_at or self._job.created_at) - self._job.created_at
        return Usage(
            steps=sum(one.step for one in made),
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
            return JobState.SUCCEEDED
        log.info("job %s is no longer ours: its files are deleted", self._job.id)
        try:
            await self.clear_up()
        except StoreError as error:
            log.warning("files of %s stay until it leaves: %s", self._job.id, error)
        return "lost"

    async def _fail(
        self, error: JobError, cause: BaseException | None = None, *, retry: bool = False
    ) -> str:
        whole = None if isinstance(cause, CLIENTS_OWN) else cause
        said = (self._job.id, error.code, error.message)
        log.warning("job %s failed: %s: %s", *said, exc_info=whole)
        self.is_ending = True
        self.span.fail(error.code)
        with spans.span("finish"):
            spent = self.bill.spent
            fail = partial(self._queue.fail, self.claim, error, retry=retry, spent=spent)
            state = await until_reached(fail)
        return state or "lost"
