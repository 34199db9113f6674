"""Drafts of an audition: the request that finishes those of them that were chosen."""

from __future__ import annotations

import base64
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from models.spec.hires import FIELD as HIRES
from models.spec.model_spec import ModelSpec
from models.spec.passes import passes
from models.spec.request_images import image_values, with_images
from service.errors.problems import Conflict, FieldError, Invalid
from service.front_end.front_end import FrontEnd
from service.http.inflight_limits import Hold
from service.jobs.model.job import (
    AUDITIONED,
    NO_CLAIM,
    STOP_AT_STEP,
    Drafted,
    Job,
    JobState,
    Snapshot,
    Warned,
)
from service.jobs.storage.errors import StoreError
from service.jobs.storage.object_store import STATE_TYPE, snapshot_key
from service.schemas.request import ContinueRequest, GenerateRequest

log = logging.getLogger("atelier")

OWN = frozenset({"priority", "deadline_s", "webhook", "metadata", "num_images", STOP_AT_STEP})
"""Fields of an audition that a continuation does not take over."""
OF_NO_IMAGE = OWN | {"output", "seed", "model"}
"""Fields that tell nothing of what an image is like."""


@dataclass(frozen=True)
class Drafts:
    """Chosen drafts of one audition."""

    audition: Job
    images: tuple[int, ...]
    """Numbers of the images, in the order that they were asked for."""
    seed: int | None = None
    """Seed of the first image's later steps, each further one's higher by one; None: its own."""

    @property
    def name(self) -> str:
        """Return a text that tells the choice from any other."""
        return f"{self.audition.id} {','.join(map(str, self.images))} {self.seed}"


async def chosen(
    front: FrontEnd,
    audition: Job,
    body: ContinueRequest,
    read: Callable[[dict[str, Any]], GenerateRequest],
    hold: Hold,
    media_types: tuple[str, ...] = (),
) -> tuple[GenerateRequest, Drafts]:
    """Return the request that finishes an audition's images, and their drafts.

    Args:
        read: reads the body of a request.
        hold: counts the files that are read.
        media_types: what the Accept header wants, where it wants bytes.

    Raises:
        Conflict: the job is not paused.
        Invalid: a field is wrong.
        StoreError: an image of the request cannot be read.
    """
    if audition.state is not JobState.PAUSED:
        raise Conflict(
            f"the job is {audition.state}; a job with stop_at_step can be continued once it is"
            " paused",
            code="job_not_paused",
        )
    images = tuple(range(audition.images)) if body.images is None else tuple(body.images)
    if wrong := [*_wrong_images(images, audition), *_wrong_steps(body, audition)]:
        raise Invalid(wrong)
    fields = {**audition.request, "model": audition.served_by or audition.request["model"]}
    fields = {name: fields[name] for name in fields.keys() - OWN - {"loras"}}
    fields.setdefault(HIRES, None)  # which switches a default off that has come since
    files = await _files(front, fields, hold)
    hold.add(sum(draft.bytes for draft in audition.snapshots if draft.index in images))
    whole = with_images(fields, lambda path, _: files[path])
    if audition.loras:
        whole["loras"] = audition.request.get("loras", [])  # the job's own are resolved
    whole |= {"num_images": len(images)}
    given = body.model_dump(exclude_unset=True, exclude_none=True, by_alias=True)
    output = {**fields["output"], **given.pop("output", {})}
    if media_types and not (body.output and body.output.format):
        del output["format"]  # which follows from the header, as of any request
    whole |= {name: value for name, value in given.items() if name != "images"}
    whole["output"] = {name: value for name, value in output.items() if value is not None}
    return read(whole), Drafts(audition, images, body.seed)


async def _files(front: FrontEnd, fields: Mapping[str, Any], hold: Hold) -> dict[str, str]:
    """Return the input images of an audition, by path. Raises: StoreError."""
    found = {}
    for path, key in image_values(fields).items():
        hold.add((await front.store.stat(key)).bytes)
        found[path] = _data_uri(await front.store.get(key))
    return found


def _wrong_images(images: tuple[int, ...], audition: Job) -> list[FieldError]:
    if len(set(images)) < len(images):
        return [FieldError("images", "names an image twice")]
    if beyond := [number for number in images if number >= audition.images]:
        said = f"the audition has {audition.images} images, from 0; there is no {beyond[0]}"
        return [FieldError("images", said)]
    return []


