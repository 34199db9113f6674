"""`[pools.NAME]`: workers of a model, and the devices that each has."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from service.settings.mesh import HostsSettings, MeshSettings
from service.settings.section import Section


class PoolSettings(Section):
    """The workers of a model, or of several on the same devices."""

    model: str
    """Name of the model in `models`."""
    also: tuple[str, ...] = ()
    """Further models of the same family that its workers serve, on the same devices: checkpoints of
    one base. Weights that are equal lie there once. Of slices on one host."""
    by_turns: tuple[str, ...] = ()
    """Further models, of any family, that its workers serve by turns: the weights of one are on the
    devices, those of the others in host memory. Of slices on one host."""
    turn_s: float = Field(30, gt=0)
    """Shortest time that a model of `by_turns` has the devices while it has work and another one's
    jobs wait; longer where swaps would take more than a tenth of the time. Then its jobs end within
    `quantum_s`, or are put aside and go on later."""
    hosts: HostsSettings = HostsSettings()
    """The hosts of one worker, where its slice lies on several."""
    count: int = Field(1, gt=0)
    """Number of workers, each on a mesh slice of its own."""
    devices: int | None = Field(None, gt=0)
    """Devices of one worker on each of its hosts. Left out: what `mesh` says, or its share of the
    host."""
    mesh: Literal["auto"] | MeshSettings = "auto"
    """Parallelism of a mesh slice. "auto": chosen for the model, the chips and their memory."""
    table: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    """Rows of the sharding table that differ: logical axis to mesh axes."""
    slots: int | None = Field(None, gt=0)
    """Images denoised together. Left out: by `per_device_batch_size`, or 4, and fewer where memory
    holds no more. A number that does not fit is refused with the one that does."""
    per_device_batch_size: float | None = Field(None, gt=0)
    """Slots per device; may be a fraction: 0.25 on 4 devices is one image over four."""
    elastic: bool = True
    """Whether a slice also works on several images side by side, where no weight has to move and
    the model's `batching` is "fast"."""
    precision: Literal["default", "high", "highest"] = "default"
    """Precision of float32 matrix products on accelerators that have faster, coarser ones."""
    flags: Literal["auto"] | tuple[str, ...] = "auto"
    """Flags for XLA and libtpu, added to those known to help this model on these chips, and in
    place of those of the same name. "auto": none besides these."""
    batch_sizes: tuple[int, ...] = ()
    """Compiled batch sizes where the model's `batching` is "fast"; 1 is always among them. Empty:
    1, 2, 4, … up to `slots`."""
    max_compiling: int = Field(1, gt=0)
    """Maximum number of jobs that one worker compiles programs for; further ones wait, and jobs
    whose programs exist go before them."""
    metrics_port: int | None = Field(None, ge=0, le=65535)
    """Port of the worker's /healthz, /readyz and /metrics; 0: any free one. Left out: no such
    page."""
    preview_every_s: float = Field(1, ge=0)
    """Interval of previews of each running job, besides those that its client asks for
    (`partial_images`); 0: no previews."""
    drain_s: float = Field(30, gt=0)
    """Time from SIGTERM to the end of the process. Jobs that end in half of it may; the others are
    put back for other workers to go on with."""
    snapshot_share: float = Field(0.01, ge=0, lt=1)
    """Share of the steps' time for snapshots, and as much again for preemption; 0: snapshots only
    when the worker drains."""
    store_patience_s: float = Field(30, ge=0)
    """Time that a worker retries a store that fails, for reading and writing. Then it gives the
    attempt up, and another goes on from the last snapshot."""
    lora_cache_bytes: int = Field(4 * 2**30, ge=0)
    """Size of the folder that keeps uploaded adapters on the worker's own disk; the longest unused
    ones leave."""
    quantum_s: float = Field(5, gt=0)
    """Shortest time that a job runs before it may be preempted by one of higher priority, or one
    that would miss its deadline; inf: never."""
    preemption_ratio: float = Field(4, ge=1)
    """Preempt only where the other job would otherwise wait this many times as long as it runs:
    videos make way for images, and not images for each other."""

    receipts: float = Field(0.01, ge=0, le=1)
    """Share of the images and videos of other presets than `exact` that a worker keeps in memory
    and draws again exactly while its devices are idle, to report the PSNR that was kept; 0: none.
    """

    @property
    def models(self) -> tuple[str, ...]:
        """Names of all models that its workers serve."""
        return (self.model, *self.also, *self.by_turns)

    @model_validator(mode="after")
    def _serves_each_once(self) -> PoolSettings:
        if len({*self.models}) < len(self.models):
            raise ValueError("also, by_turns: name other models than `model`, and each once")
        if self.also and self.by_turns:
            raise ValueError("also: models lie side by side or come by turns; make a pool for each")
        if (self.also or self.by_turns) and self.hosts.count > 1:
            raise ValueError(
                f"{'also' if self.also else 'by_turns'}: slices on several hosts serve one model; "
                "make a pool for each"
            )
        return self
