"""Spec of a Qwen-Image checkpoint for the API: tasks, fields, defaults and limits."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from models.checkpoint.folder import fingerprint, read_defaults
from models.qwenimage.config import PATCH
from models.qwenimage.request import FIELDS, MAX_SEQUENCE_LENGTH
from models.spec.model_spec import Limits, ModelSpec, Need
from models.vae.video_config import VideoVaeConfig

DEFAULT_LATENTS_PX = 128
"""The side of an image in latents where the request names none: 1024 pixels, as in diffusers."""
OWN: Mapping[str, Any] = {
    "num_inference_steps": 50,
    "true_cfg_scale": 4.0,
    "max_sequence_length": 512,
}
"""Defaults of diffusers' QwenImagePipeline."""

_TRUE_CFG = (Need(field="true_cfg_scale", above=1), Need(field="negative_prompt"))
NEEDS: Mapping[str, tuple[Need, ...]] = {
    "true_cfg_scale": (Need(field="negative_prompt"),),
    "negative_prompt": _TRUE_CFG,
}
"""Needs as diffusers has them: a scale above 1 together with a negative prompt."""


def make_spec(
    name: str, sources: tuple[Path, ...], vae: VideoVaeConfig, defaults: Mapping[str, Any]
) -> ModelSpec:
    """Defaults are diffusers' own, then the folder's `atelier.json`, then the operator's.

    Args:
        sources: the folder, and the file of weights if there is one.
    """
    token = PATCH * vae.downsampling
    side = DEFAULT_LATENTS_PX * vae.downsampling
    chosen = {**read_defaults(sources[0]), **defaults}
    unknown = sorted(chosen.keys() - FIELDS)
    if unknown:
        raise ValueError(f"defaults of {name!r} name fields that it does not have: {unknown}")
    from_image = {"strength": 0.6, **chosen}  # diffusers' own, of both
    return ModelSpec(
        name=name,
        family="qwenimage",
        tasks=("text-to-image", "image-to-image", "inpainting"),
        fields=FIELDS,
        defaults={"width": side, "height": side, **OWN, **chosen},
        task_defaults={"image-to-image": from_image, "inpainting": from_image},
        sized_by_image=("image-to-image", "inpainting"),
        needs=NEEDS,
        limits=Limits(
            size_multiple_px=token,
            min_side_px=token,
            max_side_px=2 * side,
            max_pixels=4 * side * side,
            max_steps=1000,
            max_images=16,
            max_sequence_length=MAX_SEQUENCE_LENGTH,
        ),
        bucket_fields=("width", "height", "max_sequence_length"),
        fingerprint=fingerprint(*sources),
    )
