"""A job as it lies in the queue: the versioned wire form that front end and pools share."""

from __future__ import annotations

import secrets
from typing import Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field

from models.spec.lora import RequestedLora
from service.jobs.model.state_machine import JobState

WIRE_VERSION = 3
"""Newest version of a job that is read here. It grows when an older reader would misread some newer
jobs, which alone have it; new fields come with a default instead."""
PLAIN, ENLARGED, AUDITIONED = 1, 2, 3
"""Versions of jobs: any reader's, those with an enlarger between the passes of hires fix, and
auditions with the jobs that continue them."""

DEFAULT_TENANT = "default"
"""Everybody, where no keys are wanted."""
DEFAULT_CLASS = "default"
"""Metrics class of tenants that the settings put into no other class."""
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
CLIENTS_FAULT = frozenset({"invalid_request", "lora_gone", "refused_by_safety"})
"""Failures that lie with the request, its adapters or its content: its tenant pays for the job, and
no objective counts it. `ledger.lua` and the rules of Prometheus have the same list."""
NO_CLAIM = 0
"""Fence of what the store has of a job that no claim has made: copies, put with it."""
STOP_AT_STEP = "stop_at_step"
"""Field of a request that makes it an audition."""
PRIORITIES = {"low": 0, "normal": 1, "high": 2}


class MadeBy(BaseModel):
    """Provenance of an output, beside its request: equal ones draw equal pixels, bit for bit."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    checkpoint: str
    """Fingerprint of the model's checkpoint."""
    platform: str
    """Platform of the devices, by JAX's name: `tpu`, `gpu` or `cpu`."""
    chip: str
    """Kind of the chips, such as `v6e` or `h100`; `cpu` where there are none."""
    layout: str
    """Mesh axes that split the work, with their sizes: `cfg=2,tensor=4`; or `one device`."""
    jax: str
    """Version of JAX."""
    programs: str
    """SHA-256 of all that the programs were compiled from: sources, packages, flags, chips, layout
    and the model's configs."""

    def rounds_as(self, other: MadeBy) -> bool:
        """Return whether the other one runs the same programs, whatever their weights."""
        return self.programs == other.programs


class Output(BaseModel):
    """File in the store: an image, a video, or one frame of a video.

    Frames are counted on over the videos of a job: frame f of video i has the index i * frames + f.
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
    """SHA-256 of its pixels, before they are encoded; null of a file of an earlier version."""
    bytes: int
    beside_bytes: int = 0
    """Bytes of the small images beside a video."""
    num_frames: int | None = None
    """Number of frames of a video in one file, as the next two are; null of an image."""
    fps: float | None = None
    duration_s: float | None = None
    sound_hz: int | None = None
    """Samples a second of a video's sound; null: it is silent."""
    made_by: MadeBy | None = None
    """Provenance of the file; None: an earlier version made it."""


class Death(BaseModel):
    """A pool died or stalled with the job: its lease lapsed without a word."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    pool: str
    """Name of the pool."""
    step: int
    """The last that the pool told of."""
    at: float
    """Time at which the lapsed lease was found: seconds since the epoch."""


class JobError(BaseModel):
    """Reason for a job's failure: `code` for programs, `message` for people."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    code: ErrorCode
    """Kind of the failure, for programs."""
    message: str
    """Message for people: what happened and what to do."""
    deaths: list[Death] = Field(default_factory=list)
    """Deaths of the pools that ran a poisonous job, oldest first."""


class Warned(BaseModel):
    """Warning about a field that was accepted but not used as written."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    field: str
    """Field of the request; a member of one with a dot: `scheduler.flow_shift`."""
    message: str
    """Message for people: what became of it, and why."""


class Snapshot(BaseModel):
    """Saved progress of one image of an unended job, or of a paused one: its draft.

    Its state in the store or, where the image is finished already, its files; a draft has both.
    """

    model_config = ConfigDict(frozen=True)

    index: int
    """Index of the image."""
    step: int
    """Denoising steps done."""
    fence: int
    """Fence of the claim that saved it."""
    device_seconds: float = 0.0
    key: str | None = None
    """Key of the state in the store; None: the image is finished, or its state cannot be kept."""
    bytes: int = 0
    """Size of a draft's state; 0 of a state that a running job has kept, which no quota counts."""
    outputs: tuple[Output, ...] = ()
    """Outputs of a finished image, or of a draft."""


