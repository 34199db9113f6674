"""Builds the `ModelSpec` of a FLUX.2 klein checkpoint: tasks, fields, defaults and limits."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from models.flow.spec import MakeSpec, default_size, limits_by_pixels, spec_builder
from models.flux2.request import FIELDS, GUIDANCE
from models.spec.field_types import MAX_TEXT_TOKENS
from models.spec.model_spec import Need
from models.vae.config import VaeConfig
from models.vae.references import IMAGE, REFERENCE_IMAGES

DISTILLED: Mapping[str, Any] = {"num_inference_steps": 4}
BASE: Mapping[str, Any] = {"num_inference_steps": 50, "guidance_scale": 4.0}
"""Defaults of the authors' model pages, and of diffusers' Flux2KleinPipeline."""
MASK = "mask_image"
MAX_REFERENCES = 3
"""Maximum images in addition to `image`: four in total, as in the authors' API."""
MAX_PIXELS = 1 << 20
"""Pixels to which larger references are downscaled."""
LEAST_SIDE_PX, MAX_RATIO = 64, 8

NEEDS = {"negative_prompt": (Need(field="guidance_scale", above=1),)}


def spec_of(vae: VaeConfig, *, is_distilled: bool) -> MakeSpec:
    """Return a function that builds the spec of a base or a distilled FLUX.2 klein."""
    limits = limits_by_pixels(
        vae.downsampling, MAX_RATIO, MAX_TEXT_TOKENS, max_reference_images=MAX_REFERENCES
    )
    of_references = partial(dict.fromkeys, (IMAGE, REFERENCE_IMAGES))
    return spec_builder(
        FIELDS - GUIDANCE if is_distilled else FIELDS,
        {
            **default_size(vae.downsampling),
            "max_sequence_length": MAX_TEXT_TOKENS,
            **(DISTILLED if is_distilled else BASE),
        },
        {"inpainting": {"strength": 0.8}},
        family="flux2",
        tasks=("text-to-image", "image-to-image", "inpainting"),
        sized_by_image=("image-to-image", "inpainting"),
        strength_needs=MASK,
        sized_within_px=MAX_PIXELS,
        needs=NEEDS,
        limits=limits,
        least_side_px=of_references(max(LEAST_SIDE_PX, limits.size_multiple_px)),
        most_ratio=of_references(MAX_RATIO),
        read_pixels=of_references(MAX_PIXELS),
    )
