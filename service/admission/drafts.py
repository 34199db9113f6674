"""Continuation of an audition: the request and job that finish the drafts a client chose."""

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
    AUDITION_VERSION,
    NO_CLAIM,
    STOP_AT_STEP,
    DraftDifferences,
    FieldWarning,
    Job,
    JobState,
    Snapshot,
)
from service.jobs.storage.errors import StoreError
from service.jobs.storage.object_store import STATE_TYPE, snapshot_key
from service.schemas.request import ContinueRequest, GenerateRequest

log = logging.getLogger("atelier")

NOT_INHERITED_FIELDS = frozenset(
    {
        *("priority", "deadline_s", "webhook", "metadata"),
        *("num_images", STOP_AT_STEP, "draft_ttl_s"),
    }
)
"""Fields of an audition that a continuation does not inherit."""
NON_IMAGE_FIELDS = NOT_INHERITED_FIELDS | {"output", "seed", "model"}
"""Fields that have no influence on an image's content."""

EXPIRED = FieldWarning(
    field="images",
    message="the drafts have expired: the images are computed from their first step, and charged",
)
"""Warning of a continuation whose drafts are gone."""


@dataclass(frozen=True)
class Drafts:
    """Images of an audition (a job paused at a step) that a client chose to finish."""

    audition: Job
    images: tuple[int, ...]
    """Indices of the images, in the order of the request."""
    seed: int | None = None
    """Seed of the first image's remaining steps; later images add 1 each. None: the drafts' seeds.
    """

    @property
    def name(self) -> str:
        """Return a text that identifies this choice of drafts and seed."""
        return f"{self.audition.id} {','.join(map(str, self.images))} {self.seed}"


async def continuation_request(
    front: FrontEnd,
    audition: Job,
    body: ContinueRequest,
    read: Callable[[dict[str, Any]], GenerateRequest],
    hold: Hold,
    media_types: tuple[str, ...] = (),
) -> tuple[GenerateRequest, Drafts]:
    """Build the request that finishes an audition's images, together with the chosen drafts.

    Args:
        read: parses a request body.
        hold: counts the bytes of the files read here against the client's limit.
        media_types: media types of the Accept header, if the client wants bytes.

    Raises:
        Conflict: the job is not paused.
        Invalid: a field is wrong.
        StoreError: an input image of the request cannot be read.
    """
    if audition.state is not JobState.PAUSED:
        raise Conflict(
            f"the job is {audition.state}; a job with stop_at_step can be continued once it is"
            " paused",
            code="job_not_paused",
        )
    images = tuple(range(audition.images)) if body.images is None else tuple(body.images)
    if errors := [*_wrong_images(images, audition), *_wrong_steps(body, audition)]:
        raise Invalid(errors)
    fields = {**audition.request, "model": audition.served_by or audition.request["model"]}
    fields = {name: fields[name] for name in fields.keys() - NOT_INHERITED_FIELDS - {"loras"}}
    fields.setdefault(HIRES, None)  # disables a default that was configured after the audition
    files = await _files(front, fields, hold)
    hold.add(sum(draft.bytes for draft in audition.snapshots if draft.index in images))
    content = with_images(fields, lambda path, _: files[path])
    if audition.loras:
        content["loras"] = audition.request.get("loras", [])  # job.loras are already resolved
    content |= {"num_images": len(images)}
    options = body.model_dump(exclude_unset=True, exclude_none=True, by_alias=True)
    output = {**fields["output"], **options.pop("output", {})}
    if media_types and not (body.output and body.output.format):
        del output["format"]  # the Accept header determines it
    content |= {name: value for name, value in options.items() if name != "images"}
    content["output"] = {name: value for name, value in output.items() if value is not None}
    return read(content), Drafts(audition, images, body.seed)


async def _files(front: FrontEnd, fields: Mapping[str, Any], hold: Hold) -> dict[str, str]:
    """Read the input images of an audition as data URIs, by path. Raises: StoreError."""
    files = {}
    for path, key in image_values(fields).items():
        hold.add((await front.store.stat(key)).bytes)
        files[path] = _data_uri(await front.store.get(key))
    return files


def _wrong_images(images: tuple[int, ...], audition: Job) -> list[FieldError]:
    if len(set(images)) < len(images):
        return [FieldError("images", "names an image twice")]
    if missing := [number for number in images if number >= audition.images]:
        message = (
            f"the audition has {audition.images} images, numbered from 0; number {missing[0]} does"
            " not exist"
        )
        return [FieldError("images", message)]
    return []


def _wrong_steps(body: ContinueRequest, audition: Job) -> list[FieldError]:
    """Return field errors of a continuation's number of steps; the worker checks its schedule."""
    steps, drafted = body.num_inference_steps, audition.request["num_inference_steps"]
    if steps is None or steps == drafted:
        return []
    lists = [name for name in ("timesteps", "sigmas") if audition.request.get(name)]
    if lists:
        message = f"must be left out, because the audition has {lists[0]}"
    elif steps < drafted:
        message = f"must be at least {drafted}, as in the audition"
    else:
        return []
    return [FieldError("num_inference_steps", message)]


