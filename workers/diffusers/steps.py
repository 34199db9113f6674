"""Hook on a pipeline's denoising steps, by its scheduler.

Some pipelines have no `callback_on_step_end`, but all call `scheduler.step`. The hook changes no
value, so images keep their bytes.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from workers.engine.errors import non_finite


class Canceled(Exception):
    """End of a row whose request was canceled."""


@dataclass(eq=False)
class PipelineRow:
    """Progress of one image, written by the pipeline's thread."""

    to_do: int
    """Steps of the image; corrected at its first step, since schedulers may add some."""
    on_step: Callable[[PipelineRow], None]
    """Callback after each step, in the pipeline's thread."""
    preview_of: Callable[[torch.Tensor], np.ndarray | None]
    """Decoder of latents to a preview."""
    done: int = 0
    is_ended: bool = False
    """Whether the pipeline's call has ended, so that no step follows."""
    canceled: bool = False
    """Set from any thread: the row ends with its next step."""
    claim_seconds: float = 0.0
    """Seconds of the device from the start of the call to the last step."""
    after_work: float = 0.0
    preview: Future[np.ndarray | None] | None = None
    """Preview that the next step makes, if requested."""
    times: list[float] = field(default_factory=lambda: [time.perf_counter()])
    """Start of the call, and the end of each step."""

    @property
    def image_done(self) -> int:
        """Finished steps: there is one pass."""
        return self.done

    @property
    def image_steps(self) -> int:
        """All steps: there is one pass."""
        return self.to_do

    @property
    def all_sent(self) -> bool:
        """Return whether the last step has begun."""
        return self.done >= self.to_do

    def end(self) -> None:
        """Record the end of the call; a preview that is still requested is none."""
        self.is_ended = True
        if wanted := self.preview:
            self.preview = None
            wanted.set_result(None)

    def advance(self, latents: torch.Tensor, estimate: torch.Tensor) -> None:
        """Record a step.

        Args:
            estimate: of the clean latents; the latents, if the scheduler has none.

        Raises: Canceled; GenerationFailed: the latents are not finite.
        """
        is_finite = bool(torch.isfinite(latents).all())  # waits for the device
        self.done += 1
        self.to_do = max(self.to_do, self.done)
        self.times.append(time.perf_counter())
        self.claim_seconds = self.times[-1] - self.times[0]
        if not is_finite:
            raise non_finite(self.done, self.to_do)
        self.on_step(self)
        if self.canceled:
            raise Canceled
        if wanted := self.preview:
            self.preview = None
            show(wanted, functools.partial(self.preview_of, estimate))


def show(wanted: Future[np.ndarray | None], decode: Callable[[], np.ndarray | None]) -> None:
    """Complete a requested preview, with the error if decoding fails."""
    try:
        wanted.set_result(decode())
    except Exception as error:
        wanted.set_exception(error)


class StepHook:
    """Hook of one scheduler, which reports the steps of the current row.

    The scheduler gets a subclass of its class with another `step`. A pipeline may copy its
    scheduler; copies keep their state to themselves, and report nothing.
    """

    def __init__(self, scheduler: Any) -> None:
        self.row: PipelineRow | None = None
        original, kind = type(scheduler).step, type(scheduler)

        @functools.wraps(original)  # pipelines read its signature
        def step(hooked: Any, *args: Any, **kwargs: Any) -> Any:
            row, output = self.row, original(hooked, *args, **kwargs)
            if row is not None and hooked is scheduler:
                if not row.done:
                    row.to_do = steps_left(hooked, args, kwargs) or row.to_do
                row.advance(*_latents(output))
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
    """Return the latents after a step, and the estimate of the clean ones if there is one."""
    values = output if isinstance(output, tuple) else tuple(output.values())
    latents, *others = values
    clean = next((other for other in others if getattr(other, "shape", 0) == latents.shape), None)
    return latents, latents if clean is None else clean
