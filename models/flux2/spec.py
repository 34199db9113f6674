"""Spec of a FLUX.2 klein checkpoint for the API: tasks, fields, defaults and limits."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from models.flow.spec import MakeSpec, default_size, described, limits_by_pixels
from models.flux2.request import FIELDS, GUIDANCE, MAX_SEQUENCE_LENGTH
from models.spec.model_spec import Need
from models.vae.config import VaeConfig
from models.vae.references import FURTHER, IMAGE

DISTILLED: Mapping[str, Any] = {"num_inference_steps": 4}
BASE: Mapping[str, Any] = {"num_inference_steps": 50, "guidance_scale": 4.0}
"""Defaults of its authors' pages, and of diffusers' Flux2KleinPipeline."""
MAX_REFERENCES = 3
"""Images beside `image`: four in all, as in its authors' own API."""
MOST_PIXELS = 1 << 20
"""Pixels that a larger reference is scaled down to."""
LEAST_SIDE_PX, MOST_RATIO = 64, 8

NEEDS = {"negative_prompt": (Need(field="guidance_scale", above=1),)}


def spec_of(vae: VaeConfig, *, is_distilled: bool) -> MakeSpec:
    """Return what makes the spec of a checkpoint of that kind."""
    limits = limits_by_pixels(
        vae.downsampling, MOST_RATIO, MAX_SEQUENCE_LENGTH, max_reference_images=MAX_REFERENCES
    )
    of_references = partial(dict.fromkeys, (IMAGE, FURTHER))
    return described(
        FIELDS - GUIDANCE if is_distilled else FIELDS,
        {
            **default_size(vae.downsampling),
            "max_sequence_length": MAX_SEQUENCE_LENGTH,
            **(DISTILLED if is_distilled else BASE),
        },
        family="flux2",
        tasks=("text-to-image", "image-to-image"),
        sized_by_image=("image-to-image",),
        sized_within_px=MOST_PIXELS,
        needs=NEEDS,
        limits=limits,
        least_side_px=of_references(max(LEAST_SIDE_PX, limits.size_multiple_px)),
        most_ratio=of_references(MOST_RATIO),
        read_pixels=of_references(MOST_PIXELS),
    )
