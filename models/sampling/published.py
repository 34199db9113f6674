"""Config values of published schedulers that several families share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

FLOW_MATCH: Mapping[str, Any] = {
    "_class_name": "FlowMatchEulerDiscreteScheduler",
    "num_train_timesteps": 1000,
    "base_image_seq_len": 256,
    "max_image_seq_len": 4096,
    "base_shift": 0.5,
    "max_shift": 1.15,
}
SHIFTED_BY_TOKENS: Mapping[str, Any] = {
    **FLOW_MATCH,
    "shift": 3.0,
    "use_dynamic_shifting": True,
}
