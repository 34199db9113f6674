"""Spec of a Qwen-Image checkpoint for the API: tasks, fields, defaults and limits."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from models.checkpoint.folder import chosen_defaults, fingerprint
from models.flow.spec import BUCKET_FIELDS, DEFAULT_LATENTS_PX, image_limits
from models.qwenimage.config import PATCH
from models.qwenimage.prompts import AREA_PX
from models.qwenimage.request import FIELDS, MAX_SEQUENCE_LENGTH
from models.spec.image_sizes import longest_side
from models.spec.model_spec import ModelSpec, Need, Task
from models.vae.references import FURTHER, IMAGE
from models.vae.video_config import VideoVaeConfig
from models.vision.qwen_patches import MOST_RATIO

LONGEST = 16
"""Most that a side may be longer than the other in an image of the most pixels."""
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


MOST_RATIO_OF_EDITS = MOST_RATIO * 3 // 4
"""Ratio of an image's sides: the shorter is rounded to 32 px before the encoder sees it."""
DRAWING = Kind(
    FIELDS - {FURTHER},
    ("text-to-image", "image-to-image", "inpainting"),
    ("image-to-image", "inpainting"),
    {"sized_by_image": ("image-to-image", "inpainting")},
)
EDITING = Kind(
    FIELDS - {FURTHER},
    ("image-to-image", "inpainting"),
    ("inpainting",),
    {
        "sized_by_image": ("image-to-image", "inpainting"),
        "sized_area_px": AREA_PX,
        "strength_needs": "mask_image",
        "most_ratio": {IMAGE: MOST_RATIO_OF_EDITS},
        "read_pixels": {IMAGE: AREA_PX},
    },
)
EDITING_SEVERAL = Kind(
    FIELDS - {"mask_image", "strength"},
    ("image-to-image",),
    (),
    {
        "sized_by_image": ("image-to-image",),
        "sized_area_px": AREA_PX,
        "sized_by_last": True,
        "most_ratio": dict.fromkeys((IMAGE, FURTHER), MOST_RATIO_OF_EDITS),
        "read_pixels": dict.fromkeys((IMAGE, FURTHER), AREA_PX),
    },
    references=3,
)


def make_spec(
    vae: VideoVaeConfig,
    name: str,
    sources: tuple[Path, ...],
    defaults: Mapping[str, Any],
    kind: Kind = DRAWING,
    min_steps: int = 1,
) -> ModelSpec:
    """Defaults are diffusers' own, then the folder's `atelier.json`, then the operator's.

    Args:
        sources: the folder, and the file of weights if there is one.
        min_steps: that the schedule needs.
    """
    token = PATCH * vae.downsampling
    side = DEFAULT_LATENTS_PX * vae.downsampling
    most = 4 * side * side
    chosen = chosen_defaults(name, sources[0], defaults, kind.fields)
    return ModelSpec(
        name=name,
        family="qwenimage",
        tasks=kind.tasks,
        fields=kind.fields,
        defaults={"width": side, "height": side, **OWN, **chosen},
        task_defaults={task: {"strength": 0.6, **chosen} for task in kind.begun},
        needs=NEEDS,
        limits=image_limits(
            token,
            longest_side(most, LONGEST, token),
            MAX_SEQUENCE_LENGTH,
            max_pixels=most,
            min_steps=min_steps,
            max_reference_images=kind.references,
        ),
        bucket_fields=BUCKET_FIELDS,
        fingerprint=fingerprint(*sources),
        **kind.further,
    )