def _data_uri(data: bytes) -> str:
    return "data:;base64," + base64.b64encode(data).decode()


def continuation_job(job: Job, drafts: Drafts, spec: ModelSpec) -> Job:
    """Return a job that continues from an audition's drafts.

    Args:
        spec: the model's specification.

    Raises: Conflict: the model's weights have changed, the request needs another bucket, or
        snapshots to branch from are missing.
    """
    audition = drafts.audition
    if job.fingerprint != audition.fingerprint:
        raise Conflict(
            f"the weights of the model {job.request['model']!r} have changed since the drafts"
            " were generated; request a new audition",
            code="draft_stale",
        )
    if _bucket(job, spec) != _bucket(audition, spec):
        raise Conflict(
            "the images need other programs than their drafts: leave out the fields that cause"
            " this, such as a guidance scale that switches guidance on or off",
            code="draft_unfit",
        )
    drafts_by_index = {draft.index: draft for draft in audition.snapshots}
    snapshots = [
        _snapshot_copy(drafts_by_index[number], job.id, position)
        for position, number in enumerate(drafts.images)
        if number in drafts_by_index and drafts_by_index[number].key
    ]
    seeds = tuple(audition.seed_of(number) for number in drafts.images)
    new_seeds = seeds
    if drafts.seed is not None:
        new_seeds = tuple(range(drafts.seed, drafts.seed + len(seeds)))
    drafted = DraftDifferences(
        fields=_changed_fields(audition, job),
        steps=audition.stop_at_step,
        seeds=None if new_seeds == seeds else seeds,
    )
    is_branch, is_expired = bool(drafted.fields or drafted.seeds), not audition.snapshots
    if is_branch and is_expired:
        raise Conflict(
            "the drafts have expired, and nothing is left to branch from: request a new audition,"
            " or leave out the fields that change the images to compute them from the first step",
            code="draft_expired",
        )
    if is_branch and len(snapshots) < len(drafts.images):
        raise Conflict(
            "the drafts have no snapshots to branch from, because several hosts run this model;"
            " leave out the fields that change the images",
            code="draft_unfit",
        )
    return job.model_copy(
        update={
            "version": AUDITION_VERSION,
            "continues": audition.id,
            "seeds": [*new_seeds],
            "request": {**job.request, "seed": new_seeds[0]},
            "snapshots": snapshots,
            "step": sum(snapshot.step for snapshot in snapshots),
            "draft_steps": sum(snapshot.step for snapshot in snapshots) or None,
            "drafted": drafted if is_branch else None,
            "warnings": [
                *job.warnings,
                *_branch_warnings(drafted, audition),
                *([EXPIRED] if is_expired else []),
            ],
        }
    )


def _snapshot_copy(draft: Snapshot, job_id: str, position: int) -> Snapshot:
    """Return a draft's snapshot under the new job's id, so that the job may delete its copy."""
    return Snapshot(
        index=position,
        step=draft.step,
        fence=NO_CLAIM,
        key=snapshot_key(job_id, NO_CLAIM, position, draft.step),
        bytes=draft.bytes,
    )


def _bucket(job: Job, spec: ModelSpec) -> str:
    """Return the bucket of the first pass, without adapters; drafts are snapshots of that pass."""
    first, _ = passes(job.request, spec)
    return spec.bucket(first, ())


def _changed_fields(audition: Job, job: Job) -> Mapping[str, Any]:
    """Return an audition's values of the fields that its continuation changes; None if missing."""
    before, after = _image_fields(audition), _image_fields(job)
    names = before.keys() | after.keys()
    return {name: before.get(name) for name in names if before.get(name) != after.get(name)}


def _image_fields(job: Job) -> dict[str, Any]:
    """Return a job's fields that influence image content, with adapters and image paths."""
    fields = {name: value for name, value in job.request.items() if name not in NON_IMAGE_FIELDS}
    fields = with_images(fields, lambda path, _: path)  # the keys differ: each job has copies
    fields["loras"] = [lora.model_dump(mode="json") for lora in job.loras] or None
    return fields


def _branch_warnings(drafted: DraftDifferences, audition: Job) -> list[FieldWarning]:
    message = (
        f"the first {audition.stop_at_step} steps were generated with another value: the images"
        " are branches of their drafts, and no single request reproduces them"
    )
    names = [*sorted(drafted.fields), *(["seed"] if drafted.seeds else [])]
    return [FieldWarning(field=name, message=message) for name in names]


async def store_drafts(front: FrontEnd, job: Job, drafts: Drafts) -> None:
    """Copy the drafts' snapshots for the job, since they are deleted with their audition.

    The worker recomputes a draft whose snapshot is missing.
    """
    drafts_by_index = {draft.index: draft for draft in drafts.audition.snapshots}
    for snapshot in job.snapshots:
        source = drafts_by_index[drafts.images[snapshot.index]].key
        try:
            data = await front.store.get(str(source))
        except StoreError as error:
            log.warning("recomputing a draft of %s: %s", drafts.audition.id, error)
            continue
        await front.store.put(str(snapshot.key), data, STATE_TYPE)
