"""Places of a row's controls: its slots, and what each step is told of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from models.interface.controls import RequestedControl
from models.interface.pipeline import Step

NETWORKS, KINDS, SCALES = "control_networks", "control_kinds", "control_scales"
"""Values of a step, float32 [slots]: ControlNet that a slot runs by number, where 0 is none; kind
of a union's control; strength of what is added."""
PASSES, SEEN = "control_passes", "control_seen"
"""Values of a step, float32 [slots]: slot whose run reads this image, from 1, where 0 is none;
1 where the image is seen, and 0 out of its steps."""
IMAGES = "control_images"
"""Input of `encode`, uint8 [slots, height, width, 3]; beside it networks, kinds, and as scales the
strengths within a shared run, 1 elsewhere."""


@dataclass(frozen=True)
class ControlSlot:
    """One of a row's controls, in its slot."""

    control: RequestedControl
    network: int
    kind: int
    runs_in: int
    """Slot that runs the network for it."""
    is_shared: bool
    """True if that run reads several images: strengths are in their hints."""


@dataclass(frozen=True)
class ControlPlaces:
    """Places of a model's controls: how many one row has, and which network reads which."""

    slots: int
    by_name: Mapping[str, tuple[int, int]]
    """Number of the network, from 1, and kind of control, by the name in requests."""
    work: Mapping[str, float]
    """Work of one step of each, as a share of the steered network's."""
    steered: str = ""
    """Name of the network that they steer: steps of others have none."""
    together: frozenset[int] = frozenset()
    """Networks that read all of a row's images for them in one run."""

    def inputs(self, controls: Sequence[RequestedControl]) -> dict[str, np.ndarray]:
        """Return the inputs of `encode`; none without controls."""
        if not controls:
            return {}
        placed = self._placed(controls)
        strengths = [place.control.scale if place.is_shared else 1.0 for place in placed]
        return {
            IMAGES: self.by_slot([control.pixels for control in controls]),
            NETWORKS: self._column([place.network for place in placed]),
            KINDS: self._column([place.kind for place in placed]),
            SCALES: self._column(strengths),
        }

    def by_slot(self, values: Sequence[np.ndarray]) -> np.ndarray:
        """Return what each control has, by its slot; zeros in empty ones."""
        found = np.zeros((self.slots, *values[0].shape), values[0].dtype)
        found[: len(values)] = values
        return found

    def steps(
        self, steps: Sequence[Step], controls: Sequence[RequestedControl]
    ) -> tuple[Step, ...]:
        """Return the steps with what each is told of the controls."""
        if not self.slots:
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
            networks.index(network) if network in self.together else slot
            for slot, network in enumerate(networks)
        ]
        return [
            ControlSlot(control, *self.by_name[control.name], slot, runs.count(slot) > 1)
            for control, slot in zip(controls, runs, strict=True)
        ]

    def _scales(
        self, step: Step, number: int, count: int, controls: Sequence[RequestedControl]
    ) -> list[float]:
        """Return the controls' strengths in a step."""
        if step.phase.network != self.steered:
            return [0.0] * len(controls)
        return [control.scale_at(number, count) for control in controls]

    def _strengths(
        self, step: Step, placed: Sequence[ControlSlot], scales: Sequence[float]
    ) -> list[float]:
        """Return the strengths of what each slot's run adds in a step; 0: it has none.

        A shared run is in every step, even where it sees no image, and is added whole.
        Source: diffusers' ControlNetUnionModel.
        """
        is_steered = float(step.phase.network == self.steered)
        return [
            (is_steered if place.runs_in == slot else 0.0) if place.is_shared else scale
            for slot, (place, scale) in enumerate(zip(placed, scales, strict=True))
        ]

    def _work(self, placed: Sequence[ControlSlot], strengths: Sequence[float]) -> float:
        pairs = zip(placed, strengths, strict=True)
        return sum((self.work[place.control.name] for place, strength in pairs if strength), 0.0)

    def _values(
        self, placed: Sequence[ControlSlot], scales: Sequence[float], strengths: Sequence[float]
    ) -> dict[str, np.ndarray]:
        """Return what a step is told of each slot."""
        columns = {
            NETWORKS: [
                place.network if strength else 0
                for place, strength in zip(placed, strengths, strict=True)
            ],
            KINDS: [place.kind for place in placed],
            SCALES: strengths,
            PASSES: [place.runs_in + 1 for place in placed],
            SEEN: [float(bool(scale)) for scale in scales],
        }
        return {name: self._column(column) for name, column in columns.items()}

    def _column(self, values: Sequence[int | float]) -> np.ndarray:
        column = np.zeros(self.slots, np.float32)
        column[: len(values)] = values
        return column


NO_CONTROLS = ControlPlaces(0, {}, {})
