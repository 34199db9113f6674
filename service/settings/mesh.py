"""`[pools.NAME.mesh]` and `[pools.NAME.hosts]`: a mesh slice and its hosts."""

from __future__ import annotations

from typing import Any

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
