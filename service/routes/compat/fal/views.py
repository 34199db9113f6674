"""A job as fal shows a request: accepted, on its way, and done."""

from __future__ import annotations

from urllib.parse import quote

from service.jobs.model.job import Job, JobState, Output
from service.responses.render import without_output
from service.routes.compat import addresses
from service.routes.compat.call import Call
from service.routes.compat.fal.bodies import FalFile, FalResult, FalStatus, FalSubmitted, code_of


def submitted(call: Call, app: str, job: Job) -> FalSubmitted:
    """Return a request that was accepted."""
    at = addresses.whole(call, f"/fal/queue/{quote(app)}/requests/{job.id}")
    return FalSubmitted(
        request_id=job.id,
        response_url=at,
        status_url=f"{at}/status",
        cancel_url=f"{at}/cancel",
    )


async def status(call: Call, app: str, job: Job, *, with_logs: bool) -> FalStatus:
    """Return the status of a request."""
    about = submitted(call, app, job).model_dump()
    if job.state is JobState.QUEUED:
        position, _ = await call.front.costs.place(job)
        return FalStatus(**about, status="IN_QUEUE", queue_position=position or 0)
    logs = [{"message": f"step {job.step} of {job.steps}"}] if with_logs else None
    if not job.state.ended:
        return FalStatus(**about, status="IN_PROGRESS", logs=logs)
    metrics = {"inference_time": job.usage.device_seconds}
    done = FalStatus(**about, status="COMPLETED", logs=logs, metrics=metrics)
    if not job.state.is_done:
        problem = without_output(job)
        done.error, done.error_type = problem.detail, code_of(problem)
    return done


async def result(call: Call, job: Job) -> FalResult:
    """Return the result of a job that has succeeded."""
    urls = await addresses.of_outputs(call, job)
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
