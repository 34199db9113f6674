"""Spec of a FLUX.2 klein checkpoint for the API: tasks, fields, defaults and limits."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from models.checkpoint.folder import chosen_defaults, fingerprint
from models.flow.spec import BUCKET_FIELDS, DEFAULT_LATENTS_PX, image_limits
from models.flux2.references import LEAST_SIDE_PX, MOST_PIXELS, MOST_RATIO
from models.flux2.request import FIELDS, GUIDANCE, MAX_SEQUENCE_LENGTH
from models.spec.image_sizes import longest_side
from models.spec.model_spec import ModelSpec, Need
from models.vae.config import VaeConfig
from models.vae.references import FURTHER, IMAGE

DISTILLED: Mapping[str, Any] = {"num_inference_steps": 4}
BASE: Mapping[str, Any] = {"num_inference_steps": 50, "guidance_scale": 4.0}
"""Defaults of its authors' pages, and of diffusers' Flux2KleinPipeline."""
MAX_REFERENCES = 3
"""Images beside `image`: four in all, as in its authors' own API."""

NEEDS = {"negative_prompt": (Need(field="guidance_scale", above=1),)}


def make_spec(
    vae: VaeConfig,
    name: str,
    sources: tuple[Path, ...],
    defaults: Mapping[str, Any],
    *,
    is_distilled: bool,
) -> ModelSpec:
    """Defaults are the published ones, then the folder's `atelier.json`, then the operator's.

    Args:
        sources: the folder, and the file of weights if there is one.
    """
    token, side = 2 * vae.downsampling, DEFAULT_LATENTS_PX * vae.downsampling
    most = 4 * side * side
    fields = FIELDS - GUIDANCE if is_distilled else FIELDS
    chosen = chosen_defaults(name, sources[0], defaults, fields)
    own = {
        "width": side,
        "height": side,
        "max_sequence_length": MAX_SEQUENCE_LENGTH,
        **(DISTILLED if is_distilled else BASE),
    }
    return ModelSpec(
        name=name,
        family="flux2",
        tasks=("text-to-image", "image-to-image"),
        fields=fields,
        defaults={**own, **chosen},
        sized_by_image=("image-to-image",),
        sized_within_px=MOST_PIXELS,
        needs={} if is_distilled else NEEDS,
        limits=image_limits(
            token,
            longest_side(most, MOST_RATIO, token),
            MAX_SEQUENCE_LENGTH,
            max_pixels=most,
            max_reference_images=MAX_REFERENCES,
        ),
        least_side_px=dict.fromkeys((IMAGE, FURTHER), max(LEAST_SIDE_PX, token)),
        most_ratio=dict.fromkeys((IMAGE, FURTHER), MOST_RATIO),
        read_pixels=dict.fromkeys((IMAGE, FURTHER), MOST_PIXELS),
        bucket_fields=BUCKET_FIELDS,
        fingerprint=fingerprint(*sources),
    )
