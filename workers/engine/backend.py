"""Interface between the pool and what generates images: the engine, or a diffusers pipeline."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from models.interface.pipeline import Fields
from models.spec.model_spec import ModelSpec
from service.jobs.scheduling.cost_model import CostKey, CostRow
from workers.engine.errors import EngineFailed
from workers.engine.generation import Draft, EngineOutput, ImageRequest
from workers.engine.observer import UNOBSERVED, Observer
from workers.engine.place import Place
from workers.engine.snapshot import RowSnapshot
from workers.programs.batch_sizes import BatchSizes
from workers.programs.bucket_programs import StepKind


class HasSpec(Protocol):
    """Protocol of a loaded model with its spec."""

    spec: ModelSpec


class Costs(Protocol):
    """Protocol of measured costs by the queue's buckets; see `LatencyStats`."""

    reported_compile_s: Mapping[str, float]

    @property
    def available(self) -> tuple[str, ...]:
        """Buckets that need no compilation."""

    def is_compiled(self, bucket: str) -> bool:
        """Return whether requests of a bucket need no compilation."""

    def bucket(self, fields: Fields) -> str | None:
        """Return the queue's bucket of a request; None: the request lacks a field that forms it."""

    def rows(self, layout: str, devices: int) -> dict[CostKey, CostRow]:
        """Return the measured costs per bucket, layout and batch size."""


class TriedPrograms(Protocol):
    """Protocol of the programs that a trial has run, by step kind."""

    @property
    def step_kinds(self) -> Mapping[Any, StepKind]:
        """Step kinds with their batch layouts; empty: nothing is compiled by batch size."""

    @property
    def untried(self) -> Sequence[int]:
        """Return batch sizes without a measurement."""


class Preparation(Protocol):
    """Protocol of an engine's warm-up and trials; see `Readiness`."""

    async def warm_up(self, requests: Sequence[Fields]) -> None:
        """Compile all programs that each request needs alone."""

    async def larger_ready(self, requests: Sequence[Fields]) -> None:
        """Wait until the larger batches of warm-up requests have compiled."""

    async def try_out(
        self, fields: Fields, steps: int, others: asyncio.Barrier | None = None
    ) -> TriedPrograms:
        """Run a request's first steps and decode its image, to measure and test the programs."""

    async def levels(self, fields: Fields) -> int:
        """Measure the largest pixel difference of an image between batch layouts."""

    async def is_compiled(self, fields: Fields, images: Mapping[str, bytes]) -> bool:
        """Return whether a request's programs are all compiled."""

    async def find_stored(self, buckets: Iterable[str]) -> None:
        """Check which of the queue's buckets have stored executables."""


class LoadedAdapters(Protocol):
    """Protocol of the adapters on the device; see `Adapters`."""

    @property
    def digests(self) -> list[str]:
        """Digests of the adapters on the device, the most recently used first."""

    @property
    def load_s(self) -> float:
        """Median seconds of the latest adapter loads; 0 before the first."""


class UpscalerCosts(Protocol):
    """Protocol of measured costs of upscaling; see `Upscalers`."""

    def rows(self, layout: str, devices: int) -> dict[CostKey, CostRow]:
        """Return the measured costs of upscaling."""


class StepCounter(Protocol):
    """Protocol of the counter of steps, for profiles; see `StepLoop`."""

    @property
    def load(self) -> int:
        """Number of rows whose steps a profile can record."""

    @property
    def settled(self) -> int:
        """Number of batches whose step has ended."""


class Backend(Protocol):
    """Generator of one model's images (protocol), with all that its worker uses. See `Engine`."""

    slots: int

    @property
    def pipeline(self) -> HasSpec:
        """Loaded model's pipeline, with its spec."""

    @property
    def batching(self) -> BatchSizes:
        """Batch sizes of the backend's steps."""

    @property
    def place(self) -> Place:
        """Devices of the engine, and what its outputs depend on besides requests."""

    @property
    def failure(self) -> asyncio.Future[EngineFailed]:
        """Failure of the backend; completes only when it can generate no more."""

    @property
    def costs(self) -> Costs:
        """Measured costs by bucket."""

    @property
    def readiness(self) -> Preparation:
        """Warm-up and trials of the backend."""

    @property
    def adapters(self) -> LoadedAdapters:
        """Adapters on the backend's devices."""

    @property
    def upscalers(self) -> UpscalerCosts:
        """Measured costs of upscaling."""

    @property
    def step_loop(self) -> StepCounter:
        """Counter of steps, for profiles."""

    async def generate(
        self,
        fields: Fields,
        images: Mapping[str, bytes],
        observer: Observer = UNOBSERVED,
        begin: RowSnapshot | None = None,
        tenant: str = "",
    ) -> EngineOutput:
        """Generate one image or video. To cancel it, cancel the task."""

    async def draft(
        self, request: ImageRequest, stop_at: int, observer: Observer = UNOBSERVED
    ) -> Draft:
        """Generate an image's first `stop_at` steps only."""

    async def position(
        self, request: ImageRequest, drafted: Fields, done: int, observer: Observer = UNOBSERVED
    ) -> int:
        """Return the step at which an image continues a draft of another number of steps."""

    async def preview(self, row: Any, tenant: str = "") -> np.ndarray | None:
        """Return a preview of an unfinished row; None: this model has none.

        Args:
            row: a row that an observer of this backend got.
            tenant: tenant in whose turn it is decoded.
        """

    async def take_snapshot(self, row: Any, tenant: str = "") -> RowSnapshot:
        """Copy a row's state for another engine."""

    async def offload_weights(self) -> None:
        """Move the model's weights off the devices. No request may be sent meanwhile."""

    async def reload_weights(self, keep_copies: bool = True) -> float:
        """Load the weights again; return the seconds."""

    def close(self) -> None:
        """Stop after the step in flight. Unfinished images are dropped."""