class Usage(BaseModel):
    """Resources that a job has used."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    steps: int = 0
    """Denoising steps that ran, summed over the images."""
    device_seconds: float = 0.0
    """Seconds of a mesh slice, in all attempts: encoding, steps, decoding, upscaling, and
    `compile_seconds`. With the processor time of decoding and scaling videos that were sent."""
    compile_seconds: float = 0.0
    """Seconds of these for compiling programs that this job was the first to need, however it ends:
    what is still being compiled then is added when that is over."""
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
    """Seconds since the epoch."""
    expected_s: float | None = None
    """Expected duration of compiling; None: unknown."""


class Drafted(BaseModel):
    """Request of a branch's drafts, as far as it differs."""

    model_config = ConfigDict(frozen=True)

    fields: dict[str, Any]
    """Fields of the request that the job has others of, a missing one null."""
    steps: int
    """Steps of each draft."""
    seeds: tuple[int, ...] | None = None
    """Seeds of the drafts, where images have others; None: they have the same."""

    def of(self, number: int, seed: int) -> dict[str, Any]:
        """Return the fields that the draft of an image of that seed had otherwise."""
        if self.seeds is None or self.seeds[number] == seed:
            return self.fields
        return {**self.fields, "seed": self.seeds[number]}


class SecondPass(BaseModel):
    """Second pass of a job with hires fix or smaller first steps, in a size of its own."""

    model_config = ConfigDict(frozen=True)

    bucket: str
    steps: int
    """Denoising steps, over all images of the job."""


