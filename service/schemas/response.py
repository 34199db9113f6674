"""Response bodies of the public API: jobs, models, adapters and problems."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal
from urllib.parse import quote

from pydantic import BaseModel, ConfigDict, Field

from models.spec.controls import ControlKind
from models.spec.hires import FIELD as HIRES
from models.spec.image_prompts import ImagePrompt
from models.spec.lora import PAGE_RANK, Lora
from models.spec.model_spec import Batching, ModelSpec, Need, Sizes
from models.spec.option import Option
from models.spec.quality_presets import Quality
from models.spec.upscalers import Upscaler
from service.jobs.model.job import (
    Detail,
    FieldWarning,
    Job,
    JobError,
    JobState,
    MadeBy,
    Output,
    Stage,
    Usage,
)
from service.jobs.queue import ModelStatus
from service.schemas import examples
from service.schemas.examples import schema_example
from service.schemas.limits import Bounds, bounds_of
from service.settings.limits import LimitSettings
from service.tracing.log_format import rfc3339


class View(BaseModel):
    """Base of the API's response bodies."""

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
    """Name of the stage."""
    since: str
    """Time at which the stage began (RFC 3339)."""
    expected_s: float | None
    """Expected total time of `compiling`, from earlier measurements; null if unknown, and for other
    stages."""


Basis = Literal["measured", "estimated"]


class QueueView(View):
    """Position of a job in the queue, and its estimated end."""

    position: int | None
    """Number of jobs, of all tenants, that will start before it; null unless it is queued."""
    eta_s: float | None
    """Estimated seconds until it is done, queued or running, by the costs of its size and the
    current load; null if no reliable estimate exists."""
    eta_basis: Basis | None
    """Origin of these costs: `measured`, also from another size, or `estimated` from the operations
    of the model's programs before the first measurement; null without `eta_s`."""


NOWHERE = QueueView(position=None, eta_s=None, eta_basis=None)


class OutputView(View):
    """Generated file of a job, with its URL, digests and provenance."""

    index: int
    """Index among the job's outputs, from 0."""
    url: str
    """Path of the file on this server."""
    content_type: str
    """Media type of the file."""
    width: int
    """Width in pixels."""
    height: int
    """Height in pixels."""
    seed: int
    """Seed that reproduces this output alone."""
    sha256: str
    """SHA-256 of the file."""
    pixels_sha256: str | None
    """SHA-256 of its pixels before encoding: three bytes each, row by row, frame by frame. It is
    independent of format, quality and metadata; null for a file made by an earlier version."""
    bytes: int
    """Size of the file."""
    num_frames: int | None
    """Number of frames of a video in one file. This and the next two fields are null for an image
    or a single frame."""
    fps: float | None
    """Frames per second."""
    duration_s: float | None
    """Length in seconds."""
    sound_hz: int | None
    """Sample rate of its sound in Hz; null for an image or a silent video."""
    made_by: MadeBy | None
    """Provenance in addition to the request: checkpoint, chip, layout and programs. Null for a file
    made by an earlier version."""
    base64: str | None = None
    """File contents, if the request set `output.inline`."""


