"""Spec of a Z-Image checkpoint for the API: tasks, fields, defaults and limits."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from models.checkpoint.folder import chosen_defaults, fingerprint
from models.flow.spec import BUCKET_FIELDS, DEFAULT_LATENTS_PX, image_limits
from models.sampling.flow_match import FlowMatchEuler
from models.spec.model_spec import ModelSpec, Need
from models.vae.config import VaeConfig
from models.zimage.config import PATCH, ZImageConfig, filled
from models.zimage.request import FIELDS, MAX_SEQUENCE_LENGTH

TURBO_SHIFT = 3.0
"""Shift of Turbo's schedule; the base's is 6. No other config of the published ones differs."""
TURBO: Mapping[str, Any] = {"num_inference_steps": 9, "guidance_scale": 0.0}
"""Defaults of its authors' page: distilled, it takes no guidance and few steps."""
BASE: Mapping[str, Any] = {"num_inference_steps": 50, "guidance_scale": 5.0}
"""Defaults of diffusers' ZImagePipeline."""

_GUIDED = (Need(field="guidance_scale", above=0),)
NEEDS = dict.fromkeys(("negative_prompt", "cfg_normalization", "cfg_truncation"), _GUIDED)


def make_spec(
    config: ZImageConfig,
    vae: VaeConfig,
    scheduler: FlowMatchEuler,
    name: str,
    sources: tuple[Path, ...],
    defaults: Mapping[str, Any],
) -> ModelSpec:
    """Defaults are the published ones, then the folder's `atelier.json`, then the operator's.

    Args:
        sources: the folder, and the file of weights if there is one.
    """
    token = PATCH * vae.downsampling
    side = DEFAULT_LATENTS_PX * vae.downsampling
    longest = min(2 * side, min(config.axes_lens[1:]) * token)
    chosen = chosen_defaults(name, sources[0], defaults, FIELDS)
    text = min(MAX_SEQUENCE_LENGTH, filled(config.axes_lens[0] - 1) - 32)
    own = {
        "width": min(side, longest),
        "height": min(side, longest),
        "cfg_normalization": 0.0,
        "cfg_truncation": 1.0,
        "max_sequence_length": text,
        **(TURBO if scheduler.shift <= TURBO_SHIFT else BASE),
    }
    return ModelSpec(
        name=name,
        family="zimage",
        tasks=("text-to-image", "image-to-image", "inpainting"),
        fields=FIELDS,
        defaults={**own, **chosen},
        task_defaults={
            "image-to-image": {"strength": 0.6, **chosen},
            "inpainting": {"strength": 1.0, **chosen},
        },
        sized_by_image=("image-to-image", "inpainting"),
        needs=NEEDS,
        limits=image_limits(token, longest, text),
        bucket_fields=BUCKET_FIELDS,
        fingerprint=fingerprint(*sources),
    )
