"""Conversion of a job to OpenAI's video object.

Source: openai-python, src/openai/types/video.py, video_create_error.py.
"""

from __future__ import annotations

from typing import Literal

from pydantic import ConfigDict

from service.jobs.model.job import Job, JobState
from service.responses.render import problem_without_output
from service.routes.compat.endpoint import code_of
from service.routes.compat.openai import examples
from service.routes.compat.openai.video_requests import REMIXED_FROM
from service.schemas.examples import schema_example as shown_example
from service.schemas.response import View

Status = Literal["queued", "in_progress", "completed", "failed"]
_STATUSES: dict[JobState, Status] = {
    JobState.QUEUED: "queued",
    JobState.RUNNING: "in_progress",
    JobState.SUCCEEDED: "completed",
    JobState.PAUSED: "completed",
}


class VideoErrorView(View):
    """Reason of a video's failure, in OpenAI's format."""

    code: str
    """Kind of the error, for programs."""
    message: str
    """Message: what happened and what to do."""


class VideoView(View):
    """Video in OpenAI's format, or the job that generates it."""

    model_config = ConfigDict(json_schema_extra=shown_example(examples.VIDEO))

    id: str
    """Id of the job, also valid in `/v1/jobs`."""
    object: Literal["video"] = "video"
    """Kind of this object."""
    status: Status
    """State; `failed` includes canceled and expired jobs."""
    progress: int
    """Percentage of finished denoising steps."""
    created_at: int
    """Time of the request: seconds since the epoch."""
    completed_at: int | None
    """Time when the job ended."""
    expires_at: int | None
    """Time when the video is deleted."""
    error: VideoErrorView | None
    """Reason of the failure."""
    model: str
    """Name of the model."""
    prompt: str
    """Prompt of the video."""
    seconds: str
    """Length in seconds."""
    size: str
    """Width and height in pixels."""
    remixed_from_video_id: str | None
    """Id of the original video, if this is a remix."""
    seed: int
    """Random seed; with this seed the same request generates the same video."""


class VideoPage(View):
    """Page of videos in OpenAI's format."""

    model_config = ConfigDict(json_schema_extra=shown_example(examples.VIDEOS))

    object: Literal["list"] = "list"
    """Kind of this object."""
    data: list[VideoView]
    """The videos of the page."""
    has_more: bool
    """True if there is a next page: `after` = `last_id`."""
    first_id: str | None
    """Id of the page's first video."""
    last_id: str | None
    """Id of the page's last video."""


class DeletedVideo(View):
    """Confirmation that a video was deleted, in OpenAI's format."""

    model_config = ConfigDict(json_schema_extra=shown_example(examples.DELETED))

    id: str
    """Id of the deleted video."""
    object: Literal["video.deleted"] = "video.deleted"
    """Kind of this object."""
    deleted: Literal[True] = True
    """Always true."""


def is_video(job: Job) -> bool:
    """Return whether a job generates a video."""
    return "num_frames" in job.request


def to_video_view(job: Job, retention_s: float) -> VideoView:
    """Convert a job to OpenAI's video object.

    Args:
        retention_s: time that a job is stored after its end.
    """
    finished = job.finished_at
    return VideoView(
        id=job.id,
        status=_STATUSES.get(job.state, "failed"),
        progress=_percent(job),
        created_at=int(job.created_at),
        completed_at=int(finished) if finished else None,
        expires_at=int(finished + retention_s) if finished else None,
        error=_error(job),
        model=str(job.request.get("model", job.model)),
        prompt=str(job.request["prompt"]),
        seconds=f"{job.request['num_frames'] / job.request['fps']:g}",
        size=f"{job.request['width']}x{job.request['height']}",
        remixed_from_video_id=job.metadata.get(REMIXED_FROM),
        seed=job.request["seed"],
    )


def _percent(job: Job) -> int:
    if job.state.is_done:
        return 100
    return min(99, 100 * job.step // max(1, job.steps))


def _error(job: Job) -> VideoErrorView | None:
    if not job.state.ended or job.state.is_done:
        return None
    problem = problem_without_output(job)
    return VideoErrorView(code=code_of(problem), message=problem.detail)


def page_of(jobs: list[Job], retention_s: float, *, has_more: bool) -> VideoPage:
    """Convert jobs to a page of videos in OpenAI's format."""
    return VideoPage(
        data=[to_video_view(job, retention_s) for job in jobs],
        has_more=has_more,
        first_id=jobs[0].id if jobs else None,
        last_id=jobs[-1].id if jobs else None,
    )