class JobView(View):
    """Job: its request, progress and outputs."""

    model_config = ConfigDict(json_schema_extra=schema_example(examples.JOB))

    id: str
    """Id of the job, for later requests."""
    object: Literal["job"] = "job"
    """Kind of this object."""
    state: JobState
    """Current state; the last five values are final."""
    model: str
    """Name of the model in the request."""
    served_by: str
    """Name of the model that serves it; for an alias, the version that was chosen."""
    model_fingerprint: str | None
    """Fingerprint of the checkpoint that serves it, which changes with weights or configs; null for
    a job accepted by an earlier version."""
    created_at: str
    """Time of acceptance (RFC 3339, like the next four fields)."""
    started_at: str | None
    """Time at which a worker last started it; null before that."""
    finished_at: str | None
    """Time at which it ended; null before that."""
    expires_at: str | None
    """Time at which it is deleted with its files; null until it has ended."""
    drafts_expire_at: str | None
    """Time at which the drafts of a paused job are deleted, or were; null for other jobs."""
    reuses: str | None
    """Id of the job whose files were copied; null if the job generated its own."""
    continues: str | None
    """Id of the paused job whose drafts it finishes; null if none."""
    progress: ProgressView
    """Denoising steps done and to do."""
    detail: DetailView | None
    """Current stage; null unless the job is running and its worker has reported one."""
    queue: QueueView
    """Position in the queue, and estimated end."""
    request: dict[str, Any]
    """Resolved fields, including the seed. Images are represented by their key in the store."""
    outputs: list[OutputView]
    """Generated files, or the previews of a paused job's drafts; empty until it has succeeded or
    paused."""
    usage: Usage
    """Resources used."""
    error: JobError | None
    """Failure reason; null unless it has failed."""
    warnings: list[FieldWarning]
    """Warnings about fields without effect and truncated prompts."""
    metadata: dict[str, str]
    """Names and texts of the request, unchanged."""


class LinksView(View):
    """URLs of an accepted job."""

    job: str
    """Job, to poll or to delete."""
    events: str
    """Events of the job as they happen."""


class AcceptedView(View):
    """Accepted job in short, for `Prefer: return=minimal`."""

    model_config = ConfigDict(json_schema_extra=schema_example(examples.ACCEPTED))

    id: str
    """Id of the job, for later requests."""
    object: Literal["job.accepted"] = "job.accepted"
    """Kind of this object."""
    links: LinksView
    """URLs of the job."""


class JobPage(View):
    """Page of a tenant's jobs, newest first."""

    model_config = ConfigDict(json_schema_extra=schema_example(examples.JOBS))

    object: Literal["list"] = "list"
    """Kind of this object."""
    data: list[JobView]
    """Jobs, newest first."""
    has_more: bool
    """Whether older jobs follow."""
    next: str | None
    """Value of `after` for the next page; null on the last."""


class ModelView(View):
    """Model that the server offers: its capabilities, limits, defaults and availability."""

    model_config = ConfigDict(json_schema_extra=schema_example(examples.MODEL))

    id: str
    """Name again. This and the next three fields are for clients of OpenAI's API."""
    object: Literal["model"] = "model"
    """Kind of this object."""
    created: int = 0
    """Creation time, which is not recorded: always 0."""
    owned_by: Literal["atelier"] = "atelier"
    """Name of the server's software."""
    name: str
    """Name for requests."""
    aliases: list[str]
    """Other names for requests, from this server's settings."""
    version: str | None
    """Version that serves most requests of this alias now, and that the rest of this object
    describes; null if not an alias."""
    fingerprint: str
    """Fingerprint of its checkpoint, which changes with weights or configs."""
    family: str
    """Model family; `diffusers` for all models without a native one."""
    backend: Literal["native", "diffusers"]
    """Generator of its images: JAX, or a diffusers pipeline on torch."""
    lacks: list[str]
    """Guarantees of native models that do not hold for this one, such as `resume`."""
    tasks: list[str]
    """Tasks that it serves, such as `text-to-image`."""
    fields: list[str]
    """Request fields that it serves. Others are rejected by name."""
    needed: list[str]
    """Request fields that are required, in addition to the images of its task."""
    strength_needs: Literal["image", "mask_image"]
    """Image that a request with `strength` requires, if the model serves that field."""
    needs: dict[str, list[Need]]
    """Conditions under which fields have an effect, by field. Otherwise the job gets a warning."""
    limits: Bounds
    """Limits of its request fields: the stricter of the model's and the server's."""
    defaults: dict[str, Any]
    """Defaults of request fields."""
    task_defaults: dict[str, dict[str, Any]]
    """Defaults of individual tasks that differ from `defaults`."""
    schedulers: dict[str, dict[str, Option]]
    """Allowed names of the field `scheduler`, each with its options."""
    qualities: dict[str, Quality]
    """Allowed names of the field `quality` other than `exact`, each with its optimizations and, if
    measured, the similarity of its images to exact ones."""
    image_prompts: dict[str, ImagePrompt]
    """Allowed names in the field `image_prompts`, each with its properties."""
    controls: dict[str, ControlKind]
    """Allowed names in the field `control`."""
    upscalers: dict[str, Upscaler]
    """Allowed names of the field `upscale`, each with its scale."""
    hires_upscalers: tuple[str, ...]
    """Allowed names of `hires.upscaler`, the default first; empty if it has no hires fix."""
    has_exact: bool
    """Whether it also generates exact images: false if it has only 8-bit weights."""
    base: str | None
    """Base model, if this model is a base with an adapter: the base's workers serve it, and it
    accepts the same adapters. Otherwise null."""
    batching: Batching
    """Whether the same request gives the same bytes in any batch."""
    sizes: Sizes
    """Sizes that it serves."""
    sound_hz: int | None
    """Sample rate of its videos' sound in Hz; null if silent."""
    has_alpha: bool
    """Whether its images can be transparent (`output.background`)."""
    max_lora_rank: int | None
    """Maximum total rank of one image's adapters, each rounded up to a multiple of 16; null if the
    model accepts none."""
    pools: list[str]
    """Pools that serve it now."""
    ready: bool
    """Whether at least one of them has finished its warm-up."""
    warnings: list[str]
    """Warnings about its files, and those of adapters for all tenants, whose contents are partly
    ignored or changed."""


