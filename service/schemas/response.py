"""Views that clients see: jobs, models and problems."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Literal
from urllib.parse import quote

from pydantic import BaseModel, ConfigDict, Field

from models.spec.controls import ControlKind
from models.spec.hires import FIELD as HIRES
from models.spec.image_prompts import ImagePrompt
from models.spec.lora import PAGE_RANK, Lora
from models.spec.model_spec import Batching, Need, Sizes
from models.spec.option import Option
from models.spec.quality_presets import Quality
from models.spec.upscalers import Upscaler
from service.jobs.model.job import (
    Detail,
    Job,
    JobError,
    JobState,
    MadeBy,
    Output,
    Stage,
    Usage,
    Warned,
)
from service.jobs.queue import ModelStatus
from service.schemas import examples
from service.schemas.examples import shown
from service.schemas.limits import Bounds, bounds_of
from service.settings.limits import LimitSettings


class View(BaseModel):
    """Base of what the API answers."""

    model_config = ConfigDict(use_attribute_docstrings=True)


class ProgressView(View):
    """Progress of a job in denoising steps."""

    step: int
    """Denoising steps done, over all images of the job."""
    steps: int
    """Denoising steps to do, over all images of the job."""


class DetailView(View):
    """Current stage of a running job: that of its least advanced image."""

    stage: Stage
    """Stage that it is in."""
    since: str
    """Time at which the stage began (RFC 3339)."""
    expected_s: float | None
    """Total time expected of `compiling`, by earlier measurements; null where unknown, and of any
    other stage."""


class QueueView(View):
    """Place of a job in the queue, with its expected end."""

    position: int | None
    """Jobs of all tenants that are to start before it; null unless it is queued."""
    eta_s: float | None
    """Seconds until it is done, queued or running, by measured costs and all that waits and runs
    now; null where nothing honest can be said."""


NOWHERE = QueueView(position=None, eta_s=None)


class OutputView(View):
    """Output of a job."""

    index: int
    """Place among the job's outputs, from 0."""
    url: str
    """Path of the file on this server."""
    content_type: str
    """Media type of the file."""
    width: int
    """Width in pixels."""
    height: int
    """Height in pixels."""
    seed: int
    """Seed that makes this one alone."""
    sha256: str
    """SHA-256 of the file."""
    pixels_sha256: str | None
    """SHA-256 of its pixels before they are encoded: three bytes each, row by row, frame by frame.
    The same for every format and quality, with metadata and without; null of a file that an earlier
    version made."""
    bytes: int
    """Size of the file."""
    num_frames: int | None
    """Number of frames of a video in one file, as the next two are; null of an image and of a
    single frame."""
    fps: float | None
    """Frames per second."""
    duration_s: float | None
    """Length in seconds."""
    sound_hz: int | None
    """Samples a second of its sound; null of an image and of a silent video."""
    made_by: MadeBy | None
    """Provenance, beside the request: checkpoint, chip, layout and programs. Null of a file that an
    earlier version made."""
    base64: str | None = None
    """The file itself, where the request said `output.inline`."""


