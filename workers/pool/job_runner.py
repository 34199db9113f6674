"""Run of one claimed job in the pool, from its request to its files."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

from models.interface.pipeline import Prepared, RequestError
from models.spec.request_images import image_values, with_images
from service.jobs.model.job import (
    STOP_AT_STEP,
    Job,
    JobError,
    JobState,
    MadeBy,
    Output,
    Snapshot,
    Stage,
    Usage,
    Warned,
)
from service.jobs.queue import Claim, Queue
from service.jobs.storage import small_images
from service.jobs.storage.errors import NotStored, StoreError
from service.jobs.storage.object_store import Store, beside_key, job_folders, output_key
from service.recipes.recipe import Recipe, recipe_of
from service.safety.verdict import SafetyAbsent
from service.tracing import spans
from service.tracing.span import NOTHING
from workers.engine.adapters import LoraGone
from workers.engine.engine import Engine, EngineOutput
from workers.engine.errors import EngineDied, GenerationFailed, explained
from workers.engine.passes import Told
from workers.engine.row import Row
from workers.engine.snapshot import RowSnapshot
from workers.engine.stage_timing import Turns
from workers.media import sheets
from workers.media.marking import Marking
from workers.media.outputs import File, count, files, preview_fps
from workers.media.sent_videos import SentVideos
from workers.media.sound import Sound
from workers.pool import equal_job, metrics
from workers.pool.capacity import Places
from workers.pool.eta import Eta
from workers.pool.output_checks import OutputCheck
from workers.pool.progress import Progress
from workers.pool.receipts import Receipts, Served
from workers.pool.snapshots import Snapshots
from workers.pool.usage import Bill
from workers.retry import Patience, until_reached

log = logging.getLogger(__name__)

CLIENTS_OWN = (RequestError, LoraGone)
"""Causes of a failure that are the client's: the log needs no traceback of them."""


