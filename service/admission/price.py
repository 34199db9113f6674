"""Fourth step of admission: a request as a job, with the cost that is predicted for it."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

from models.spec.hires import BUILT_IN, drawn_size, passes
from models.spec.hires import FIELD as HIRES
from models.spec.model_spec import ModelSpec
from models.spec.request_images import with_images
from models.spec.upscalers import BUCKET, tiles_of
from models.spec.upscalers import FIELD as UPSCALE
from service.admission.caller import Caller
from service.admission.parse import Parsed
from service.admission.resolve import Images, ResolvedRequest
from service.front_end.front_end import FrontEnd
from service.jobs.model.job import PRIORITIES, Job, SecondPass, new_job_id
from service.jobs.storage.object_store import input_key
from service.validation.resolve import steps_of_passes

SERVICE_MEMBERS = {"priority", "deadline_s", "webhook"}
"""Fields of a request that are not the model's business, and are shown with it."""


@dataclass(frozen=True)
class Priced:
    """A job that could be queued."""

    job: Job
    parsed: Parsed
    images: Images


async def price(front: FrontEnd, caller: Caller, resolved: ResolvedRequest) -> Priced:
    """Make the caller's job of a request, with its predicted cost where that is known."""
    limits = front.settings.tenant(caller.tenant)
    job = _job(resolved).model_copy(
        update={
            "tenant": caller.tenant,
            "tenant_class": limits.metrics_class,
            "weight": limits.weight,
            "max_compiling": limits.max_compiling,
            "traceparent": caller.traceparent,
            "previews": caller.previews,
        }
    )
    tail_s = await _tail_s(front, job, resolved.spec)
    return Priced(await _predicted(front, job, tail_s), resolved.parsed, resolved.images)


def _job(resolved: ResolvedRequest) -> Job:
    body, spec, fields = resolved.parsed.body, resolved.spec, resolved.fields
    job_id = new_job_id()
    kept = with_images(fields.fields, lambda path, _: input_key(job_id, path))
    request = {"model": spec.name, **kept, "output": fields.output}
    request |= body.model_dump(include=SERVICE_MEMBERS, exclude_none=True)
    loras = [*spec.fixed_loras, *fields.loras]
    first, second = passes(request, spec)
    return Job(
        id=job_id,
        model=spec.queue,
        bucket=spec.bucket(first, loras),
        priority=PRIORITIES[body.priority],
        deadline_at=None if body.deadline_s is None else time.time() + body.deadline_s,
        request=request,
        loras=loras,
        images=fields.fields["num_images"],
        steps=fields.steps,
        second_pass=SecondPass(
            bucket=spec.bucket(second, loras), steps=steps_of_passes(request, spec)[-1]
        )
        if second
        else None,
        warnings=fields.warnings,
        metadata=body.metadata,
    )


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


async def _predicted(front: FrontEnd, job: Job, tail_s: float) -> Job:
    cost = await front.costs.predict(job)
    if cost is None:
        return job
    cost = cost.longer(tail_s)
    compile_s = 0.0
    for bucket in {bucket for bucket, _ in job.passes()}:
        compile_s += await front.costs.compile_s(job.model, bucket)
    load_s = await front.costs.load_s(job.model, [lora.digest for lora in job.loras])
    is_beyond = cost.seconds + compile_s + load_s > job.request.get("deadline_s", math.inf)
    is_tried = is_beyond and await front.costs.is_tried(job, cost)
    return job.model_copy(
        update={
            "cost": cost.device_seconds + compile_s + load_s,
            "compile_s": compile_s,
            "tail_s": tail_s,
            "run_s": None if is_tried else cost.seconds + load_s,
        }
    )