def _wrong_steps(body: ContinueRequest, audition: Job) -> list[FieldError]:
    steps, own = body.num_inference_steps, audition.request.get("num_inference_steps")
    if steps is None or steps == own:
        return []
    said = f"must be {own}, the audition's: its drafts lie on that schedule; leave it out"
    return [FieldError("num_inference_steps", said)]


def _data_uri(data: bytes) -> str:
    return "data:;base64," + base64.b64encode(data).decode()


def continuing(job: Job, drafts: Drafts, spec: ModelSpec) -> Job:
    """Return a job that goes on from drafts.

    Args:
        spec: of its model.

    Raises: Conflict: it cannot, by what has become of its model, or by what it asks.
    """
    audition = drafts.audition
    if job.fingerprint != audition.fingerprint:
        raise Conflict(
            f"the model {job.request['model']!r} has other weights than when the drafts were"
            " drawn; ask for a new audition",
            code="draft_stale",
        )
    if _bucket(job, spec) != _bucket(audition, spec):
        raise Conflict(
            "the images would be drawn by other programs than their drafts: leave out what"
            " changes them, such as a guidance scale that switches guidance on or off",
            code="draft_unfit",
        )
    kept = {draft.index: draft for draft in audition.snapshots}
    found = [
        _own(kept[number], job.id, place)
        for place, number in enumerate(drafts.images)
        if number in kept and kept[number].key
    ]
    seeds = tuple(audition.seed_of(number) for number in drafts.images)
    others = seeds
    if drafts.seed is not None:
        others = tuple(range(drafts.seed, drafts.seed + len(seeds)))
    drafted = Drafted(
        fields=_changed(audition, job),
        steps=audition.stop_at_step,
        seeds=None if others == seeds else seeds,
    )
    is_branch = bool(drafted.fields or drafted.seeds)
    if is_branch and len(found) < len(drafts.images):
        raise Conflict(
            "the drafts have no states to branch from: this model is drawn by several hosts, which"
            " keep none; leave out what changes the images",
            code="draft_unfit",
        )
    return job.model_copy(
        update={
            "version": AUDITIONED,
            "continues": audition.id,
            "seeds": [*others],
            "request": {**job.request, "seed": others[0]},
            "snapshots": found,
            "step": sum(one.step for one in found),
            "draft_steps": sum(one.step for one in found) or None,
            "drafted": drafted if is_branch else None,
            "warnings": [*job.warnings, *_said_of(drafted, audition)],
        }
    )


def _own(draft: Snapshot, job_id: str, place: int) -> Snapshot:
    """Return a draft as a job's own, of which it may dispose."""
    return Snapshot(
        index=place,
        step=draft.step,
        fence=NO_CLAIM,
        key=snapshot_key(job_id, NO_CLAIM, place, draft.step),
        bytes=draft.bytes,
    )


def _bucket(job: Job, spec: ModelSpec) -> str:
    """Return the bucket of the pass that drafts are of, whatever adapters it has."""
    first, _ = passes(job.request, spec)
    return spec.bucket(first, ())


def _changed(audition: Job, job: Job) -> Mapping[str, Any]:
    """Return the audition's fields that the job has others of, a missing one null."""
    before, after = _of_the_image(audition), _of_the_image(job)
    names = before.keys() | after.keys()
    return {name: before.get(name) for name in names if before.get(name) != after.get(name)}


def _of_the_image(job: Job) -> dict[str, Any]:
    fields = {name: value for name, value in job.request.items() if name not in OF_NO_IMAGE}
    fields = with_images(fields, lambda path, _: path)  # whose files are copies
    fields["loras"] = [lora.model_dump(mode="json") for lora in job.loras] or None
    return fields


def _said_of(drafted: Drafted, audition: Job) -> list[Warned]:
    said = (
        f"the first {audition.stop_at_step} steps were drawn with another one: the images are"
        " branches of their drafts, and no other request draws the same"
    )
    names = [*sorted(drafted.fields), *(["seed"] if drafted.seeds else [])]
    return [Warned(field=name, message=said) for name in names]


async def store_drafts(front: FrontEnd, job: Job, drafts: Drafts) -> None:
    """Copy the states of drafts, which leave with their audition, for a job of its own.

    One that is gone is drawn again by the pool.
    """
    kept = {draft.index: draft for draft in drafts.audition.snapshots}
    for own in job.snapshots:
        source = kept[drafts.images[own.index]].key
        try:
            data = await front.store.get(str(source))
        except StoreError as error:
            log.warning("a draft of %s is drawn again: %s", drafts.audition.id, error)
            continue
        await front.store.put(str(own.key), data, STATE_TYPE)