class ModelPage(View):
    """Page of the registered models."""

    model_config = ConfigDict(json_schema_extra=schema_example(examples.MODELS))

    object: Literal["list"] = "list"
    """Kind of this object."""
    data: list[ModelView]
    """Models by name."""


class LoraView(View):
    """LoRA adapter or embedding that requests may name, from the settings or uploaded."""

    model_config = ConfigDict(json_schema_extra=schema_example(examples.LORA))

    name: str
    """Name for requests."""
    object: Literal["lora"] = "lora"
    """Kind of this object."""
    model: str
    """Model of the adapter."""
    origin: Literal["settings", "upload"]
    """Whether the operator's settings define it, or the tenant uploaded it."""
    trigger: str
    """Trigger words that prompts should contain."""
    rank: int
    """Highest rank of a layer, as requests use it."""
    vectors: int
    """Tokens of an embedding, which prompts name; 0: an adapter."""
    embeddings: list[str]
    """Embeddings in an adapter's file."""
    networks: list[str]
    """Networks that it modifies."""
    bytes: int
    """Size of its file."""
    digest: str
    """SHA-256 of its file, in hexadecimal; empty if the file could not be read."""
    preview: str | None
    """Path of an example image."""
    ready: bool
    """Whether requests may use it."""
    error: str | None
    """Reason why requests may not use it; null if they may."""
    warnings: list[str]
    """Differences between its file and what requests use."""


class LoraPage(View):
    """Page of adapters that the caller's requests may use, by name."""

    model_config = ConfigDict(json_schema_extra=schema_example(examples.LORAS))

    object: Literal["list"] = "list"
    """Kind of this object."""
    data: list[LoraView]
    """Adapters by name."""


class Health(View):
    """Liveness response of a process."""

    model_config = ConfigDict(json_schema_extra=schema_example(examples.HEALTH))

    status: Literal["ok"] = "ok"
    """Always `ok`; other states are errors."""


class FieldErrorView(View):
    """Invalid field, with its error."""

    field: str
    """Field, parameter or header. Members of a field are separated by dots: `loras.0.name`."""
    message: str
    """Error message for people."""


class OpenAIErrorView(View):
    """Same error in the format of OpenAI's API."""

    message: str
    """Message for people, as `detail`."""
    type: str
    """Kind of error in OpenAI's terms, such as `invalid_request_error`."""
    param: str | None
    """First invalid field; null if the error concerns none."""
    code: str
    """Problem code for programs, such as `queue_full`."""


