"""Offload: networks that lie in host memory because a device cannot hold all of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from models.weights.loader import is_matrix
from workers.plan.trace import Sketch, Weight


@dataclass(frozen=True)
class Residency:
    """Residency of networks: those named are off the device, all others on it."""

    on_host: frozenset[str] = frozenset()
    """Networks that are brought a layer at a time when they are used: encoders."""
    by_turns: frozenset[str] = frozenset()
    """Networks of which one is on the device, the others on the host: experts."""

    def keeps(self, weight: Weight) -> bool:
        """Return whether a weight lies on the device (or would, by turns).

        Of networks on the host the vectors alone do, as `models.weights.loader.beside` has them.
        """
        return weight.network not in self.on_host or not is_matrix(weight.axes)

    def __str__(self) -> str:
        parts = []
        if self.on_host:
            parts.append(f"{' and '.join(sorted(self.on_host))} in host memory")
        if self.by_turns:
            parts.append(f"{' and '.join(sorted(self.by_turns))} by turns")
        return ", ".join(parts) or "everything on the device"


ALL_ON_DEVICE = Residency()


def residencies(
    sketch: Sketch, swap_experts: bool | None, encoders_on_host: bool | None
) -> Iterator[Residency]:
    """Yield the residencies that can be tried, the fastest first.

    Args:
        swap_experts, encoders_on_host: as the settings have it; None: either way.
    """
    encoders, experts = encoders_of(sketch), experts_of(sketch)
    for swap in choices(swap_experts, bool(experts)):
        for host in choices(encoders_on_host, bool(encoders)):
            yield Residency(encoders if host else frozenset(), experts if swap else frozenset())


def choices(setting: bool | None, possible: bool) -> tuple[bool, ...]:
    """Return the choices: as it was set, or first without and then with."""
    if not possible:
        return (False,)
    return (False, True) if setting is None else (setting,)


def encoders_of(sketch: Sketch) -> frozenset[str]:
    """Networks that are done with once a request is encoded."""
    others = [sketch.decode, *(program for program, _ in sketch.steps.values())]
    later = {weight.network for program in others for weight in program.weights}
    return frozenset(weight.network for weight in sketch.encode.weights) - later


def experts_of(sketch: Sketch) -> frozenset[str]:
    """Networks that some steps use and others do not."""
    used = [frozenset(w.network for w in step.weights) for step, _ in sketch.steps.values()]
    return frozenset[str]().union(*used) - used[0].intersection(*used)
