"""Recorder of the latents of diffusers' steps."""

from __future__ import annotations

from typing import Any

import numpy as np


class StepLatents(list[np.ndarray]):
    """Latents of the first output after each step: channels last, or packed as they are."""

    def keep(self, _pipe: Any, _step: int, _time: Any, tensors: dict[str, Any]) -> dict[str, Any]:
        """Record a step. Pass it to a pipeline as `callback_on_step_end`."""
        latents = tensors["latents"][0].numpy()
        self.append((latents if latents.ndim == 2 else np.moveaxis(latents, 0, -1)).copy())
        return {}
