"""Job: an accepted request in its versioned wire form, which front ends and workers share."""

from __future__ import annotations

import secrets
from typing import Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field

from models.spec.lora import RequestedLora
from service.jobs.model.state_machine import JobState as JobState

WIRE_VERSION = 3
"""Newest wire version of jobs that this code reads. It grows when older readers would misread some
newer jobs, and only those jobs have the new version. Other new fields get a default instead."""
BASE_VERSION, ENLARGER_VERSION, AUDITION_VERSION = 1, 2, 3
"""Wire versions: jobs that any reader understands; jobs with an enlarger between the passes of
hires fix; auditions, and jobs that continue them."""

DEFAULT_TENANT = "default"
"""Tenant of all clients if no API keys are required."""
DEFAULT_CLASS = "default"
"""Metrics class of tenants without one in the settings."""
ErrorCode = Literal[
    "out_of_memory",
    "non_finite",
    "invalid_request",
    "lora_gone",
    "refused_by_safety",
    "safety_unavailable",
    "store",
    "poisonous",
    "lost",
    "internal",
]
CLIENT_ERRORS = frozenset({"invalid_request", "lora_gone", "refused_by_safety"})
"""Failure reasons caused by the request, its adapters or its content. The tenant pays for the job,
and no objective counts it. `ledger.lua` and the rules of Prometheus have the same list."""
NO_CLAIM = 0
"""Fence in the store keys of files that no claim made: copies that are put with their job."""
STOP_AT_STEP = "stop_at_step"
"""Field of a request that makes it an audition."""
PRIORITIES = {"low": 0, "normal": 1, "high": 2}


class MadeBy(BaseModel):
    """Provenance of an output. Equal provenance and request give equal pixels, bit for bit."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    checkpoint: str
    """Fingerprint of the model's checkpoint."""
    platform: str
    """JAX platform of the devices: `tpu`, `gpu` or `cpu`."""
    chip: str
    """Kind of the chips, such as `v6e` or `h100`; `cpu` for CPUs."""
    layout: str
    """Mesh axes that partition the work, with their sizes: `cfg=2,tensor=4`; or `one device`."""
    jax: str
    """Version of JAX; empty for a diffusers model, whose versions are part of `programs`."""
    programs: str
    """SHA-256 of all inputs of the compiled programs: sources, packages, flags, chips, layout and
    the model's configs."""

    def rounds_as(self, other: MadeBy) -> bool:
        """Return whether both outputs come from the same programs, regardless of the weights."""
        return self.programs == other.programs


class Output(BaseModel):
    """Stored file of a job: an image, a video, or one frame of a video.

    Frames are numbered over all videos of a job: frame f of video i has the index i * frames + f.
    """

    model_config = ConfigDict(frozen=True)

    index: int
    key: str
    """Key of the file in the store."""
    content_type: str
    width: int
    height: int
    seed: int
    sha256: str
    """SHA-256 of the file."""
    pixels_sha256: str | None = None
    """SHA-256 of the pixels before encoding; null in files of an earlier version."""
    bytes: int
    beside_bytes: int = 0
    """Bytes of a video's thumbnail and sprite sheet."""
    num_frames: int | None = None
    """Number of frames of a video file; null for an image, as are the next two fields."""
    fps: float | None = None
    duration_s: float | None = None
    sound_hz: int | None = None
    """Sample rate of a video's sound; null: it is silent."""
    made_by: MadeBy | None = None
    """Provenance of the file; None: an earlier version made it."""


class WorkerCrash(BaseModel):
    """Crash or stall of a worker during a job: its lease lapsed without a result."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    pool: str
    """Name of the worker."""
    step: int
    """Last step that the worker reported."""
    at: float
    """Time at which the lapsed lease was detected: seconds since the epoch."""


class JobError(BaseModel):
    """Reason for a job's failure: `code` for programs, `message` for people."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    code: ErrorCode
    """Kind of the failure, for programs."""
    message: str
    """Message for people: what happened and what to do."""
    deaths: list[WorkerCrash] = Field(default_factory=list)
    """Crashes and stalls of workers that ran a poisonous job, oldest first."""


class FieldWarning(BaseModel):
    """Warning about a request field that was accepted but not used as written."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    field: str
    """Field of the request. A nested field has a dot: `scheduler.flow_shift`."""
    message: str
    """Message for people: how the field was used, and why."""


class Snapshot(BaseModel):
    """Saved progress of one image of a running or queued job, or the draft of a paused one.

    A snapshot has the image's state in the store or, if the image is finished, its files. A draft
    has both.
    """

    model_config = ConfigDict(frozen=True)

    index: int
    """Index of the image."""
    step: int
    """Number of completed denoising steps."""
    fence: int
    """Fence of the claim that saved it."""
    device_seconds: float = 0.0
    """Device-seconds spent on these steps, except those that an audition has paid for."""
    key: str | None = None
    """Key of the state in the store; None: the image is finished, or its state cannot be saved."""
    bytes: int = 0
    """Size of a draft's state. 0 for the state of an unended job, which no quota counts."""
    outputs: tuple[Output, ...] = ()
    """Outputs of a finished image or of a draft."""


