"""`[pools.NAME]`: workers of one model, and the devices that each has."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from service.settings.mesh import HostsSettings, MeshSettings
from service.settings.section import Section


class PoolSettings(Section):
    model: str
    hosts: HostsSettings = HostsSettings()
    count: int = Field(1, gt=0)
    """Mesh slices, each with a pool of its own; requests are scheduled across them."""
    devices: int | None = Field(None, gt=0)
    """Of one slice, on each of its hosts; left out: what `mesh` says, or its share of the host."""
    mesh: Literal["auto"] | MeshSettings = "auto"
    """How a slice splits its work; "auto" chooses for the model, the chips and their memory."""
    table: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    """Rows of the sharding table that differ: logical axis to mesh axes."""
    slots: int | None = Field(None, gt=0)
    """Pictures denoised together; left out: of `per_device_batch_size`, or 4, and fewer where
    memory holds no more. What is set and does not fit is refused with the number that does."""
    per_device_batch_size: float | None = Field(None, gt=0)
    """Slots a device; may be a fraction: 0.25 on 4 devices is one picture over four."""
    elastic: bool = True
    """Whether a slice also works on several pictures side by side, where no weight has to move and
    its model's `batching` is "fast"."""
    precision: Literal["default", "high", "highest"] = "default"
    """Of matrix products of float32 on accelerators that have faster, coarser ones."""
    flags: Literal["auto"] | tuple[str, ...] = "auto"
    """For XLA and libtpu, besides those that are known to help this model on these chips, and in
    place of those of the same name; "auto": these alone."""
    batch_sizes: tuple[int, ...] = ()
    """Compiled batch sizes where its model's `batching` is "fast", 1 always among them; empty: 1,
    2, 4, … up to slots."""
    max_compiling: int = Field(1, gt=0)
    """Jobs at the same time whose programs have to be compiled; further ones wait, and jobs whose
    programs are there go before them."""
    metrics_port: int | None = Field(None, ge=0, le=65535)
    """Where the pool tells how it is: /healthz, /readyz and /metrics; 0: any free port, None: no
    such page."""
    preview_every_s: float = Field(1, ge=0)
    """Of each job that runs; 0: no previews."""
    drain_s: float = Field(30, gt=0)
    """From SIGTERM to the end at the most. Jobs that end in half of it may; the others are put
    aside, for other pools to go on with."""
    snapshot_share: float = Field(0.01, ge=0, lt=1)
    """Of the time that steps take, for keeping how far pictures are, and as much again for putting
    jobs aside for others; 0: only when the pool drains."""
    store_patience_s: float = Field(30, ge=0)
    """How long a pool holds a finished file that the store does not take, and tries again; then the
    attempt is given up, and made again from what is kept of it. Reading waits as long."""
    quantum_s: float = Field(5, gt=0)
    """How long a job runs at least before it may be put aside for one of higher priority, or one
    that would miss its deadline; inf: none is."""
    preemption_ratio: float = Field(4, ge=1)
    """How many times as long as that one takes it would have to wait for a slot, or more: so that
    clips are put aside for pictures, and not pictures for each other."""
