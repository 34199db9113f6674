"""Plan of a model on a slice: whether it fits, and how fast it is. All numbers are estimates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from models.spec.quality_presets import EightBit
from workers.plan.estimate import Estimate
from workers.plan.lowered import CompiledProgram
from workers.plan.trace import Sketch
from workers.slice.chips import Chip
from workers.slice.topology import Topology


@dataclass(frozen=True)
class Plan:
    """Estimated layout of one slice, with the compiled programs, if any."""

    sketch: Sketch
    topology: Topology
    request: Mapping[str, Any]
    dtype: str
    """Dtype of the weights."""
    activation_dtype: str
    vae_tiling: bool
    eight_bit: EightBit | None
    estimate: Estimate
    programs: tuple[CompiledProgram, ...] = ()
    """Compiled programs; empty without a compiler, or if only the estimate was requested."""

    @property
    def chip(self) -> Chip:
        """Chip of the planned slice's devices."""
        return self.topology.chip

    @property
    def refused(self) -> tuple[CompiledProgram, ...]:
        """Programs of the plan that the compiler rejected, for example for memory."""
        return tuple(program for program in self.programs if program.refused)

    @property
    def memory(self) -> dict[str, int]:
        """Bytes a device, by kind; the compiler's numbers replace the estimated ones."""
        kinds = dict(self.estimate.memory)
        if self.programs:
            del kinds["reserve"]
            kinds["temporaries"] = max(
                program.temporary_bytes + program.output_bytes for program in self.programs
            )
            kinds["code"] = sum(program.code_bytes for program in self.programs)
        return kinds

    @property
    def spare_bytes(self) -> int:
        """Free bytes of a device; negative if the plan does not fit."""
        return self.chip.memory_bytes - sum(self.memory.values())

    @property
    def fits(self) -> bool:
        """Return whether every program compiles and a device holds them."""
        return not self.refused and self.spare_bytes >= 0

    def seconds(self, name: str) -> float:
        """Return the seconds of one run of a program: estimated compute, compiled communication."""
        return self.compute_s(name) + self.exchange_s(name)

    def compute_s(self, name: str) -> float:
        """Return the estimated seconds of a program's products."""
        return self.estimate.passes[name].compute_s

    def exchange_s(self, name: str) -> float:
        """Return the seconds of a program's communication, compiled or estimated."""
        compiled = next((program for program in self.programs if program.name == name), None)
        if compiled is None or not compiled.traffic:
            return self.estimate.passes[name].traffic_s
        return compiled.traffic_s

    @property
    def step_s(self) -> float:
        """Seconds of a step of the step kind with the most steps."""
        return self.seconds(self.sketch.main_step_kind)

    @property
    def request_s(self) -> float:
        """Seconds of all concurrent requests: every step, and an encoding and decoding per pass."""
        return sum(self._pass_s(named, sketch) for named, sketch in self.sketch.passes())

    @property
    def runs(self) -> dict[str, int]:
        """Number of runs of each program per request."""
        return {
            named + name: count
            for named, sketch in self.sketch.passes()
            for name, (_, count) in {**sketch.steps, **sketch.modulations}.items()
        }

    def _pass_s(self, named: str, sketch: Sketch) -> float:
        per_request_s = self._of_all(named, sketch.modulations)
        per_request_s += self.seconds(f"{named}encode") + self.seconds(f"{named}decode")
        return self._of_all(named, sketch.steps) + self.estimate.slots * per_request_s

    def _of_all(self, named: str, programs: Mapping[str, tuple[Any, int]]) -> float:
        """Return the seconds of several programs with their numbers of runs."""
        return sum(count * self.seconds(named + name) for name, (_, count) in programs.items())
