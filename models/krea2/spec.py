"""Builds the `ModelSpec` of a Krea 2 checkpoint: task, request fields, defaults and limits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from models.flow.spec import MakeSpec, default_size, limits_by_pixels, spec_builder
from models.krea2.request import FIELDS, MAX_SEQUENCE_LENGTH
from models.spec.model_spec import Need
from models.vae.video_config import VideoVaeConfig

LONGEST = 16
"""Maximum aspect ratio of an image with the maximum number of pixels."""
RAW: Mapping[str, Any] = {"num_inference_steps": 28, "guidance_scale": 4.5}
"""Defaults of diffusers' Krea2Pipeline."""
DISTILLED: Mapping[str, Any] = {"num_inference_steps": 8, "guidance_scale": 0.0}
"""Defaults of Turbo's model page."""


def spec_of(vae: VideoVaeConfig, is_distilled: bool) -> MakeSpec:
    """Return a function that builds the spec of a Krea 2 checkpoint."""
    return spec_builder(
        FIELDS,
        {
            **default_size(vae.downsampling),
            **(DISTILLED if is_distilled else RAW),
            "max_sequence_length": 512,
        },
        needs={"negative_prompt": (Need(field="guidance_scale", above=0),)},
        family="krea2",
        tasks=("text-to-image",),
        limits=limits_by_pixels(vae.downsampling, LONGEST, MAX_SEQUENCE_LENGTH),
    )