class JobView(View):
    """A job: what was asked, how far it is, what came out."""

    model_config = ConfigDict(json_schema_extra=shown(examples.JOB))

    id: str
    """Id by which to ask for it."""
    object: Literal["job"] = "job"
    """Kind of this object."""
    state: JobState
    """State that it is in; the last five are ends."""
    model: str
    """Name of the model in the request."""
    served_by: str
    """Name of the model that serves it: of an alias, the version that was drawn."""
    model_fingerprint: str | None
    """Fingerprint of the checkpoint that serves it, which changes whenever weights or configs do;
    null of a job that an earlier version has accepted."""
    created_at: str
    """Time at which it was accepted (RFC 3339), as the next three are."""
    started_at: str | None
    """Time at which a pool began with it last; null before that."""
    finished_at: str | None
    """Time at which it ended; null before that."""
    expires_at: str | None
    """Time at which it is forgotten, with its files and the drafts of a paused job; null until it
    has ended."""
    reuses: str | None
    """Id of the job whose files it was given copies of; null: it was drawn."""
    continues: str | None
    """Id of the paused job whose drafts it finishes; null: of none."""
    progress: ProgressView
    """Denoising steps done and to do."""
    detail: DetailView | None
    """Null unless it is running, and until its pool has said so."""
    queue: QueueView
    """Place in the queue, and expected end."""
    request: dict[str, Any]
    """Resolved fields, the seed included; an image is shown by its key in the store."""
    outputs: list[OutputView]
    """Files that it made, of a paused job the previews of its drafts; empty until it has succeeded
    or paused."""
    usage: Usage
    """Resources that it has used."""
    error: JobError | None
    """Reason for its failure; null unless it has failed."""
    warnings: list[Warned]
    """Warnings about fields without effect, and prompts that were cut."""
    metadata: dict[str, str]
    """Names and texts of the request, untouched."""


class JobPage(View):
    """A page of a tenant's jobs, newest first."""

    model_config = ConfigDict(json_schema_extra=shown(examples.JOBS))

    object: Literal["list"] = "list"
    """Kind of this object."""
    data: list[JobView]
    """Jobs, newest first."""
    has_more: bool
    """Whether older ones follow."""
    next: str | None
    """Value of `after` for the page that follows; null: there is none."""


class ModelView(View):
    """A model: what it serves, and whether it does so now."""

    model_config = ConfigDict(json_schema_extra=shown(examples.MODEL))

    id: str
    """Name again, for clients of OpenAI's API, as the next three."""
    object: Literal["model"] = "model"
    """Kind of this object."""
    created: int = 0
    """Time of its making, which nobody keeps: always 0."""
    owned_by: Literal["atelier"] = "atelier"
    """Name of the server's software."""
    name: str
    """Name that requests give it."""
    version: str | None
    """Model that most requests of this alias are served by now, and that the rest of this object
    is of; null: it is no alias."""
    fingerprint: str
    """Fingerprint of its checkpoint, which changes whenever weights or configs do."""
    family: str
    """Family of networks that it is of."""
    tasks: list[str]
    """Tasks that it serves, such as `text-to-image`."""
    fields: list[str]
    """Request fields that it serves; any other is refused by name."""
    needed: list[str]
    """Request fields that every request has to set, beside the images of its task."""
    strength_needs: Literal["image", "mask_image"]
    """Image that a request with `strength` has to have, where the model serves it."""
    needs: dict[str, list[Need]]
    """Conditions of a field's effect, by field; where they do not hold a job gets a warning."""
    limits: Bounds
    """Bounds of its request fields: the stricter of the model's and the server's."""
    defaults: dict[str, Any]
    """Values of request fields that are left out."""
    task_defaults: dict[str, dict[str, Any]]
    """Defaults of single tasks that differ from `defaults`."""
    schedulers: dict[str, dict[str, Option]]
    """Names that the field `scheduler` may have, each with the options that go beside it."""
    qualities: dict[str, Quality]
    """Names that the field `quality` may have beside `exact`, each with the levers that it pulls
    and, where it was measured, how near its images are to exact ones."""
    image_prompts: dict[str, ImagePrompt]
    """Names that an entry of the field `image_prompts` may have, each with what it adds."""
    controls: dict[str, ControlKind]
    """Names that an entry of the field `control` may have."""
    upscalers: dict[str, Upscaler]
    """Names that the field `upscale` may have, each with its scale."""
    hires_upscalers: tuple[str, ...]
    """Names that `hires.upscaler` may have, the default first; empty: it has no hires fix."""
    has_exact: bool
    """Whether it draws exact images, too: not where its weights are of 8 bits alone."""
    base: str | None
    """Model that this one is with an adapter: its pools serve it, and it takes its adapters. Null:
    it stands for itself."""
    batching: Batching
    """Whether the same request has the same bytes whatever runs beside it."""
    sizes: Sizes
    """Sizes that it serves."""
    sound_hz: int | None
    """Samples a second of the sound that its videos have; null: they have none."""
    max_lora_rank: int | None
    """Maximum rank that the adapters of one image have together, each rounded up to a multiple of
    16; null: the model takes no adapters."""
    pools: list[str]
    """Pools that serve it now."""
    ready: bool
    """Whether at least one of them has finished its warm-up."""


