"""The one shape of a tiny random Flux that these tests compile, and keep compiled."""

from __future__ import annotations

from typing import Any

REQUEST: dict[str, Any] = {
    "prompt": "a red circle",
    "seed": 1,
    "width": 32,
    "height": 32,
    "max_sequence_length": 16,
    "guidance_scale": 3.5,
    "true_cfg_scale": 1.0,
    "num_inference_steps": 6,
    "num_images": 1,
}
SLOTS = 2
