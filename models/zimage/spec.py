"""Builds the `ModelSpec` of a Z-Image checkpoint: tasks, request fields, defaults and limits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from models.flow.spec import MakeSpec, default_size, image_limits, spec_builder
from models.sampling.flow_match import FlowMatchEuler
from models.spec.field_types import MAX_TEXT_TOKENS
from models.spec.model_spec import Need
from models.vae.config import VaeConfig
from models.vae.patches import PATCH
from models.zimage.config import ZImageConfig, filled
from models.zimage.request import FIELDS

TURBO_SHIFT = 3.0
"""Schedule shift that identifies Turbo; the base's is 6. Other published configs are equal."""
TURBO: Mapping[str, Any] = {"num_inference_steps": 9, "guidance_scale": 0.0}
"""Defaults of the authors' model page: distilled, with few steps and no guidance."""
BASE: Mapping[str, Any] = {"num_inference_steps": 50, "guidance_scale": 5.0}
"""Defaults of diffusers' ZImagePipeline."""

_GUIDED = (Need(field="guidance_scale", above=0),)
NEEDS = dict.fromkeys(("negative_prompt", "cfg_normalization", "cfg_truncation"), _GUIDED)


def spec_of(config: ZImageConfig, vae: VaeConfig, scheduler: FlowMatchEuler) -> MakeSpec:
    """Return a function that builds the spec of a Z-Image checkpoint with these configs."""
    token, size = PATCH * vae.downsampling, default_size(vae.downsampling)
    longest = min(2 * size["width"], min(config.axes_lens[1:]) * token)
    text = min(MAX_TEXT_TOKENS, filled(config.axes_lens[0] - 1) - 32)
    return spec_builder(
        FIELDS,
        {
            **{name: min(side, longest) for name, side in size.items()},
            "cfg_normalization": 0.0,
            "cfg_truncation": 1.0,
            "max_sequence_length": text,
            **(TURBO if scheduler.shift <= TURBO_SHIFT else BASE),
        },
        {"image-to-image": {"strength": 0.6}, "inpainting": {"strength": 1.0}},
        family="zimage",
        tasks=("text-to-image", "image-to-image", "inpainting"),
        sized_by_image=("image-to-image", "inpainting"),
        needs=NEEDS,
        limits=image_limits(token, longest, text),
    )
