"""Builds the `ModelSpec` of a Chroma checkpoint: tasks, request fields, defaults and limits."""

from __future__ import annotations

from models.chroma.request import FIELDS
from models.flow.spec import MakeSpec, default_size, image_limits, spec_builder
from models.spec.field_types import MAX_TEXT_TOKENS
from models.spec.model_spec import Need
from models.vae.config import VaeConfig
from models.vae.patches import PATCH


def spec_of(vae: VaeConfig) -> MakeSpec:
    """Return a function that builds the spec of a Chroma checkpoint, with diffusers' defaults."""
    size = default_size(vae.downsampling)
    return spec_builder(
        FIELDS,
        {
            **size,
            "num_inference_steps": 35,
            "guidance_scale": 5.0,
            "max_sequence_length": MAX_TEXT_TOKENS,
        },
        {"image-to-image": {"strength": 0.9}, "inpainting": {"strength": 0.6}},
        needs={"negative_prompt": (Need(field="guidance_scale", above=1),)},
        family="chroma",
        tasks=("text-to-image", "image-to-image", "inpainting"),
        limits=image_limits(PATCH * vae.downsampling, 2 * size["width"], MAX_TEXT_TOKENS),
    )
