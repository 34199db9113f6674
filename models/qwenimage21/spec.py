"""Builds the `ModelSpec` of a Qwen-Image 2.1 checkpoint: task, request fields, defaults, limits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from models.flow.spec import TRUE_CFG_NEEDS, MakeSpec, image_limits, spec_builder
from models.media.scaling import longest_side
from models.qwenimage21.request import FIELDS, MAX_SEQUENCE_LENGTH
from models.spec.model_spec import Task
from models.vae.frame import FrameVaeConfig

LONGEST = 16
"""Maximum aspect ratio of an image with the maximum number of pixels."""
UNIT = 2
"""Rows and columns of latents in the unit of an image's sides: the text encoder's patch."""
DEFAULT_LATENTS, MAX_LATENTS = 64, 172 * 96
"""Side of an image in latents, as in diffusers; and latents of the authors' largest image."""
DEFAULTS: Mapping[str, Any] = {
    "num_inference_steps": 40,
    "true_cfg_scale": 1.0,
    "max_sequence_length": 512,
}
"""Defaults of diffusers' QwenImage21Pipeline, which uses no guidance."""


class TaskKind(NamedTuple):
    """Properties of the spec that depend on whether the checkpoint reads images."""

    fields: frozenset[str]
    tasks: tuple[Task, ...]
    extra_fields: Mapping[str, Any]
    """Spec fields that only this kind has."""
    references: int = 0
    """Maximum number of images in addition to `image`."""


GENERATION = TaskKind(FIELDS, ("text-to-image",), {})


def spec_of(
    vae: FrameVaeConfig, kind: TaskKind, sigmas: Sequence[float], min_steps: int
) -> MakeSpec:
    """Return a function that builds the spec of a Qwen-Image 2.1 checkpoint of this kind.

    Args:
        sigmas: the checkpoint's schedule; empty: evenly spaced.
        min_steps: minimum steps of the schedule.
    """
    unit, most = UNIT * vae.downsampling, MAX_LATENTS * vae.downsampling**2
    side = DEFAULT_LATENTS * vae.downsampling
    steps = {"num_inference_steps": len(sigmas)} if sigmas else {}
    return spec_builder(
        kind.fields,
        {"width": side, "height": side, **DEFAULTS, **steps},
        needs=TRUE_CFG_NEEDS,
        family="qwenimage21",
        tasks=kind.tasks,
        has_alpha=vae.out_channels == len("RGBA"),
        limits=image_limits(
            unit,
            longest_side(most, LONGEST, unit),
            MAX_SEQUENCE_LENGTH,
            max_pixels=most,
            min_steps=min_steps,
            max_reference_images=kind.references,
        ),
        **kind.extra_fields,
    )
