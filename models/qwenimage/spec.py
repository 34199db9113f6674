"""Spec of a Qwen-Image checkpoint for the API: tasks, fields, defaults and limits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from models.flow.spec import (
    TRUE_CFG_NEEDS,
    MakeSpec,
    default_size,
    described,
    limits_by_pixels,
)
from models.qwenimage.request import FIELDS, MAX_SEQUENCE_LENGTH
from models.spec.model_spec import Task
from models.vae.video_config import VideoVaeConfig

LONGEST = 16
"""Most that a side may be longer than the other in an image of the most pixels."""
OWN: Mapping[str, Any] = {
    "num_inference_steps": 50,
    "true_cfg_scale": 4.0,
    "max_sequence_length": 512,
}
"""Defaults of diffusers' QwenImagePipeline."""


class Kind(NamedTuple):
    """Kind of checkpoint, as a spec has it."""

    fields: frozenset[str]
    tasks: tuple[Task, ...]
    begun: tuple[Task, ...]
    """Tasks that begin with an image, as `strength` says."""
    further: Mapping[str, Any]
    """Fields of the spec that only this kind has."""
    references: int = 0
    """Images beside `image` at the most."""


DRAWING = Kind(
    FIELDS,
    ("text-to-image", "image-to-image", "inpainting"),
    ("image-to-image", "inpainting"),
    {"sized_by_image": ("image-to-image", "inpainting")},
)


def spec_of(vae: VideoVaeConfig, kind: Kind, min_steps: int) -> MakeSpec:
    """Return what makes the spec of a checkpoint of that kind.

    Args:
        min_steps: that the schedule needs.
    """
    return described(
        kind.fields,
        {**default_size(vae.downsampling), **OWN},
        {task: {"strength": 0.6} for task in kind.begun},
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
        **kind.further,
    )
