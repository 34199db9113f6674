"""`[pools.NAME]` with `mesh` and `hosts`: workers, and the mesh slices that they own."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from service.settings.section import Section


class HostsSettings(Section):
    """Processes of a slice that spans several hosts, one per host."""

    count: int = Field(1, gt=0)
    """Number of processes, one per host."""
    coordinator: str | None = None
    """HOST:PORT of the first process, for rendezvous. Default: processes of a TPU pod discover each
    other."""
    index: int | None = Field(None, ge=0)
    """Number of this process, from 0. Process 0 claims the jobs. Default: like `coordinator`."""
    port: int = Field(0, ge=0, le=65535)
    """Port on which process 0 sends work to the others; 0: any free port."""

    @model_validator(mode="after")
    def _is_whole(self) -> HostsSettings:
        if (self.coordinator is None) != (self.index is None):
            raise ValueError("coordinator and index go together; set both or none")
        if self.index is not None and self.index >= self.count:
            raise ValueError(f"index {self.index} is not one of {self.count} processes")
        return self


class MeshSettings(Section):
    """Sizes of a mesh slice's axes: data, fsdp, cfg, context, tensor.

    Axes are inside (`ici`) or between (`dcn`) hosts or TPU slices. One size of each may be -1 and
    takes the remaining devices. `{cfg = 2}` is short for `{ici = {cfg = 2}}`.
    """

    ici: dict[str, int] = Field(default_factory=dict)
    """Sizes of the axes inside a host or TPU slice."""
    dcn: dict[str, int] = Field(default_factory=dict)
    """Sizes of the axes between hosts or TPU slices."""
    ring: int | None = Field(None, gt=0)
    """Degree of ring attention: parts of the context that pass keys and values in a ring. The rest
    of the context axis uses Ulysses all-to-all. Default: as many as hosts and heads require."""

    @model_validator(mode="before")
    @classmethod
    def _short(cls, value: Any) -> Any:
        if not isinstance(value, dict) or value.keys() & {"ici", "dcn"}:
            return value
        sizes = {axis: size for axis, size in value.items() if axis != "ring"}
        return {"ici": sizes, "ring": value.get("ring")}


class PoolSettings(Section):
    """Workers of a model, or of several models on the same devices."""

    model: str
    """Name of the model in `models`."""
    also: tuple[str, ...] = ()
    """Additional models of the same family on the same devices: checkpoints of one base. Equal
    weights are loaded once. Only for slices on one host."""
    by_turns: tuple[str, ...] = ()
    """Additional models, of any family, that share the devices by time slicing. The weights of one
    are on the devices, the others' in host memory. Only for slices on one host."""
    turn_s: float = Field(30, gt=0)
    """Shortest time slice of a model of `by_turns` while it has work and another model's jobs wait.
    It is longer if swaps would take more than a tenth of the time. At its end, jobs finish within
    `quantum_s` or are suspended and resume later."""
    hosts: HostsSettings = HostsSettings()
    """Hosts of one worker whose slice spans several."""
    count: int = Field(1, gt=0)
    """Number of workers, each on a mesh slice of its own."""
    devices: int | None = Field(None, gt=0)
    """Devices of one worker on each of its hosts. Default: as `mesh` requires, or its share of the
    host."""
    mesh: Literal["auto"] | MeshSettings = "auto"
    """Parallelism of a mesh slice. "auto": chosen for the model, the chips and their memory."""
    table: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    """Overrides of the sharding table: logical axis to mesh axes."""
    slots: int | None = Field(None, gt=0)
    """Images denoised together. Default: according to `per_device_batch_size`, or 4, or fewer if
    memory is short. The error for a number that is too large states the largest that fits."""
    per_device_batch_size: float | None = Field(None, gt=0)
    """Slots per device. It may be a fraction: 0.25 on 4 devices is one image across four."""
    elastic: bool = True
    """Whether a slice may also run several images in data parallel. This requires that no weight
    moves and that the model's `batching` is "fast"."""
    precision: Literal["default", "high", "highest"] = "default"
    """Precision of float32 matrix products on accelerators with faster, less precise modes."""
    flags: Literal["auto"] | tuple[str, ...] = "auto"
    """Flags for XLA and libtpu. They extend those chosen for this model on these chips, and replace
    flags of the same name. "auto": only the chosen flags."""
    kernels: Literal["experimental", "plain"] = "experimental"
    """Kernels of attention on TPU v6e and TPU7x, and of 8-bit products on TPU v6e. "experimental":
    Atelier's own, which no chip has run yet; a worker compares them with the plain ones when it
    starts, and uses the plain ones where they differ. "plain": those of JAX and XLA."""
    batch_sizes: tuple[int, ...] = ()
    """Compiled batch sizes if the model's `batching` is "fast"; 1 is always included. Empty: 1, 2,
    4, … up to `slots`."""
    max_compiling: int = Field(1, gt=0)
    """Maximum number of jobs for which one worker compiles programs. Further jobs wait, and jobs
    with compiled programs overtake them."""
    metrics_port: int | None = Field(None, ge=0, le=65535)
    """Port of the worker's /healthz, /readyz and /metrics; 0: any free port. Default: these
    endpoints are off."""
    preview_every_s: float = Field(1, ge=0)
    """Interval of previews of each running job, in addition to those that the client requests
    (`partial_images`); 0: no previews."""
    drain_s: float = Field(30, gt=0)
    """Time from SIGTERM to exit. Jobs that can finish in half of it do; the others are requeued for
    other workers to resume."""
    snapshot_share: float = Field(0.01, ge=0, lt=1)
    """Maximum share of step time spent on snapshots, and again on preemption. 0: snapshots only
    when the worker drains."""
    store_patience_s: float = Field(30, ge=0)
    """Time that a worker retries failed reads and writes of the store. The attempt then fails, and
    another worker resumes from the last snapshot."""
    lora_cache_bytes: int = Field(4 * 2**30, ge=0)
    """Size of the worker's local cache of uploaded adapters, with LRU eviction."""
    prompt_cache_bytes: int = Field(256 * 2**20, ge=0)
    """Size of each model's cache of encoded prompts in host memory, with LRU eviction. Images of a
    tenant with the same prompts share the text encoders' output. 0: off, as on several hosts."""
    quantum_s: float = Field(5, gt=0)
    """Shortest time that a job runs before a job of higher priority, or one that would miss its
    deadline, may preempt it. inf: no preemption."""
    preemption_ratio: float = Field(4, ge=1)
    """Minimum ratio of the other job's wait to its run time for preemption. Images preempt videos,
    but not each other."""

    receipts: float = Field(0.01, ge=0, le=1)
    """Share of the images and videos with presets other than `exact` that a worker keeps in memory.
    It generates them again exactly while its devices are idle, and reports the PSNR. 0: none."""

    @property
    def models(self) -> tuple[str, ...]:
        """List the names of all models that its workers serve."""
        return (self.model, *self.also, *self.by_turns)

    @model_validator(mode="after")
    def _serves_each_once(self) -> PoolSettings:
        if len({*self.models}) < len(self.models):
            raise ValueError("also, by_turns: name other models than `model`, and each once")
        if self.also and self.by_turns:
            raise ValueError(
                "also, by_turns: a pool either holds all of its models or alternates them; make"
                " a pool for each"
            )
        if (self.also or self.by_turns) and self.hosts.count > 1:
            raise ValueError(
                f"{'also' if self.also else 'by_turns'}: a slice on several hosts serves one"
                " model; make a pool for each"
            )
        return self
