"""Tools for MCP agents: generate, edit, and list models."""

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
from service.responses.render import problem_without_output
from service.responses.wait import events_of
from service.routes.compat.call import Call
from service.routes.compat.incoming_request import receive_request
from service.routes.compat.mcp.arguments import (
    IMAGE_ARGUMENTS,
    Arguments,
    EditArguments,
    ImageArguments,
    NoArguments,
    VideoArguments,
    fields_of,
)
from service.routes.compat.names import FieldNames
from service.routes.compat.outcome import cancel_in_background, read_output_files

Progress = Callable[[int, int, str], Awaitable[None]]
"""Callback that receives finished steps, total steps, and the stage."""

NAMES = FieldNames({"output.format": "format"})
JOB = re.compile(r"(job_[0-9a-f]{1,64})(?:/(\d{1,4}))?")
"""Id of an earlier job, with an optional index of one of its images."""


@dataclass(frozen=True)
class Tool:
    """MCP tool, with the schema of its arguments and the task of its jobs.

    Args:
        arguments: schema of its arguments.
        task: task that the model must support; None: the tool creates no job.
        by_images: tasks by image argument, used if the argument is present; the last match wins.
    """

    name: str
    title: str
    description: str
    arguments: type[Arguments] | type[NoArguments]
    task: Task | None = None
    by_images: Mapping[str, Task] = field(default_factory=dict)

    def task_of(self, fields: Mapping[str, Any]) -> Task | None:
        """Return the task that a model must support for these request fields."""
        tasks = [task for name, task in self.by_images.items() if name in fields]
        return tasks[-1] if tasks else self.task


TOOLS = (
    Tool(
        "generate_image",
        "Generate images",
        "Generate images from a prompt. Returns each image and a temporary link to it.",
        ImageArguments,
        "text-to-image",
    ),
    Tool(
        "edit_image",
        "Edit an image",
        "Generate a new image from an image and a prompt: all of it, or where a mask is white.",
        EditArguments,
        "image-to-image",
        {"mask_image": "inpainting"},
    ),
    Tool(
        "generate_video",
        "Generate a video",
        "Generate a video from a prompt, and optionally a first frame. Returns a link to it."
        " This takes minutes.",
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
class ToolOutputs:
    """Outputs of an MCP tool's job.

    Args:
        files: contents of its images; empty for videos, which are returned as links only.
    """

    job: Job
    links: list[str]
    files: list[bytes]


async def list_models(call: Call) -> list[dict[str, Any]]:
    """Return the models' names, tasks, defaults, limits and schedulers."""
    models = await call.front.models.all()
    return [
        {
            "name": name,
            "tasks": [*models[name].spec.tasks],
            "ready": models[name].ready,
            "defaults": dict(models[name].spec.defaults),
            "limits": models[name].spec.limits.model_dump(),
            "schedulers": sorted(models[name].spec.schedulers),
        }
        for name in sorted(models)
    ]


async def run_tool(
    call: Call, tool: Tool, arguments: Arguments, report: Progress, hold: Hold
) -> ToolOutputs:
    """Run a job with an MCP tool's arguments and return its outputs; cancel it with the agent.

    Args:
        hold: counts the bytes of its files.

    Raises: Problem.
    """
    fields = fields_of(arguments)
    async with receive_request(call) as incoming:
        incoming.record_model(fields.get("model"))
        fields["model"] = await _model(call, tool, fields)
        for name in IMAGE_ARGUMENTS:
            if match := JOB.fullmatch(fields.get(name, "")):
                fields[name] = await _image_of_job(call, match, hold)
        job = await incoming.admit(fields, NAMES)
    try:
        job = await _wait_with_progress(call, job, report)
    except asyncio.CancelledError:
        cancel_in_background(call, job)
        raise
    if not job.state.is_done:
        raise problem_without_output(job)
    are_images = job.outputs[0].content_type.startswith("image/")
    contents = await read_output_files(call.front, job, hold) if are_images else []
    return ToolOutputs(job, await links_of(call.front, call.request, job), contents)


async def _model(call: Call, tool: Tool, fields: Mapping[str, Any]) -> str:
    """Return the named model, or the only model that supports the task. Raises: Problem."""
    task = tool.task_of(fields)
    specs = {name: model.spec for name, model in (await call.front.models.all()).items()}
    candidates = [name for name in sorted(specs) if task in specs[name].tasks]
    named = fields.get("model")
    if not named and len(candidates) != 1 and specs:
        proposal = f"name a model; available: {', '.join(candidates)}"
        raise Invalid(
            [FieldError("model", proposal if candidates else f"no model here supports {task}")]
        )
    spec = (await call.front.models.get(named or next(iter(candidates), None))).spec
    if _makes_videos(spec) is not (tool.arguments is VideoArguments):
        others = ", ".join(candidates) or "none"
        message = (
            f"{spec.name!r} supports {', '.join(spec.tasks)}; models for {tool.name}: {others}"
        )
        raise Invalid([FieldError("model", message)])
    return spec.name


def _makes_videos(spec: ModelSpec) -> bool:
    return any(task.endswith("-to-video") for task in spec.tasks)


async def _image_of_job(call: Call, match: re.Match[str], hold: Hold) -> str:
    """Return an image that one of the tenant's jobs generated, in base64. Raises: Problem."""
    job = await call.front.job(match[1], call.tenant)
    index = int(match[2] or 0)
    if index >= len(job.outputs):
        message = f"the job {job.id} is {job.state} and has {len(job.outputs)} outputs"
        raise Invalid([FieldError("image", message)])
    hold.add(job.outputs[index].bytes)
    return base64.b64encode(await call.front.outputs.read(job.outputs[index])).decode()


async def _wait_with_progress(call: Call, job: Job, report: Progress) -> Job:
    """Report a job's steps until it ends or the wait times out; return the job."""
    last_step = 0
    try:
        async with (
            asyncio.timeout(call.front.settings.limits.max_wait_s),
            aclosing(events_of(call.front, job.id, "0")) as events,
        ):
            async for event in events:
                if event and event.name == "progress" and event.data["step"] > last_step:
                    last_step = event.data["step"]
                    stage = (event.data.get("detail") or {}).get("stage", "denoising")
                    await report(last_step, event.data["steps"], stage)
    except TimeoutError:
        pass
    return await call.front.job(job.id, job.tenant)
