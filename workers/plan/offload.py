"""Offloading of networks to host memory when a device cannot hold all of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from models.weights.loader import is_matrix
from workers.plan.trace import Sketch, Weight


@dataclass(frozen=True)
class Residency:
    """Placement of networks: those named are offloaded, all others are on the device."""

    on_host: frozenset[str] = frozenset()
    """Networks that are copied to the device layer by layer when they run: encoders."""
    swapped: frozenset[str] = frozenset()
    """Networks that take turns on the device: experts."""

    def keeps(self, weight: Weight) -> bool:
        """Return whether a weight occupies device memory, at least when its network has its turn.

        A network on the host keeps only vectors on the device (`in_host_memory` of the loader).
        """
        return weight.network not in self.on_host or not is_matrix(weight.axes)

    def __str__(self) -> str:
        parts = []
        if self.on_host:
            parts.append(f"{' and '.join(sorted(self.on_host))} in host memory")
        if self.swapped:
            parts.append(f"{' and '.join(sorted(self.swapped))} in turn")
        return ", ".join(parts) or "everything on the device"


ALL_ON_DEVICE = Residency()


def residencies(
    sketch: Sketch, swap_experts: bool | None, encoders_on_host: bool | None
) -> Iterator[Residency]:
    """Yield the placements of networks to try, fastest first.

    Args:
        swap_experts, encoders_on_host: as in the settings; None: both.
    """
    encoders, experts = encoders_of(sketch), experts_of(sketch)
    for swap in choices(swap_experts, bool(experts)):
        for host in choices(encoders_on_host, bool(encoders)):
            yield Residency(encoders if host else frozenset(), experts if swap else frozenset())


def choices(setting: bool | None, possible: bool) -> tuple[bool, ...]:
    """Return the values of an option to try: the setting, or first False and then True."""
    if not possible:
        return (False,)
    return (False, True) if setting is None else (setting,)


def encoders_of(sketch: Sketch) -> frozenset[str]:
    """Return the networks that are unused after a request is encoded."""
    others = [sketch.decode, *(program for program, _ in sketch.steps.values())]
    later = {weight.network for program in others for weight in program.weights}
    return frozenset(weight.network for weight in sketch.encode.weights) - later


def experts_of(sketch: Sketch) -> frozenset[str]:
    """Return the networks that only some steps use."""
    used = [frozenset(w.network for w in step.weights) for step, _ in sketch.steps.values()]
    return frozenset[str]().union(*used) - used[0].intersection(*used)
