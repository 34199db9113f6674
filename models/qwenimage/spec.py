"""Builds the `ModelSpec` of a Qwen-Image checkpoint: tasks, request fields, defaults and limits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from models.flow.spec import (
    TRUE_CFG_NEEDS,
    MakeSpec,
    default_size,
    limits_by_pixels,
    spec_builder,
)
from models.qwenimage.request import FIELDS, MAX_SEQUENCE_LENGTH
from models.spec.model_spec import Task
from models.vae.video_config import VideoVaeConfig

LONGEST = 16
"""Maximum aspect ratio of an image with the maximum number of pixels."""
DEFAULTS: Mapping[str, Any] = {
    "num_inference_steps": 50,
    "true_cfg_scale": 4.0,
    "max_sequence_length": 512,
}
"""Defaults of diffusers' QwenImagePipeline."""


class Kind(NamedTuple):
    """Properties of Qwen-Image's spec that depend on the kind of checkpoint."""

    fields: frozenset[str]
    tasks: tuple[Task, ...]
    from_image_tasks: tuple[Task, ...]
    """Tasks that start from a noised image, controlled by `strength`."""
    extra_fields: Mapping[str, Any]
    """Spec fields that only this kind has."""
    references: int = 0
    """Maximum number of images in addition to `image`."""


GENERATION = Kind(
    FIELDS,
    ("text-to-image", "image-to-image", "inpainting"),
    ("image-to-image", "inpainting"),
    {"sized_by_image": ("image-to-image", "inpainting")},
)


def spec_of(vae: VideoVaeConfig, kind: Kind, min_steps: int) -> MakeSpec:
    """Return a function that builds the spec of a Qwen-Image checkpoint of this kind.

    Args:
        min_steps: minimum steps of the schedule.
    """
    return spec_builder(
        kind.fields,
        {**default_size(vae.downsampling), **DEFAULTS},
        {task: {"strength": 0.6} for task in kind.from_image_tasks},
        TRUE_CFG_NEEDS,
        family="qwenimage",
        tasks=kind.tasks,
        limits=limits_by_pixels(
            vae.downsampling,
            LONGEST,
            MAX_SEQUENCE_LENGTH,
            min_steps=min_steps,
            max_reference_images=kind.references,
        ),
        **kind.extra_fields,
    )
