"""A job as it lies in the queue: the versioned wire form that front end and pools share."""

from __future__ import annotations

import secrets
from typing import Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field

from service.jobs.model.state_machine import JobState

WIRE_VERSION = 1
"""Grows when an older reader would misread a newer job; new fields come with a default instead."""

DEFAULT_TENANT = "default"
"""Everybody, where no keys are wanted."""
DEFAULT_CLASS = "default"
"""What metrics call tenants that the settings put into no other class."""
ErrorCode = Literal[
    "out_of_memory", "non_finite", "invalid_request", "store", "poisonous", "lost", "internal"
]
PRIORITIES = {"low": 0, "normal": 1, "high": 2}


class Output(BaseModel):
    """One file in the store: an image, a video, or one frame of a video.

    Frames are counted on over the videos of a job: frame f of video i has the index i * frames + f.
    """

    model_config = ConfigDict(frozen=True)

    index: int
    key: str
    """Where the store keeps it."""
    content_type: str
    width: int
    height: int
    seed: int
    sha256: str
    bytes: int
    num_frames: int | None = None
    """Of a video in one file, as the next two are; null of an image."""
    fps: float | None = None
    duration_s: float | None = None


class Death(BaseModel):
    """A pool died or stalled with the job: its lease lapsed without a word."""

    model_config = ConfigDict(frozen=True)

    pool: str
    step: int
    """The last that the pool told of."""
    at: float
    """When the lease was found to have lapsed: seconds since the epoch."""


class JobError(BaseModel):
    """Why a job failed: `code` for programs, `message` for people (what happened, what to do)."""

    model_config = ConfigDict(frozen=True)

    code: ErrorCode
    message: str
    deaths: list[Death] = Field(default_factory=list)
    """Of a poisonous job: the pools that died with it, oldest first."""


class Warned(BaseModel):
    """What was accepted but not as written."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    field: str
    """Of the request; a member of one with a dot: `scheduler.flow_shift`."""
    message: str


class Snapshot(BaseModel):
    """What is kept of one image of an unended job.

    Its state in the store or, where the image is finished already, its files.
    """

    model_config = ConfigDict(frozen=True)

    index: int
    """Of the image."""
    step: int
    """Denoising steps done."""
    fence: int
    """Of the claim that kept it."""
    device_seconds: float = 0.0
    key: str | None = None
    """Where the store has the state; None: the image is finished."""
    outputs: tuple[Output, ...] = ()
    """Of a finished image."""


class Usage(BaseModel):
    """What a job has taken."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    steps: int = 0
    """Denoising steps that ran, summed over the images."""
    device_seconds: float = 0.0
    """Of a mesh slice, in all attempts: encoding, steps, decoding, and `compile_seconds`."""
    compile_seconds: float = 0.0
    """Of these, for compiling programs that this job was the first to need, however it ends: what
    is still being compiled then is added when that is over."""
    queue_seconds: float = 0.0


Stage = Literal["loading_adapters", "compiling", "denoising", "decoding", "storing"]
STAGES: tuple[Stage, ...] = get_args(Stage)
"""Of a running job, in their order."""


class Detail(BaseModel):
    """What a running job does now: the least advanced of its images."""

    model_config = ConfigDict(frozen=True)

    stage: Stage
    since: float
    """Seconds since the epoch."""
    expected_s: float | None = None
    """How long it takes, of compiling; None: nobody knows."""


class Job(BaseModel):
    """One accepted request. Times are seconds since the epoch, by Redis's clock."""

    model_config = ConfigDict(hide_input_in_errors=True)  # errors end in logs

    version: int = WIRE_VERSION
    id: str
    model: str
    bucket: str
    """`ModelSpec.bucket` of the request: jobs of one model and bucket are claimed together."""
    tenant: str = DEFAULT_TENANT
    tenant_class: str = DEFAULT_CLASS
    """What metrics call its tenant."""
    priority: int = PRIORITIES["normal"]
    state: JobState = JobState.QUEUED
    created_at: float = 0.0
    started_at: float | None = None
    finished_at: float | None = None
    deadline_at: float | None = None
    """After this the answer is of no use: the job expires."""
    request: dict[str, Any] = Field(default_factory=dict)
    """Every field as it was resolved, the seed too; images are replaced by their store key."""
    images: int = Field(default=1, ge=1)
    """How many images or videos: number i has seed + i."""
    step: int = 0
    steps: int = 0
    """Denoising steps done and to do, over all images of the job."""
    attempts: int = 0
    """How often a pool has claimed it."""
    pool: str | None = None
    """The one that claimed it last."""
    detail: Detail | None = None
    """While it is running, as soon as the pool has said so."""
    outputs: list[Output] = Field(default_factory=list)
    usage: Usage = Usage()
    error: JobError | None = None
    warnings: list[Warned] = Field(default_factory=list)
    """What of its request has no effect, or not the one it names."""
    cost: float = Field(default=1.0, gt=0)
    """Device-seconds that it is predicted to take: what its tenant is charged."""
    compile_s: float = Field(default=0.0, ge=0)
    """Of `cost`, what compiling its programs is predicted to take: 0 where a pool has them."""
    max_compiling: int | None = None
    """Jobs of its tenant that may be compiled for at the same time; None: any."""
    run_s: float | None = None
    """Seconds that it would take alone on the fastest pool, compiled; None: not known."""
    weight: float = Field(default=1.0, gt=0)
    """Its tenant's share, against those of others."""
    snapshots: list[Snapshot] = Field(default_factory=list)
    """Of its images, one each at the most; none of a job that has ended."""
    deaths: list[Death] = Field(default_factory=list)
    """Of its pools, since it was last known to have got further than where one died."""
    metadata: dict[str, str] = Field(default_factory=dict)
    traceparent: str | None = None
    """The span of the request that it came with, as W3C Trace Context writes it."""


def new_job_id() -> str:
    """Return a new random id."""
    return "job_" + secrets.token_hex(12)
