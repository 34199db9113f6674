"""A plan: does a model of this size fit these chips, and how fast is it? All of it estimated."""

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
    """Layout of one slice."""

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
    """Compiled ones; none where only the estimate was asked for, or no compiler is at hand."""

    @property
    def chip(self) -> Chip:
        """Chip of the slice."""
        return self.topology.chip

    @property
    def refused(self) -> tuple[CompiledProgram, ...]:
        """Programs that the compiler refused."""
        return tuple(program for program in self.programs if program.refused)

    @property
    def memory(self) -> dict[str, int]:
        """Bytes a device, by kind: what the compiler says takes the place of what was reckoned."""
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
        """Bytes of a device that are left; negative: missing."""
        return self.chip.memory_bytes - sum(self.memory.values())

    @property
    def fits(self) -> bool:
        """Return whether every program compiles and a device holds them."""
        return not self.refused and self.spare_bytes >= 0

    def seconds(self, name: str) -> float:
        """Seconds of one run of a program: computing by estimate, sending as compiled."""
        return self.compute_s(name) + self.exchange_s(name)

    def compute_s(self, name: str) -> float:
        """Return the estimated seconds of a program's products."""
        return self.estimate.passes[name].compute_s

    def exchange_s(self, name: str) -> float:
        """Return the seconds of a program's exchange: as compiled, or estimated."""
        compiled = next((program for program in self.programs if program.name == name), None)
        if compiled is None or not compiled.traffic:
            return self.estimate.passes[name].traffic_s
        return compiled.traffic_s

    @property
    def step_s(self) -> float:
        """Seconds of a step of the phase that has most steps."""
        return self.seconds(self.sketch.phase)

    @property
    def request_s(self) -> float:
        """Seconds of all requests side by side: every step, one encoding and decoding a pass."""
        return sum(self._pass_s(named, one) for named, one in self.sketch.passes())

    @property
    def runs(self) -> dict[str, int]:
        """Runs of each program, of one request."""
        return {
            named + name: count
            for named, one in self.sketch.passes()
            for name, (_, count) in {**one.steps, **one.conditions}.items()
        }

    def _pass_s(self, named: str, one: Sketch) -> float:
        each = self._of_all(named, one.conditions)
        each += self.seconds(f"{named}encode") + self.seconds(f"{named}decode")
        return self._of_all(named, one.steps) + self.estimate.slots * each

    def _of_all(self, named: str, programs: Mapping[str, tuple[Any, int]]) -> float:
        """Seconds of programs that run so often."""
        return sum(count * self.seconds(named + name) for name, (_, count) in programs.items())
