"""Control slots of a row: assignment of controls to ControlNets, and step values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from models.interface.controls import RequestedControl
from models.interface.pipeline import Step

NETWORKS, KINDS, SCALES = "control_networks", "control_kinds", "control_scales"
"""Values of a step, float32 [slots]: number of the ControlNet that a slot runs, 0 for none; kind of
a union's control; scale of the residuals."""
RUN_SLOTS, VISIBLE = "control_passes", "control_seen"
"""Values of a step, float32 [slots]: slot whose run reads this image, counted from 1, 0 for none;
whether the image is visible in this step (1 or 0)."""
IMAGES = "control_images"
"""Input of `encode`, uint8 [slots, height, width, 3]. Further inputs are networks, kinds, and
scales: the image's scale within a shared run, otherwise 1."""


@dataclass(frozen=True)
class ControlSlot:
    """Control of a row, with the slot that it is assigned to."""

    control: RequestedControl
    network: int
    kind: int
    runs_in: int
    """Slot that runs the network for this control."""
    is_shared: bool
    """Whether that run reads several images, whose scales are then applied to the hints."""


@dataclass(frozen=True)
class ControlSlots:
    """Slots of a model's rows, and the mapping of control names to networks."""

    count: int
    by_name: Mapping[str, tuple[int, int]]
    """Number of the network, from 1, and kind of control, by the name in requests."""
    work: Mapping[str, float]
    """Work per step by name, as a share of the controlled network's work."""
    controlled_network: str = ""
    """Name of the controlled network; steps of other networks have no controls."""
    union_networks: frozenset[int] = frozenset()
    """Networks that read all of a row's images in one run."""

    def inputs(self, controls: Sequence[RequestedControl]) -> dict[str, np.ndarray]:
        """Return the control images as inputs of the `encode` program; empty without controls."""
        if not controls:
            return {}
        placed = self._placed(controls)
        strengths = [entry.control.scale if entry.is_shared else 1.0 for entry in placed]
        return {
            IMAGES: self.by_slot([control.pixels for control in controls]),
            NETWORKS: self._column([entry.network for entry in placed]),
            KINDS: self._column([entry.kind for entry in placed]),
            SCALES: self._column(strengths),
        }

    def by_slot(self, values: Sequence[np.ndarray]) -> np.ndarray:
        """Stack the controls' arrays by slot, with zeros in empty slots."""
        result = np.zeros((self.count, *values[0].shape), values[0].dtype)
        result[: len(values)] = values
        return result

    def steps(
        self, steps: Sequence[Step], controls: Sequence[RequestedControl]
    ) -> tuple[Step, ...]:
        """Return the denoising steps with the controls' values and cost added."""
        if not self.count:
            return tuple(steps)
        placed = self._placed(controls)
        return tuple(
            replace(
                step,
                values={**step.values, **self._values(placed, scales, strengths)},
                work=step.work + self._work(placed, strengths),
            )
            for number, step in enumerate(steps)
            for scales in [self._scales(step, number, len(steps), controls)]
            for strengths in [self._strengths(step, placed, scales)]
        )

    def _placed(self, controls: Sequence[RequestedControl]) -> list[ControlSlot]:
        networks = [self.by_name[control.name][0] for control in controls]
        runs = [
            networks.index(network) if network in self.union_networks else slot
            for slot, network in enumerate(networks)
        ]
        return [
            ControlSlot(control, *self.by_name[control.name], slot, runs.count(slot) > 1)
            for control, slot in zip(controls, runs, strict=True)
        ]

    def _scales(
        self, step: Step, number: int, count: int, controls: Sequence[RequestedControl]
    ) -> list[float]:
        """Return the conditioning scales of a row's controls in a step."""
        if step.program.network != self.controlled_network:
            return [0.0] * len(controls)
        return [control.scale_at(number, count) for control in controls]

    def _strengths(
        self, step: Step, placed: Sequence[ControlSlot], scales: Sequence[float]
    ) -> list[float]:
        """Return the scale of each slot's residuals in a step; 0: the slot does not run.

        A shared run is part of every step, even without a visible image, and is added at full
        scale. Source: diffusers' ControlNetUnionModel.
        """
        is_steered = float(step.program.network == self.controlled_network)
        return [
            (is_steered if entry.runs_in == slot else 0.0) if entry.is_shared else scale
            for slot, (entry, scale) in enumerate(zip(placed, scales, strict=True))
        ]

    def _work(self, placed: Sequence[ControlSlot], strengths: Sequence[float]) -> float:
        pairs = zip(placed, strengths, strict=True)
        return sum((self.work[entry.control.name] for entry, strength in pairs if strength), 0.0)

    def _values(
        self, placed: Sequence[ControlSlot], scales: Sequence[float], strengths: Sequence[float]
    ) -> dict[str, np.ndarray]:
        """Return a step's control values for each slot."""
        columns = {
            NETWORKS: [
                entry.network if strength else 0
                for entry, strength in zip(placed, strengths, strict=True)
            ],
            KINDS: [entry.kind for entry in placed],
            SCALES: strengths,
            RUN_SLOTS: [entry.runs_in + 1 for entry in placed],
            VISIBLE: [float(bool(scale)) for scale in scales],
        }
        return {name: self._column(column) for name, column in columns.items()}

    def _column(self, values: Sequence[int | float]) -> np.ndarray:
        column = np.zeros(self.count, np.float32)
        column[: len(values)] = values
        return column


NO_CONTROLS = ControlSlots(0, {}, {})
