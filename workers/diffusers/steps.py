"""Hook on a pipeline's denoising steps, by its scheduler.

Some pipelines have no `callback_on_step_end`, but all call `scheduler.step`. The hook changes no
value, so images keep their bytes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

OnStep = Callable[[Callable[[], int], torch.Tensor, torch.Tensor], None]
"""Callback after a step: `steps_left` from it on, its latents, and its estimate of the clean ones;
the latents, if the scheduler has none."""


class StepHook:
    """Hook of one diffusers scheduler, which reports its steps.

    The scheduler gets a subclass of its class with another `step`. A pipeline may copy its
    scheduler; copies keep their state to themselves, and report nothing.
    """

    def __init__(self, scheduler: Any) -> None:
        self.on_step: OnStep | None = None
        original, kind = type(scheduler).step, type(scheduler)

        @functools.wraps(original)  # pipelines read its signature
        def step(hooked: Any, *args: Any, **kwargs: Any) -> Any:
            output = original(hooked, *args, **kwargs)
            if self.on_step and hooked is scheduler:
                left = functools.partial(steps_left, hooked, args, kwargs)
                self.on_step(left, *_latents(output))
            return output

        scheduler.__class__ = type(kind.__name__, (kind,), {"step": step, "__module__": __name__})


def steps_left(scheduler: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    """Return how many steps a schedule has from the first step's timestep on; 0: unknown."""
    timestep = kwargs.get("timestep", args[1] if len(args) > 1 else None)
    timesteps = getattr(scheduler, "timesteps", None)
    if timestep is None or timesteps is None:
        return 0
    equal = torch.as_tensor(timesteps == timestep).flatten().nonzero()
    return len(timesteps) - int(equal[0]) if len(equal) else 0


def _latents(output: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the latents in a scheduler's output, and the estimate of the clean ones, if any."""
    values = output if isinstance(output, tuple) else tuple(output.values())
    latents, *others = values
    clean = next((other for other in others if getattr(other, "shape", 0) == latents.shape), None)
    return latents, latents if clean is None else clean
