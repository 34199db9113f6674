"""Builds the `ModelSpec` of a FLUX.2 checkpoint: tasks, fields, defaults and limits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from models.flow.spec import MakeSpec, default_size, limits_by_pixels, spec_builder
from models.flux2.request import DEV_FIELDS, FIELDS, GUIDANCE
from models.spec.field_types import MAX_TEXT_TOKENS
from models.spec.model_spec import Need, Task
from models.vae.config import VaeConfig
from models.vae.references import IMAGE, REFERENCE_IMAGES

MASK = "mask_image"
EDITS: tuple[Task, ...] = ("text-to-image", "image-to-image")
GUIDED: Mapping[str, Any] = {"num_inference_steps": 50, "guidance_scale": 4.0}
"""Defaults of the authors' model pages, and of diffusers' pipelines."""


@dataclass(frozen=True)
class Flux2Kind:
    """Kind of a checkpoint: its requests' fields, their defaults, and its tasks."""

    fields: frozenset[str]
    defaults: Mapping[str, Any] = field(default_factory=lambda: GUIDED)
    tasks: tuple[Task, ...] = (*EDITS, "inpainting")
    max_references: int = 3
    """Maximum images in addition to `image`: klein reads four in total, as in the authors' API."""


BASE = Flux2Kind(FIELDS)
DISTILLED = Flux2Kind(FIELDS - GUIDANCE, {"num_inference_steps": 4})
DEV = Flux2Kind(DEV_FIELDS, tasks=EDITS, max_references=9)
"""Dev reads ten images, and has no pipeline of inpainting in diffusers."""

MAX_PIXELS = 1 << 20
"""Pixels to which larger references are downscaled."""
MIN_SIDE_PX, MAX_RATIO = 64, 8

NEEDS = {"negative_prompt": (Need(field="guidance_scale", above=1),)}


def spec_of(vae: VaeConfig, kind: Flux2Kind) -> MakeSpec:
    """Return a function that builds the spec of a FLUX.2 of some kind."""
    limits = limits_by_pixels(
        vae.downsampling, MAX_RATIO, MAX_TEXT_TOKENS, max_reference_images=kind.max_references
    )
    of_references = partial(dict.fromkeys, (IMAGE, REFERENCE_IMAGES))
    return spec_builder(
        kind.fields,
        {
            **default_size(vae.downsampling),
            "max_sequence_length": MAX_TEXT_TOKENS,
            **kind.defaults,
        },
        {task: {"strength": 0.8} for task in kind.tasks if task not in EDITS},
        family="flux2",
        tasks=kind.tasks,
        sized_by_image=kind.tasks[1:],
        strength_needs=MASK,
        sized_within_px=MAX_PIXELS,
        needs=NEEDS,
        limits=limits,
        least_side_px=of_references(max(MIN_SIDE_PX, limits.size_multiple_px)),
        most_ratio=of_references(MAX_RATIO),
        read_pixels=of_references(MAX_PIXELS),
    )