def digests_of(images: Mapping[str, bytes]) -> dict[str, str]:
    """Return the SHA-256 of each image, by path."""
    return {path: hashlib.sha256(data).hexdigest() for path, data in images.items()}


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
        receipts: Receipts,
        made_by: MadeBy,
        videos: SentVideos,
    ) -> None:
        self.claim = claim
        self.bill = bill
        self._check = check
        self._receipts = receipts
        self._made_by = made_by
        self._videos = videos
        self._job = claim.job
        self._marking = marking
        self._engine = engine
        self._queue = queue
        self._store = store
        self._patience = patience
        self._progress = progress
        self._snapshots = snapshots
        self._redrawn: dict[int, float] = {}
        """Device-seconds of drafts that were drawn again, by image."""
        self._saved_s: float | None = None
        """Device-seconds that drawing took what it has copies of; None: it has none."""
        self._digests: dict[str, str] = {}
        """SHA-256 of the request's images, by path."""
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
        buckets = (bucket for bucket, _ in claim.job.passes())
        self.may_compile = not all(map(engine.costs.is_compiled, buckets))
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
        has_run = self._job.snapshots or self._job.deaths  # in an earlier claim
        if self._job.awaits and not has_run and (copied := await self._copied()):
            return copied, self._usage([])
        telling = asyncio.create_task(self._progress.run())
        try:
            images = await self._read_images()
            if images:  # hashing them may take long
                self._digests = await asyncio.to_thread(digests_of, images)
                images = await self._with_frames(images)
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

    async def _copied(self) -> list[Output]:
        """Return copies of what an equal job has drawn; none where it is to be drawn here.

        Raises: StoreError: they cannot be stored.
        """
        with self._without_places():
            other = await equal_job.drawn_by(self._queue, self._job)
        copied: list[Output] = []
        for output in other.outputs if other else ():
            data = await equal_job.read(self._store, self._patience, output)
            if data is None:
                return []
            beside = await small_images.of(self._get, output.key) if output.num_frames else {}
            key = await self._put_file(output.index, output.content_type, data, beside)
            beside_bytes = sum(map(len, beside.values()))
            copied.append(output.model_copy(update={"key": key, "beside_bytes": beside_bytes}))
        if other and copied:
            drawer = await until_reached(self._queue.drawer, other)
            self._saved_s = drawer.usage.device_seconds
        return copied

    @contextmanager
    def _without_places(self) -> Iterator[None]:
        """Leave its places to others while it waits for another job's end, not for programs."""
        may_compile, self.may_compile = self.may_compile, False
        self._queue.look_again(self._job.model)
        for number in range(self._job.images):
            self._waiting.add(number)
            self.places.wait(number)
        try:
            yield
        finally:
            self.may_compile = may_compile
            for number in range(self._job.images):
                self._waiting.discard(number)
                self.places.come_back(number)

    async def _read_images(self) -> Mapping[str, bytes]:
        """The request's images by path."""
        keys = image_values(self._job.request)
        until_stored = self._patience.until_stored
        return {path: await until_stored(self._store.get, key) for path, key in keys.items()}

    async def _with_frames(self, images: Mapping[str, bytes]) -> Mapping[str, bytes]:
        """Return the request's images with frames in place of its videos."""
        with explained("reading the videos"), spans.span("videos"):
            spec = self._engine.pipeline.spec
            scaled = await self._videos.scaled(images, self._job.request, spec)
        self.bill.read_videos(scaled.cpu_s)
        return scaled.images

    async def _make_one(self, number: int, images: Mapping[str, bytes]) -> Snapshot:
        """Return one image with its files, made here or by an earlier claim."""
        made = await self._snapshots.finished(number)
        if made is None:
            if self._job.stop_at_step:
                made = await self._draft_one(number, images, self._job.stop_at_step)
            else:
                made = await self._finish_one(number, images)
                if self._job.images > 1:
                    await self._snapshots.finish(made)
        self.places.step(number, 0)
        self._paces.pop(number, None)
        return made

    def _fields_of(self, number: int) -> dict[str, Any]:
        """Return one image's resolved request."""
        fields = {**self._job.request, "seed": self._job.seed_of(number), "num_images": 1}
        fields.pop(STOP_AT_STEP, None)
        if self._job.loras:
            fields["loras"] = [lora.model_dump(mode="json") for lora in self._job.loras]
        else:
            fields.pop("loras", None)
        return fields

    def _on_step(self, number: int, row: Row) -> None:
        self.places.step(number, row.image_steps - row.image_done)
        if number not in self._paces or self._paces[number].row is not row:
            self._paces[number] = Eta(row)
        self._paces[number].step()
        self.bill.step(number, row)
        self._snapshots.step(number, row)
        self._progress.step(number, row)

    async def _draft_one(self, number: int, images: Mapping[str, bytes], stop_at: int) -> Snapshot:
        """Return the draft of an audition's image, with the file of its preview."""
        fields, on_stage = self._fields_of(number), partial(self._stage, number)
        with spans.saying({"atelier.image": number}):
            begin = await self._snapshots.begin(number, self._named(fields))
            on_step, tenant = partial(self._on_step, number), self._job.tenant
            told = Told(on_step, on_stage, self.bill.compile, tenant)
            draft = await self._engine.draft(fields, images, stop_at, told, begin, self._warn)
            shown = draft.preview
            self.bill.finish(number, shown.own_seconds)
            on_stage("storing")
            await self._check(self._job, number, shown.pixels)
            seed = fields["seed"]
            outputs = await self._save(number, self._recipe(number, seed), seed, shown)
            return await self._snapshots.draft(number, draft.row, outputs)

    def _named(self, fields: dict[str, Any]) -> dict[str, Any]:
        """Return an image's request with the digests of its images: of other jobs, too."""
        return with_images(fields, lambda path, _: self._digests[path])

    async def _begin(
        self, number: int, fields: dict[str, Any], images: Mapping[str, bytes]
    ) -> RowSnapshot | None:
        """Return what an image goes on from; None: nothing.

        A draft of another request that is gone is drawn again: the image would not be the same
        without it.
        """
        drafted = self._job.drafted
        if drafted is None:
            return await self._snapshots.begin(number, self._named(fields))
        others = drafted.of(number, fields["seed"])
        gone = {name for name, value in others.items() if value is None}
        before = {name: value for name, value in (fields | others).items() if name not in gone}
        begin = await self._snapshots.begin(number, self._named(fields), self._named(before))
        if begin is None:
            on_step, on_stage = partial(self.bill.step, number), partial(self._stage, number)
            told = Told(on_step, on_stage, self.bill.compile, self._job.tenant)
            draft = await self._engine.draft(before, images, drafted.steps, told)
            kept = await self._engine.take_snapshot(draft.row)
            begin = replace(kept, device_seconds=0.0)
            self._redrawn[number] = draft.preview.own_seconds
        return begin

    async def _finish_one(self, number: int, images: Mapping[str, bytes]) -> Snapshot:
        fields, on_stage = self._fields_of(number), partial(self._stage, number)
        seed = fields["seed"]
        with spans.saying({"atelier.image": number}):
            begin = await self._begin(number, fields, images)
            picture = await self._engine.generate(
                fields,
                images,
                partial(self._on_step, number),
                begin,
                self._warn,
                on_stage,
                self.bill.compile,
                self._job.tenant,
            )
            redrawn_s = self._redrawn.get(number, 0.0)
            self.bill.finish(number, picture.own_seconds + redrawn_s)
            on_stage("storing")
            await self._check(self._job, number, picture.pixels)
            outputs = await self._save(number, self._recipe(number, seed), seed, picture)
        if not self._job.deaths:  # or it might be the next pool's, too
            self._receipts.offer(Served(fields, images, self._job.tenant, picture.pixels))
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

    def _recipe(self, number: int, seed: int) -> Recipe:
        """Return what an image's files say of themselves."""
        job, spec = self._job, self._engine.pipeline.spec
        recipe = recipe_of(job.request, seed, spec, job.loras, self._digests)
        if job.drafted is None:
            return recipe
        return recipe.model_copy(update={"drafted": job.drafted.of(number, seed) or None})

    async def _save(
        self, number: int, recipe: Recipe, seed: int, made: EngineOutput
    ) -> list[Output]:
        """Encode and store, one file after the other: beside the steps, and in little memory."""
        rate_hz = self._engine.pipeline.spec.sound_hz
        sound = None if made.sound is None or not rate_hz else Sound(made.sound, rate_hz)
        request = self._job.request
        if made.pixels.ndim == 4 and self._job.stop_at_step:
            request = {**request, "fps": preview_fps(made.pixels, request)}
        encoding = files(made.pixels, request, recipe, self._marking, sound)
        turns = Turns(self._job.model)
        each = count(made.pixels, self._job.request)
        outputs: list[Output] = []
        with turns:
            for index in range(number * each, (number + 1) * each):
                file = await self._next_file(encoding, turns)
                with turns.of("store"):
                    outputs.append(await self._store_file(index, seed, file))
        return outputs

    async def _next_file(self, encoding: Iterator[File], turns: Turns) -> File:
        with turns.of("media"):
            return await asyncio.to_thread(next, encoding)

    async def _store_file(self, index: int, seed: int, file: File) -> Output:
        key = await self._put_file(index, file.content_type, file.data, file.beside)
        return file.described(index, key, seed, self._made_by)

    async def _put_file(
        self, index: int, content_type: str, data: bytes, beside: Mapping[str, bytes]
    ) -> str:
        """Store a file with the small images of a video; return its key."""
        key = output_key(self._job.id, self.claim.fence, index, content_type)
        await self._patience.until_stored(self._put, key, data, content_type)
        for name, small in beside.items():
            where = beside_key(key, name)
            await self._patience.until_stored(self._put, where, small, sheets.CONTENT_TYPE)
        return key

    async def _get(self, key: str) -> bytes:
        return await self._patience.until_stored(self._store.get, key)

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
            steps=max(0, sum(one.step for one in made) - (self._job.draft_steps or 0)),
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
