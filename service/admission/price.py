"""Fourth step of admission: a request as a job, with the cost that is predicted for it."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from models.spec.hires import BUILT_IN, drawn_size
from models.spec.hires import FIELD as HIRES
from models.spec.model_spec import ModelSpec
from models.spec.passes import passes
from models.spec.request_images import VIDEO_FIELDS, field_of, with_images
from models.spec.upscalers import BUCKET, tiles_of
from models.spec.upscalers import FIELD as UPSCALE
from service.admission.caller import Caller
from service.admission.drafts import Drafts, continuing
from service.admission.parse import Parsed
from service.admission.resolve import Images, ResolvedRequest
from service.admission.reuse import name_of
from service.front_end.front_end import FrontEnd
from service.jobs.model.job import (
    AUDITIONED,
    ENLARGED,
    PLAIN,
    PRIORITIES,
    STOP_AT_STEP,
    Job,
    SecondPass,
    new_job_id,
)
from service.jobs.storage.object_store import input_key
from service.settings.tenants import TenantSettings
from service.validation.resolve import steps_of_passes

DECODED_AND_SCALED = 2.0
"""Processor time of decoding and scaling a video, as a multiple of decoding it: 1.8 for noise at
720p and 2.3 for a flat 4K video were measured, both scaled to 480p."""
SERVICE_MEMBERS = {"priority", "deadline_s", "webhook"}
"""Fields of a request that are not the model's business, and are shown with it."""


@dataclass(frozen=True)
class Priced:
    """A job that could be queued."""

    job: Job
    parsed: Parsed
    images: Images
    drafts: Drafts | None = None
    reuse: str | None = None
    """Name that requests for the same files share; None: it is drawn, whatever there is."""


async def price(
    front: FrontEnd, caller: Caller, resolved: ResolvedRequest, drafts: Drafts | None = None
) -> Priced:
    """Make the caller's job of a request, with its predicted cost where that is known.

    Raises: Conflict: it cannot go on from the drafts.
    """
    job = _job(resolved, caller, await front.tenants.of(caller.tenant))
    if drafts is not None:
        job = continuing(job, drafts, resolved.spec)
    tail_s = 0.0 if job.stop_at_step else await _tail_s(front, job, resolved.spec)
    await _predict(front, job, tail_s, reading_s(resolved.images))
    safety = front.settings.safety
    is_checked = safety.is_on and safety.after  # each time anew, as the hook may know better now
    may_reuse = front.settings.queue.reuse and not (drafts or job.stop_at_step or is_checked)
    name = await name_of(front, job, resolved.spec, resolved.images) if may_reuse else None
    return Priced(job, resolved.parsed, resolved.images, drafts, name)


def _job(resolved: ResolvedRequest, caller: Caller, limits: TenantSettings) -> Job:
    body, spec, fields = resolved.parsed.body, resolved.spec, resolved.fields
    job_id = new_job_id()
    kept = with_images(fields.fields, lambda path, _: input_key(job_id, path))
    request = {"model": spec.name, **kept, "output": fields.output}
    request |= body.model_dump(include=SERVICE_MEMBERS, exclude_none=True)
    loras = [*spec.fixed_loras, *fields.loras]
    first, second = passes(request, spec)
    stop_at = body.stop_at_step
    if stop_at is not None:
        request[STOP_AT_STEP], second = stop_at, None
    return Job(
        version=_version(request, spec),
        id=job_id,
        model=spec.queue,
        served_by=spec.version or None,
        fingerprint=spec.fingerprint,
        bucket=spec.bucket(first, loras),
        priority=PRIORITIES[body.priority],
        deadline_at=None if body.deadline_s is None else time.time() + body.deadline_s,
        request=request,
        loras=loras,
        images=fields.fields["num_images"],
        steps=fields.steps if stop_at is None else stop_at * fields.fields["num_images"],
        second_pass=SecondPass(
            bucket=spec.bucket(second, loras), steps=steps_of_passes(request, spec)[-1]
        )
        if second
        else None,
        warnings=fields.warnings,
        metadata=body.metadata,
        tenant=caller.tenant,
        tenant_class=limits.metrics_class,
        weight=limits.weight,
        max_compiling=limits.max_compiling,
        traceparent=caller.traceparent,
        previews=caller.previews,
        key_id=caller.key_id,
        request_id=caller.request_id,
    )


def _version(request: Mapping[str, Any], spec: ModelSpec) -> int:
    if STOP_AT_STEP in request:
        return AUDITIONED
    hires = request.get(HIRES)
    return ENLARGED if hires and hires["upscaler"] in spec.enlargers else PLAIN


async def _tail_s(front: FrontEnd, job: Job, spec: ModelSpec) -> float:
    """Predict the seconds of all images' upscaling: before a second pass, and at the end."""
    request, seconds = job.request, 0.0
    asked = [(request[UPSCALE]["name"], drawn_size(request))] if UPSCALE in request else []
    if (hires := request.get(HIRES)) and hires["upscaler"] not in BUILT_IN:
        asked.append((hires["upscaler"], (request["width"], request["height"])))
    for name, size in asked:
        if upscaler := spec.upscalers.get(name):
            tile_s = await front.costs.unit_s(job.model, BUCKET + name)
            seconds += tiles_of(*size, upscaler) * tile_s
    return job.images * seconds


def reading_s(images: Images) -> float:
    """Predict the processor time that a pool takes to decode and scale videos.

    It decodes them as they were decoded here, and scaling takes about as long again.
    """
    files = (image.file for path, image in images.items() if field_of(path) in VIDEO_FIELDS)
    return DECODED_AND_SCALED * sum(file.decode_s for file in files)


async def _predict(front: FrontEnd, job: Job, tail_s: float, read_s: float) -> None:
    """Set the costs of a job, where they are known.

    Args:
        tail_s: seconds behind the decoding.
        read_s: seconds of reading its videos, before the first step.
    """
    cost = await front.costs.predict(job)
    if cost is None:
        return
    cost = cost.longer(tail_s)
    compile_s = 0.0
    for bucket in {bucket for bucket, _ in job.passes()}:
        compile_s += await front.costs.compile_s(job.model, bucket)
    load_s = await front.costs.load_s(job.model, [lora.digest for lora in job.loras]) + read_s
    is_beyond = cost.seconds * job.undone + compile_s + load_s > job.request.get(
        "deadline_s", math.inf
    )
    is_tried = is_beyond and await front.costs.is_tried(job, cost)
    job.cost = cost.device_seconds + compile_s + load_s
    job.compile_s, job.tail_s = compile_s, tail_s
    job.run_s = None if is_tried else cost.seconds + load_s
