"""Tools: what an agent can do here, each one a job or a look at the models."""

from __future__ import annotations

import asyncio
import base64
import re
from collections.abc import Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from models.spec.model_spec import ModelSpec, Task
from service.errors.problems import FieldError, Invalid
from service.http.inflight_limits import Hold
from service.jobs.model.job import Job
from service.responses.links import links_of
from service.responses.render import without_output
from service.responses.wait import events_of
from service.routes.compat.call import Call
from service.routes.compat.entry import entry
from service.routes.compat.mcp.arguments import (
    PICTURES,
    Arguments,
    EditArguments,
    ImageArguments,
    NoArguments,
    VideoArguments,
    fields_of,
)
from service.routes.compat.names import Names
from service.routes.compat.outcome import files, leave

Progress = Callable[[int, int, str], Awaitable[None]]
"""Reporter of steps done, steps to do, and the stage."""

NAMES = Names({"output.format": "format"})
JOB = re.compile(r"(job_[0-9a-f]{1,64})(?:/(\d{1,4}))?")
"""An earlier job, and the index of one of its images."""


@dataclass(frozen=True)
class Tool:
    """A tool.

    Args:
        arguments: their class.
        task: what the models that it is for can do; None: it makes nothing.
        by_images: what they can do if arguments with these names are there, the last one wins.
    """

    name: str
    title: str
    description: str
    arguments: type[Arguments] | type[NoArguments]
    task: Task | None = None
    by_images: Mapping[str, Task] = field(default_factory=dict)

    def task_of(self, fields: Mapping[str, Any]) -> Task | None:
        """Return what a model has to be able to do for a request in our fields."""
        tasks = [task for name, task in self.by_images.items() if name in fields]
        return tasks[-1] if tasks else self.task


TOOLS = (
    Tool(
        "generate_image",
        "Generate images",
        "Make images of a prompt. Returns each image and a link to it that works for a while.",
        ImageArguments,
        "text-to-image",
    ),
    Tool(
        "edit_image",
        "Edit an image",
        "Make a new image of another one and a prompt, all of it or where a mask is white.",
        EditArguments,
        "image-to-image",
        {"mask_image": "inpainting"},
    ),
    Tool(
        "generate_video",
        "Generate a video",
        "Make a video of a prompt, and of a first frame if there is one. Returns a link to it."
        " It takes minutes.",
        VideoArguments,
        "text-to-video",
        {"image": "image-to-video"},
    ),
    Tool(
        "list_models",
        "List models",
        "List the models with their tasks, default settings and limits.",
        NoArguments,
    ),
)
BY_NAME = {tool.name: tool for tool in TOOLS}


@dataclass(frozen=True)
class Made:
    """Files that a job has made.

    Args:
        files: bytes of its images; empty of videos, which come by their links alone.
    """

    job: Job
    links: list[str]
    files: list[bytes]


async def list_models(call: Call) -> list[dict[str, Any]]:
    """Return what an agent has to know of the models."""
    known = await call.front.models.all()
    return [
        {
            "name": name,
            "tasks": [*known[name].spec.tasks],
            "ready": known[name].ready,
            "defaults": dict(known[name].spec.defaults),
            "limits": known[name].spec.limits.model_dump(),
            "schedulers": sorted(known[name].spec.schedulers),
        }
        for name in sorted(known)
    ]


async def make(call: Call, tool: Tool, given: Arguments, report: Progress, hold: Hold) -> Made:
    """Return what a job makes of a tool's arguments; it is canceled when the agent cancels.

    Args:
        hold: counts the bytes of its files.

    Raises: Problem.
    """
    fields = fields_of(given)
    async with entry(call) as entering:
        entering.names(fields.get("model"))
        fields["model"] = await _model(call, tool, fields)
        for name in PICTURES:
            if match := JOB.fullmatch(fields.get(name, "")):
                fields[name] = await _of_job(call, match, hold)
        job = await entering.admit(fields, NAMES)
    try:
        job = await _followed(call, job, report)
    except asyncio.CancelledError:
        leave(call, job)
        raise
    if not job.state.is_done:
        raise without_output(job)
    are_images = job.outputs[0].content_type.startswith("image/")
    found = await files(call.front, job, hold) if are_images else []
    return Made(job, await links_of(call.front, call.request, job), found)


async def _model(call: Call, tool: Tool, fields: Mapping[str, Any]) -> str:
    """Return the model that is named, else the one that fits. Raises: Problem."""
    task = tool.task_of(fields)
    known = {name: model.spec for name, model in (await call.front.models.all()).items()}
    fitting = [name for name in sorted(known) if task in known[name].tasks]
    named = fields.get("model")
    if not named and len(fitting) != 1 and known:
        there_is = f"name a model: there is {', '.join(fitting)}"
        raise Invalid([FieldError("model", there_is if fitting else f"no model here does {task}")])
    spec = (await call.front.models.get(named or next(iter(fitting), None))).spec
    if _makes_videos(spec) is not (tool.arguments is VideoArguments):
        others = ", ".join(fitting) or "none"
        said = f"{spec.name!r} does {', '.join(spec.tasks)}; for {tool.name} there is {others}"
        raise Invalid([FieldError("model", said)])
    return spec.name


def _makes_videos(spec: ModelSpec) -> bool:
    return any(task.endswith("-to-video") for task in spec.tasks)


async def _of_job(call: Call, match: re.Match[str], hold: Hold) -> str:
    """Return an image of one of the tenant's jobs in base64. Raises: Problem."""
    job = await call.front.job(match[1], call.tenant)
    index = int(match[2] or 0)
    if index >= len(job.outputs):
        said = f"the job {job.id} is {job.state} and has {len(job.outputs)} outputs"
        raise Invalid([FieldError("image", said)])
    hold.add(job.outputs[index].bytes)
    return base64.b64encode(await call.front.outputs.read(job.outputs[index])).decode()


async def _followed(call: Call, job: Job, report: Progress) -> Job:
    """Return the job once it has ended, or the wait for it has; report its steps until then."""
    done = 0
    try:
        async with (
            asyncio.timeout(call.front.settings.limits.max_wait_s),
            aclosing(events_of(call.front, job.id, "0")) as events,
        ):
            async for event in events:
                if event and event.name == "progress" and event.data["step"] > done:
                    done = event.data["step"]
                    stage = (event.data.get("detail") or {}).get("stage", "denoising")
                    await report(done, event.data["steps"], stage)
    except TimeoutError:
        pass
    return await call.front.job(job.id, job.tenant)