class ModelPage(View):
    """The registered models."""

    model_config = ConfigDict(json_schema_extra=shown(examples.MODELS))

    object: Literal["list"] = "list"
    """Kind of this object."""
    data: list[ModelView]
    """Models by name."""


class LoraView(View):
    """An adapter that requests may name."""

    model_config = ConfigDict(json_schema_extra=shown(examples.LORA))

    name: str
    """Name that requests give it."""
    object: Literal["lora"] = "lora"
    """Kind of this object."""
    model: str
    """Model that it is for."""
    origin: Literal["settings", "upload"]
    """Whether the operator's settings name it, or the tenant has uploaded it."""
    trigger: str
    """Words that a prompt should hold."""
    rank: int
    """The highest rank of a layer."""
    networks: list[str]
    """Networks that it changes."""
    bytes: int
    """Size of its file."""
    digest: str
    """SHA-256 of its file, in hexadecimal; empty where it could not be read."""
    preview: str | None
    """Path of an image that shows it."""
    ready: bool
    """Whether requests may name it."""
    error: str | None
    """Reason why they may not; null: they may."""


class LoraPage(View):
    """The adapters that the caller's requests may name, by name."""

    model_config = ConfigDict(json_schema_extra=shown(examples.LORAS))

    object: Literal["list"] = "list"
    """Kind of this object."""
    data: list[LoraView]
    """Adapters by name."""


class Health(View):
    """Answer of a process that lives."""

    model_config = ConfigDict(json_schema_extra=shown(examples.HEALTH))

    status: Literal["ok"] = "ok"
    """Always `ok`: another state is an error."""


class FieldErrorView(View):
    """A field at fault, with what is wrong with it."""

    field: str
    """Field, parameter or header; a member of a field with a dot: `loras.0.name`."""
    message: str
    """Message for people: what is wrong with it."""


class OpenAIErrorView(View):
    """The same error for clients of the OpenAI kind."""

    message: str
    """Message for people, as `detail`."""
    type: str
    """Kind of error in OpenAI's terms, such as `invalid_request_error`."""
    param: str | None
    """First field at fault; null: none in particular."""
    code: str
    """Kind of the problem, for programs, such as `queue_full`."""


class ProblemView(View):
    """RFC 9457, with what was wrong field by field."""

    type: str
    """URI of the kind of problem: `urn:atelier:problem:` and its code."""
    title: str
    """Title of its status."""
    status: int
    """Status of the answer."""
    detail: str
    """Message for people: what happened and what to do."""
    errors: list[FieldErrorView] = Field(default_factory=list)
    """Fields at fault; left out where it is none of them."""
    error: OpenAIErrorView
    """The same in the form of OpenAI's API."""


def job_url(job_id: str) -> str:
    """Return the path of a job."""
    return f"/v1/jobs/{job_id}"


def output_url(job_id: str, index: int) -> str:
    """Return the path of a job's output."""
    return f"{job_url(job_id)}/outputs/{index}"