class ProblemView(View):
    """Problem details (RFC 9457), with errors by field."""

    type: str
    """URI of the problem type: `urn:atelier:problem:` and its code."""
    title: str
    """Title of the HTTP status."""
    status: int
    """HTTP status of the response."""
    detail: str
    """Message for people: what happened and what to do."""
    errors: list[FieldErrorView] = Field(default_factory=list)
    """Invalid fields; omitted if the problem concerns none."""
    error: OpenAIErrorView
    """The problem in OpenAI's format, which its SDKs read."""


def view_accepted(job_id: str) -> AcceptedView:
    """Return the short view of an accepted job."""
    url = job_url(job_id)
    return AcceptedView(id=job_id, links=LinksView(job=url, events=f"{url}/events"))


def job_url(job_id: str) -> str:
    """Return the URL path of a job."""
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
    """Convert a job to its view for clients.

    Args:
        place: its position in the queue.
        files: contents of outputs, by index, to include inline.
        retention_s: time that an ended job is kept.
    """
    return JobView(
        id=job.id,
        state=job.state,
        model=(model := str(job.request.get("model", job.model))),
        served_by=job.served_by or model,
        model_fingerprint=job.fingerprint or None,
        created_at=rfc3339(job.created_at),
        started_at=rfc3339(job.started_at) if job.started_at else None,
        finished_at=rfc3339(job.finished_at) if job.finished_at else None,
        expires_at=rfc3339(job.finished_at + retention_s) if job.finished_at else None,
        drafts_expire_at=_drafts_expire_at(job, retention_s),
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


def _drafts_expire_at(job: Job, retention_s: float) -> str | None:
    if job.state is not JobState.PAUSED or job.finished_at is None:
        return None
    with_job = job.finished_at + retention_s
    return rfc3339(min(job.drafts_expire_at or with_job, with_job))


def _view_detail(detail: Detail | None) -> DetailView | None:
    if detail is None:
        return None
    return DetailView(stage=detail.stage, since=rfc3339(detail.since), expected_s=detail.expected_s)


def _view_output(job_id: str, output: Output, files: Mapping[int, bytes]) -> OutputView:
    data = files.get(output.index)
    return OutputView(
        url=output_url(job_id, output.index),
        base64=base64.b64encode(data).decode() if data is not None else None,
        **output.model_dump(exclude={"key"}),
    )


def view_model(
    status: ModelStatus, limits: LimitSettings, aliases: Sequence[str] = ()
) -> ModelView:
    """Convert a registered model to its view for clients."""
    spec = status.spec
    return ModelView(
        id=spec.name,
        name=spec.name,
        aliases=list(aliases),
        version=spec.version or None,
        fingerprint=spec.fingerprint,
        family=spec.family,
        backend=spec.backend,
        lacks=list(spec.lacks),
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
        has_alpha=spec.has_alpha,
        max_lora_rank=PAGE_RANK * spec.lora_pages or None,
        pools=sorted(status.pools),
        ready=status.ready,
        warnings=[*spec.warnings, *_adapter_warnings(spec)],
    )


def _adapter_warnings(spec: ModelSpec) -> Iterator[str]:
    adapters = (lora for lora in spec.loras.values() if not lora.tenants)
    for lora in adapters:
        yield from (f"adapter {lora.name}: {warning}" for warning in lora.warnings)


def lora_url(name: str) -> str:
    """Return the URL path of a LoRA adapter."""
    return f"/v1/loras/{quote(name, safe='')}"


def view_lora(lora: Lora) -> LoraView:
    """Convert an adapter to its view for clients."""
    return LoraView(
        name=lora.name,
        model=lora.model,
        origin=lora.origin,
        trigger=lora.trigger,
        rank=lora.rank,
        vectors=lora.vectors,
        embeddings=sorted(lora.embeddings),
        networks=list(lora.networks),
        bytes=lora.bytes,
        digest=lora.digest,
        preview=f"{lora_url(lora.name)}/preview" if lora.preview else None,
        ready=lora.error is None,
        error=lora.error,
        warnings=list(lora.warnings),
    )


def view_loras(loras: Iterable[Lora]) -> LoraPage:
    """Convert adapters to a page for clients, by name."""
    return LoraPage(data=[view_lora(lora) for lora in loras])