class Usage(BaseModel):
    """Resources that a job has used: device time, compile time and others."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    steps: int = 0
    """Denoising steps that ran, summed over the images."""
    device_seconds: float = 0.0
    """Seconds of a mesh slice, over all attempts: encoding, steps, decoding, upscaling, and
    `compile_seconds`. They include processor time for decoding and scaling uploaded videos."""
    compile_seconds: float = 0.0
    """Part of `device_seconds` for compiling programs that this job was the first to need, however
    the job ends. Compilations that outlast the job are added when they finish."""
    queue_seconds: float = 0.0
    """Seconds in the queue, over all attempts."""


Stage = Literal["compiling", "loading_adapters", "denoising", "decoding", "upscaling", "storing"]
STAGES: tuple[Stage, ...] = get_args(Stage)
"""Stages of a running job, in order."""


class Detail(BaseModel):
    """Current stage of a running job: that of its least advanced image."""

    model_config = ConfigDict(frozen=True)

    stage: Stage
    since: float
    """Start of the stage: seconds since the epoch."""
    expected_s: float | None = None
    """Expected duration of compiling; None: unknown."""


class DraftDifferences(BaseModel):
    """Differences between the request of a job's drafts and the job's own request."""

    model_config = ConfigDict(frozen=True)

    fields: dict[str, Any]
    """Values in the drafts' request of fields that differ; null: the field was missing."""
    steps: int
    """Number of steps of each draft."""
    seeds: tuple[int, ...] | None = None
    """Seeds of the drafts, if the images have others; None: the seeds are equal."""

    def of(self, number: int, seed: int) -> dict[str, Any]:
        """Return the differing fields of the draft of one image, given the image's seed."""
        if self.seeds is None or self.seeds[number] == seed:
            return self.fields
        return {**self.fields, "seed": self.seeds[number]}


class SecondPass(BaseModel):
    """Second pass of a job, in its own size: hires fix, or full size after smaller first steps."""

    model_config = ConfigDict(frozen=True)

    bucket: str
    steps: int
    """Denoising steps, summed over all images of the job."""


