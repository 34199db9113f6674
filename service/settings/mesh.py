"""`[pools.NAME.mesh]` and `[pools.NAME.hosts]`: a mesh slice and its hosts."""

from __future__ import annotations

from typing import Any

from pydantic import Field, model_validator

from service.settings.section import Section


class HostsSettings(Section):
    """The processes of a slice that lies on several hosts, one a host; each has these settings."""

    count: int = Field(1, gt=0)
    """Number of processes, one a host."""
    coordinator: str | None = None
    """HOST:PORT where the first process is met. Left out: processes of a TPU pod find each
    other."""
    index: int | None = Field(None, ge=0)
    """Number of this process, from 0; the first one claims the jobs. Left out: as for the
    coordinator."""
    port: int = Field(0, ge=0, le=65535)
    """Port on which the first process sends the others their work; 0: any free one."""

    @model_validator(mode="after")
    def _is_whole(self) -> HostsSettings:
        if (self.coordinator is None) != (self.index is None):
            raise ValueError("coordinator and index belong together")
        if self.index is not None and self.index >= self.count:
            raise ValueError(f"index {self.index} is none of {self.count} processes")
        return self


class MeshSettings(Section):
    """Sizes of a mesh slice's axes: data, fsdp, cfg, context, tensor.

    Inside a host or TPU slice and between them; one of each may be -1 and takes what is left. `{cfg
    = 2}` is short for `{ici = {cfg = 2}}`.
    """

    ici: dict[str, int] = Field(default_factory=dict)
    """Sizes of the axes inside a host or TPU slice."""
    dcn: dict[str, int] = Field(default_factory=dict)
    """Sizes of the axes between hosts or TPU slices."""
    ring: int | None = Field(None, gt=0)
    """Parts of the context that pass keys and values round a ring; the rest swaps tokens for heads
    (Ulysses). Left out: as many as hosts and heads demand."""

    @model_validator(mode="before")
    @classmethod
    def _short(cls, value: Any) -> Any:
        if not isinstance(value, dict) or value.keys() & {"ici", "dcn"}:
            return value
        sizes = {axis: size for axis, size in value.items() if axis != "ring"}
        return {"ici": sizes, "ring": value.get("ring")}
