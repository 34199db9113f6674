"""Fourth step of admission: build the job of a request and predict its cost."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from models.spec.hires import BUILT_IN, generated_size
from models.spec.hires import FIELD as HIRES
from models.spec.model_spec import ModelSpec
from models.spec.passes import passes
from models.spec.request_images import VIDEO_FIELDS, field_of, with_images
from models.spec.upscalers import BUCKET, tiles_of
from models.spec.upscalers import FIELD as UPSCALE
from service.admission.drafts import Drafts, continuation_job
from service.admission.parse import Caller, ParsedRequest
from service.admission.resolve import Images, ResolvedRequest
from service.admission.reuse import ReuseKeys, reuse_keys
from service.front_end.front_end import FrontEnd
from service.jobs.model.job import (
    AUDITION_VERSION,
    BASE_VERSION,
    ENLARGER_VERSION,
    PRIORITIES,
    STOP_AT_STEP,
    Job,
    SecondPass,
    new_job_id,
)
from service.jobs.storage.object_store import input_key
from service.settings.tenants import TenantSettings
from service.validation.resolved_fields import steps_of_passes

DECODED_AND_SCALED = 2.0
"""CPU time of decoding and scaling a video, as a multiple of the time to decode it. Measured: 1.8
for noise at 720p and 2.3 for a flat 4K video, both scaled to 480p."""
SCALED_S_PER_PIXEL = 1.5e-8
"""CPU time of scaling an image, per pixel of its file. Measured: 0.21 to 0.28 s to scale 16 million
pixels to one million."""
SERVICE_MEMBERS = {"priority", "deadline_s", "draft_ttl_s", "webhook"}
"""Request fields that only the service reads; the stored request includes them."""


@dataclass(frozen=True)
class PricedJob:
    """Job that is ready to be queued, with its images, drafts and reuse key."""

    job: Job
    parsed: ParsedRequest
    images: Images
    drafts: Drafts | None = None
    reuse: ReuseKeys | None = None
    """Keys of its files; None disables reuse."""


async def price(
    front: FrontEnd, caller: Caller, resolved: ResolvedRequest, drafts: Drafts | None = None
) -> PricedJob:
    """Build the job of a resolved request and set its predicted cost, if known.

    Raises: Conflict: the job cannot continue from the drafts.
    """
    job = _job(resolved, caller, await front.tenants.of(caller.tenant))
    if job.stop_at_step:
        longest_s = front.settings.queue.max_draft_ttl_s
        job = job.model_copy(update={"draft_ttl_s": resolved.parsed.body.draft_ttl_s or longest_s})
    if drafts is not None:
        job = continuation_job(job, drafts, resolved.spec)
    tail_s = 0.0 if job.stop_at_step else await _tail_s(front, job, resolved.spec)
    await _predict(front, job, tail_s, reading_s(job, resolved.images))
    safety = front.settings.safety
    is_checked = safety.is_on and safety.after  # the hook's verdict may have changed: no reuse
    may_reuse = front.settings.queue.reuse and not (drafts or job.stop_at_step or is_checked)
    names = await reuse_keys(front, job, resolved.spec, resolved.images) if may_reuse else None
    return PricedJob(job, resolved.parsed, resolved.images, drafts, names)


def _job(resolved: ResolvedRequest, caller: Caller, limits: TenantSettings) -> Job:
    body, spec, fields = resolved.parsed.body, resolved.spec, resolved.fields
    job_id = new_job_id()
    fields_by_key = with_images(fields.fields, lambda path, _: input_key(job_id, path))
    request = {"model": spec.name, **fields_by_key, "output": fields.output}
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
        avoid=caller.avoid,
    )


def _version(request: Mapping[str, Any], spec: ModelSpec) -> int:
    """Return the oldest job format version whose workers understand the request."""
    if STOP_AT_STEP in request:
        return AUDITION_VERSION
    hires = request.get(HIRES)
    return ENLARGER_VERSION if hires and hires["upscaler"] in spec.enlargers else BASE_VERSION


async def _tail_s(front: FrontEnd, job: Job, spec: ModelSpec) -> float:
    """Predict the seconds of upscaling a job's images: before a second pass, and at the end."""
    request, seconds = job.request, 0.0
    upscalings = [(request[UPSCALE]["name"], generated_size(request))] if UPSCALE in request else []
    if (hires := request.get(HIRES)) and hires["upscaler"] not in BUILT_IN:
        upscalings.append((hires["upscaler"], (request["width"], request["height"])))
    for name, size in upscalings:
        if upscaler := spec.upscalers.get(name):
            tile_s = await front.costs.unit_s(job.model, BUCKET + name)
            seconds += tiles_of(*size, upscaler) * tile_s
    return job.images * seconds


def reading_s(job: Job, images: Images) -> float:
    """Predict the CPU seconds that a worker needs to decode and scale the request's input files.

    A worker reads videos once for each job, and images for each pass of each output. The front end
    measured the decoding time when it checked the files.
    """
    readings = job.images * len(job.passes())
    seconds = 0.0
    for path, image in images.items():
        file = image.file
        if field_of(path) in VIDEO_FIELDS:
            seconds += DECODED_AND_SCALED * file.decode_s
        else:
            scaling_s = SCALED_S_PER_PIXEL * file.width * file.height
            seconds += readings * (file.decode_s + scaling_s)
    return seconds


async def _predict(front: FrontEnd, job: Job, tail_s: float, read_s: float) -> None:
    """Set the predicted costs of a job in place, if the model's costs are known.

    Args:
        tail_s: seconds of work after decoding, such as upscaling.
        read_s: seconds of reading the job's input files, before the first step.
    """
    cost = await front.costs.predict(job)
    if cost is None:
        return
    cost = cost.with_tail(tail_s)
    compile_s = 0.0
    for bucket in {bucket for bucket, _ in job.passes()}:
        compile_s += await front.costs.compile_s(job.model, bucket)
    digests = [lora.digest for lora in job.loras if lora.pages]
    load_s = await front.costs.load_s(job.model, digests) + read_s
    is_beyond = cost.seconds * job.remaining_share + compile_s + load_s > job.request.get(
        "deadline_s", math.inf
    )
    is_tried = is_beyond and await front.costs.admits_trial(job, cost)
    job.cost = cost.device_seconds + compile_s + load_s
    job.compile_s, job.tail_s = compile_s, tail_s
    job.run_s = None if is_tried else cost.seconds + load_s