def view_job(
    job: Job,
    place: QueueView = NOWHERE,
    files: Mapping[int, bytes] | None = None,
    *,
    retention_s: float,
) -> JobView:
    """A job as clients see it.

    Args:
        place: where it stands in its queue.
        files: outputs by index that go into the answer itself.
        retention_s: time that an ended job is kept.
    """
    return JobView(
        id=job.id,
        state=job.state,
        model=(model := str(job.request.get("model", job.model))),
        served_by=job.served_by or model,
        model_fingerprint=job.fingerprint or None,
        created_at=timestamp(job.created_at),
        started_at=timestamp(job.started_at) if job.started_at else None,
        finished_at=timestamp(job.finished_at) if job.finished_at else None,
        expires_at=timestamp(job.finished_at + retention_s) if job.finished_at else None,
        reuses=job.copied_from,
        continues=job.continues,
        progress=ProgressView(step=job.step, steps=job.steps),
        detail=_view_detail(job.detail),
        queue=place,
        request=job.request,
        outputs=[_view_output(job.id, output, files or {}) for output in job.outputs],
        usage=job.usage,
        error=job.error,
        warnings=job.warnings,
        metadata=job.metadata,
    )


def _view_detail(detail: Detail | None) -> DetailView | None:
    if detail is None:
        return None
    return DetailView(
        stage=detail.stage, since=timestamp(detail.since), expected_s=detail.expected_s
    )


def _view_output(job_id: str, output: Output, files: Mapping[int, bytes]) -> OutputView:
    data = files.get(output.index)
    return OutputView(
        url=output_url(job_id, output.index),
        base64=base64.b64encode(data).decode() if data is not None else None,
        **output.model_dump(exclude={"key"}),
    )


def timestamp(seconds: float) -> str:
    """Return a time since the epoch as RFC 3339 writes it."""
    text = datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")
    return text.replace("+00:00", "Z")


def view_model(status: ModelStatus, limits: LimitSettings) -> ModelView:
    """Return a model as the API shows it."""
    spec = status.spec
    return ModelView(
        id=spec.name,
        name=spec.name,
        version=spec.version or None,
        fingerprint=spec.fingerprint,
        family=spec.family,
        tasks=list(spec.tasks),
        fields=sorted(spec.fields),
        needed=sorted(spec.needed),
        strength_needs=spec.strength_needs,
        needs={name: list(needs) for name, needs in spec.needs.items()},
        limits=bounds_of(spec.limits, limits),
        defaults=dict(spec.defaults),
        task_defaults={task: dict(values) for task, values in spec.task_defaults.items()},
        schedulers={name: dict(options) for name, options in spec.schedulers.items()},
        qualities=dict(spec.qualities),
        image_prompts=dict(spec.image_prompts),
        controls=dict(spec.controls),
        upscalers=dict(spec.upscalers),
        hires_upscalers=spec.hires_upscalers if HIRES in spec.fields else (),
        has_exact=spec.has_exact,
        base=spec.runs_on if spec.runs_on not in ("", spec.version) else None,
        batching=spec.batching,
        sizes=spec.sizes,
        sound_hz=spec.sound_hz,
        max_lora_rank=PAGE_RANK * spec.lora_pages or None,
        pools=sorted(status.pools),
        ready=status.ready,
    )


def view_models(models: Sequence[ModelStatus], limits: LimitSettings) -> ModelPage:
    """Return all models as the API shows them."""
    return ModelPage(data=[view_model(status, limits) for status in models])


def lora_url(name: str) -> str:
    """Return the path of an adapter."""
    return f"/v1/loras/{quote(name, safe='')}"


def view_lora(lora: Lora) -> LoraView:
    """Return an adapter as the API shows it."""
    return LoraView(
        name=lora.name,
        model=lora.model,
        origin=lora.origin,
        trigger=lora.trigger,
        rank=lora.rank,
        networks=list(lora.networks),
        bytes=lora.bytes,
        digest=lora.digest,
        preview=f"{lora_url(lora.name)}/preview" if lora.preview else None,
        ready=lora.error is None,
        error=lora.error,
    )


def view_loras(loras: Iterable[Lora]) -> LoraPage:
    """Return adapters as the API shows them, by name."""
    return LoraPage(data=[view_lora(lora) for lora in loras])