class Job(BaseModel):
    """Accepted request. Times are seconds since the epoch, by Redis's clock."""

    model_config = ConfigDict(hide_input_in_errors=True)  # errors end in logs

    version: int = PLAIN
    """Oldest wire version whose readers do not misread it."""
    id: str
    model: str
    bucket: str
    """`ModelSpec.bucket` of the request: jobs of one model and bucket are claimed together."""
    served_by: str | None = None
    """Model that an alias has drawn for it; None: its request names the one that serves it."""
    fingerprint: str = ""
    """Fingerprint of the checkpoint: of the model as it was accepted for, then of the pool that
    claimed it last; empty of a job of an earlier version."""
    tenant: str = DEFAULT_TENANT
    tenant_class: str = DEFAULT_CLASS
    """Metrics class of its tenant."""
    key_id: str | None = None
    """Id of the API key that it was sent with; None: no keys are required."""
    priority: int = PRIORITIES["normal"]
    state: JobState = JobState.QUEUED
    created_at: float = 0.0
    started_at: float | None = None
    finished_at: float | None = None
    deadline_at: float | None = None
    """Time after which the answer is of no use: the job expires."""
    credited: bool | None = None
    """True if its tenant had credit for the deadline when it was accepted: then it keeps its place
    among deadlines, however far its tenant is ahead by then."""
    guaranteed: bool | None = None
    """True if it was accepted as its tenant's turn comes in time: then it keeps its place among
    deadlines, but for jobs that came before it and whose turn it is."""
    request: dict[str, Any] = Field(default_factory=dict)
    """Resolved fields, the seed included; images are replaced by their store key."""
    loras: list[RequestedLora] = Field(default_factory=list)
    """Adapters that the request names, as they were when it was accepted."""
    images: int = Field(default=1, ge=1)
    """Number of images or videos: number i has seed + i, or its own of `seeds`."""
    seeds: list[int] | None = None
    """Seeds of the images of a job that continues drafts; None: they follow one another."""
    continues: str | None = None
    """Id of the audition whose drafts it continues."""
    reuses: str | None = None
    """Id of the job whose files it has copies of; None: it draws its own."""
    awaits: str | None = None
    """Id of the job that draws the same and had not ended when this one was put: this one may be
    given copies of its files."""
    drafted: Drafted | None = None
    """Request of its drafts, as far as it differs; None: they are its own."""
    draft_steps: int | None = None
    """Steps that the drafts had done, all together, that it was put with; None: it had none."""
    step: int = 0
    steps: int = 0
    """Denoising steps done and to do, over all images of the job."""
    second_pass: SecondPass | None = None
    """Bucket and share of `steps` of a second pass; None: it has one pass."""
    attempts: int = 0
    """Number of claims by pools."""
    pool: str | None = None
    """The one that claimed it last."""
    detail: Detail | None = None
    """Stage while it is running, as soon as the pool has reported one."""
    outputs: list[Output] = Field(default_factory=list)
    usage: Usage = Usage()
    error: JobError | None = None
    warnings: list[Warned] = Field(default_factory=list)
    """Warnings about fields of the request without effect, or with another than they name."""
    cost: float = Field(default=1.0, gt=0)
    """Device-seconds that it is predicted to take: what its tenant is charged."""
    compile_s: float = Field(default=0.0, ge=0)
    """Share of `cost` that compiling its programs is predicted to take: 0 where a pool has them."""
    max_compiling: int | None = None
    """Jobs of its tenant that may be compiled for at the same time; None: any."""
    tail_s: float = Field(default=0.0, ge=0)
    """Part of `cost` and `run_s` that is upscaling."""
    run_s: float | None = None
    """Seconds that it would take alone on the fastest pool, compiled; None: not known."""
    weight: float = Field(default=1.0, gt=0)
    """Weight of its tenant's share against others'."""
    snapshots: list[Snapshot] = Field(default_factory=list)
    """Snapshots of its images, at most one each; of jobs that have ended, paused ones alone have
    any: their drafts."""
    deaths: list[Death] = Field(default_factory=list)
    """Deaths of its pools since it was last known to have got further than where one died."""
    metadata: dict[str, str] = Field(default_factory=dict)
    previews: int = 0
    """Number of previews that its client has asked for, however short it is."""
    traceparent: str | None = None
    """The span of the request that it came with, as W3C Trace Context writes it."""
    request_id: str | None = None
    """Id of that request, for the log."""

    @property
    def copied_from(self) -> str | None:
        """Id of the job whose files it has copies of; None: it drew its own, or has not ended."""
        is_copied = self.state is JobState.SUCCEEDED and not self.usage.steps
        return self.awaits if self.awaits and is_copied else self.reuses

    @property
    def stop_at_step(self) -> int | None:
        """Return the step at which an audition's images stop; None: they are drawn to the end."""
        return self.request.get(STOP_AT_STEP)

    @property
    def undone(self) -> float:
        """Return the share of its steps that no snapshot keeps."""
        kept = sum(snapshot.step for snapshot in self.snapshots)
        return 1 - min(1.0, kept / max(1, self.steps))

    @property
    def own_cost(self) -> float:
        """Return the part of `cost` that its audition has not paid for."""
        return self.cost * (1 - (self.draft_steps or 0) / max(1, self.steps))

    def seed_of(self, number: int) -> int:
        """Return the seed of an image."""
        return self.seeds[number] if self.seeds else int(self.request["seed"]) + number

    @property
    def log_fields(self) -> dict[str, str | None]:
        """Return what lines of log about it say, as `log_context.about` takes it."""
        return {
            "request_id": self.request_id,
            "key_id": self.key_id,
            "job": self.id,
            "tenant": self.tenant,
        }

    def passes(self, done: int = 0) -> tuple[tuple[str, int], ...]:
        """Return bucket and steps to do of each pass, over all images, after so many steps."""
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
