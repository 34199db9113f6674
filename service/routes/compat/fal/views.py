"""Conversion of a job to fal's responses: submitted, status, and result."""

from __future__ import annotations

from urllib.parse import quote

from service.jobs.model.job import Job, JobState, Output
from service.responses.render import problem_without_output
from service.routes.compat import addresses
from service.routes.compat.call import Call
from service.routes.compat.endpoint import code_of
from service.routes.compat.fal.bodies import FalFile, FalResult, FalStatus, FalSubmitted


def submitted(call: Call, app: str, job: Job) -> FalSubmitted:
    """Build fal's response about an accepted request."""
    url = addresses.absolute_url(call, f"/fal/queue/{quote(app)}/requests/{job.id}")
    return FalSubmitted(
        request_id=job.id,
        response_url=url,
        status_url=f"{url}/status",
        cancel_url=f"{url}/cancel",
    )


async def status(call: Call, app: str, job: Job, *, with_logs: bool) -> FalStatus:
    """Build fal's status of a job."""
    urls = submitted(call, app, job).model_dump()
    if job.state is JobState.QUEUED:
        position, _ = await call.front.costs.position_and_end(job)
        return FalStatus(**urls, status="IN_QUEUE", queue_position=position or 0)
    logs = [{"message": f"step {job.step} of {job.steps}"}] if with_logs else None
    if not job.state.ended:
        return FalStatus(**urls, status="IN_PROGRESS", logs=logs)
    metrics = {"inference_time": job.usage.device_seconds}
    completed = FalStatus(**urls, status="COMPLETED", logs=logs, metrics=metrics)
    if not job.state.is_done:
        problem = problem_without_output(job)
        completed.error, completed.error_type = problem.detail, code_of(problem)
    return completed


async def result(call: Call, job: Job) -> FalResult:
    """Build fal's result of a successful job."""
    urls = await addresses.output_urls(call, job)
    files = [_file(output, url) for output, url in zip(job.outputs, urls, strict=True)]
    are_videos = job.outputs[0].content_type.startswith("video/")
    return FalResult(
        images=None if are_videos else files,
        video=files[0] if are_videos else None,
        videos=files if are_videos else None,
        seed=job.outputs[0].seed,
        prompt=job.request["prompt"],
        timings={"inference": job.usage.device_seconds},
        has_nsfw_concepts=[False] * len(files),
    )


def _file(output: Output, url: str) -> FalFile:
    _, _, kind = output.content_type.partition("/")
    return FalFile(
        url=url,
        content_type=output.content_type,
        file_name=f"{output.index}.{kind}",
        file_size=output.bytes,
        width=output.width,
        height=output.height,
    )