class Job(BaseModel):
    """Accepted request with its state. Times are seconds since the epoch, by Redis's clock."""

    model_config = ConfigDict(hide_input_in_errors=True)  # validation errors are logged

    version: int = BASE_VERSION
    """Oldest wire version whose readers understand it."""
    id: str
    model: str
    bucket: str
    """`ModelSpec.bucket` of the request: jobs of one model and bucket are claimed together."""
    served_by: str | None = None
    """Version that was drawn for an alias; None: the request names the serving model."""
    fingerprint: str = ""
    """Fingerprint of the checkpoint: first of the accepted model, then of the worker that claimed
    the job last. Empty in jobs of an earlier version."""
    tenant: str = DEFAULT_TENANT
    tenant_class: str = DEFAULT_CLASS
    """Metrics class of its tenant."""
    key_id: str | None = None
    """Id of the API key of the request; None: no keys are required."""
    priority: int = PRIORITIES["normal"]
    state: JobState = JobState.QUEUED
    created_at: float = 0.0
    started_at: float | None = None
    finished_at: float | None = None
    deadline_at: float | None = None
    """Time after which the job expires."""
    credited: bool | None = None
    """True if its tenant had credit for the deadline at acceptance. The job then keeps its place
    among deadlines, however far its tenant is ahead of its share by then."""
    guaranteed: bool | None = None
    """True if it was accepted because its tenant's turn comes in time. It then keeps its place
    among deadlines, except behind jobs that arrived earlier and whose turn it is."""
    request: dict[str, Any] = Field(default_factory=dict)
    """Resolved fields of the request, including the seed. Images are replaced by their store
    keys."""
    loras: list[RequestedLora] = Field(default_factory=list)
    """Adapters that the request names, as of acceptance."""
    images: int = Field(default=1, ge=1)
    """Number of images or videos. Number i has seed + i, or its own of `seeds`."""
    seeds: list[int] | None = None
    """Seeds of the images of a job that continues drafts; None: consecutive seeds."""
    continues: str | None = None
    """Id of the audition whose drafts it continues."""
    reuses: str | None = None
    """Id of the job whose files were copied for this one; None: it generates its own."""
    awaits: str | None = None
    """Id of an unended job with an equal request. This job may be given copies of its files."""
    encodes: str | None = None
    """Id of a job whose request differs only in the format of its lossless images. This job may
    encode them in its own format instead of generating them."""
    avoid: str | None = None
    """Name of a worker that leaves the job to others for `queue.affinity_s`, if its model has
    others: of a verification, the worker that generated the output."""
    drafted: DraftDifferences | None = None
    """Differences of its drafts' request; None: no difference."""
    draft_ttl_s: float | None = None
    """Seconds that the drafts of an audition are kept; None: as long as the job."""
    drafts_expire_at: float | None = None
    """Time at which the drafts of a paused job are deleted; None: with the job."""
    draft_steps: int | None = None
    """Total number of steps of the drafts that it was put with; None: no drafts."""
    step: int = 0
    steps: int = 0
    """Denoising steps completed (`step`) and in total (`steps`), summed over all images."""
    second_pass: SecondPass | None = None
    """Bucket and steps of a second pass; None: the job has one pass."""
    attempts: int = 0
    """Number of claims by workers."""
    pool: str | None = None
    """Name of the worker that claimed it last."""
    detail: Detail | None = None
    """Current stage of a running job, once the worker has reported one."""
    outputs: list[Output] = Field(default_factory=list)
    usage: Usage = Usage()
    error: JobError | None = None
    warnings: list[FieldWarning] = Field(default_factory=list)
    """Warnings about fields of the request that have no effect, or not the named one."""
    cost: float = Field(default=1.0, gt=0)
    """Predicted device-seconds, which its tenant is charged."""
    compile_s: float = Field(default=0.0, ge=0)
    """Part of `cost` for compiling its programs; 0 if a worker has compiled them."""
    max_compiling: int | None = None
    """Maximum number of its tenant's jobs that workers compile for at a time; None: no limit."""
    tail_s: float = Field(default=0.0, ge=0)
    """Part of `cost` and `run_s` for upscaling."""
    run_s: float | None = None
    """Predicted seconds alone on the fastest worker, without compiling; None: unknown."""
    weight: float = Field(default=1.0, gt=0)
    """Weight of its tenant's share against other tenants'."""
    snapshots: list[Snapshot] = Field(default_factory=list)
    """Snapshots of its images, at most one each. Of ended jobs, only paused ones have any: their
    drafts."""
    deaths: list[WorkerCrash] = Field(default_factory=list)
    """Crashes and stalls of its workers since its snapshots last got past the step of one."""
    metadata: dict[str, str] = Field(default_factory=dict)
    previews: int = 0
    """Number of previews that the client requested, even for a short job."""
    traceparent: str | None = None
    """Span of the request, in the format of W3C Trace Context."""
    request_id: str | None = None
    """Id of the HTTP request, for the log."""

    @property
    def copied_from(self) -> str | None:
        """Id of the job whose images this one has, without generating them; None: no such job."""
        is_copied = self.state is JobState.SUCCEEDED and not self.usage.steps
        return self.awaited if self.awaited and is_copied else self.reuses

    @property
    def awaited(self) -> str | None:
        """Id of the job whose images it waits for, to copy or encode them; None: no such job."""
        return self.awaits or self.encodes

    @property
    def stop_at_step(self) -> int | None:
        """Step at which an audition's images stop; None: the job is no audition."""
        return self.request.get(STOP_AT_STEP)

    @property
    def remaining_share(self) -> float:
        """Share of the job's steps that no snapshot covers."""
        saved = sum(snapshot.step for snapshot in self.snapshots)
        return 1 - min(1.0, saved / max(1, self.steps))

    @property
    def own_cost(self) -> float:
        """Part of the job's `cost` that its audition has not paid for."""
        return self.cost * (1 - (self.draft_steps or 0) / max(1, self.steps))

    def seed_of(self, number: int) -> int:
        """Return the seed of one of the job's images."""
        return self.seeds[number] if self.seeds else int(self.request["seed"]) + number

    @property
    def log_fields(self) -> dict[str, str | None]:
        """Fields that log lines about the job have, for `log_context.log_fields`."""
        return {
            "request_id": self.request_id,
            "key_id": self.key_id,
            "job": self.id,
            "tenant": self.tenant,
        }

    def passes(self, done: int = 0) -> tuple[tuple[str, int], ...]:
        """Return the bucket and remaining steps of each pass, after `done` steps of all images."""
        later = self.second_pass
        if later is None:
            return ((self.bucket, self.steps - done),)
        first = self.steps - later.steps
        return (
            (self.bucket, max(0, first - done)),
            (later.bucket, later.steps - max(0, done - first)),
        )


def new_job_id() -> str:
    """Return a new random id."""
    return "job_" + secrets.token_hex(12)
