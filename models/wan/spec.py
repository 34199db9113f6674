"""Builds the `ModelSpec` of a Wan checkpoint: tasks, request fields, defaults and limits."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from models.checkpoint.fingerprint import config_digest, fingerprint
from models.checkpoint.folder import chosen_defaults
from models.media.scaling import FrameScaling
from models.spec.field_types import MAX_TEXT_TOKENS
from models.spec.model_spec import Limits, ModelSpec, Need
from models.wan import animate_inputs, vace_inputs
from models.wan.animate_config import AnimateConfig
from models.wan.checkpoint import WanCheckpoint
from models.wan.latents import Grid
from models.wan.request import ANIMATE_VIDEOS, FIELDS, VACE_IMAGES
from models.wan.schedulers import EVALUATIONS, OPTIONS
from models.wan.vace_config import VaceConfig

WIDTH_PX, HEIGHT_PX, FRAMES = 832, 480, 81
"""Default size of a video, as in diffusers' Wan pipelines."""
SIDES, AREAS, LENGTHS = 2, 4, 4
"""Limits of width, area and length, as multiples of the default size."""
FPS, FPS_TI2V = 16, 24
"""Frame rates of the training videos: of Wan, and of TI2V."""

ANIMATE: Mapping[str, Any] = {
    "width": 1280,
    "height": 720,
    "fps": 30,
    "num_inference_steps": 20,
    "guidance_scale": 1.0,
}
"""Defaults of Animate requests: diffusers' arguments, and the authors' frame rate."""
SEGMENT = 77
"""Maximum frames of an Animate video, as in training. Longer videos need several segments, and only
one is supported."""
COVERING, MAX_RATIO = ("control_video", "mask_video", "image", "last_image"), 8
"""Fields whose images are cropped to the video's proportions, and their maximum aspect ratio."""
MAX_REFERENCES = 8
"""Reference images per video; each adds the work of four frames."""

_GUIDED = (Need(field="guidance_scale", above=1),)
NEEDS: Mapping[str, tuple[Need, ...]] = dict.fromkeys(
    ("negative_prompt", "guidance_scale_2"), _GUIDED
)
"""Conditions of request fields, as in diffusers: the first expert's scale decides for both."""


def make_spec(
    name: str,
    sources: tuple[Path, ...],
    checkpoint: WanCheckpoint,
    defaults: Mapping[str, Any],
    scheduler: str = "",
) -> ModelSpec:
    """Build the `ModelSpec` of a Wan checkpoint.

    The folder's `atelier.json`, then the operator's values, override diffusers' defaults.

    Args:
        sources: the folder, and the file of weights, if any.
        scheduler: class of the checkpoint's scheduler, whose evaluations its steps cost.
    """
    grid = Grid.of(checkpoint.transformer, checkpoint.vae)
    limits = _with_control(limits_of(grid), checkpoint)
    fields = fields_of(checkpoint)
    chosen = chosen_defaults(name, sources[0], defaults, fields)
    return ModelSpec(
        name=name,
        family="wan",
        tasks=checkpoint.tasks,
        fields=fields,
        needed=needed_of(checkpoint),
        defaults={**_defaults_of(checkpoint, limits), **chosen},
        needs={name: needs for name, needs in NEEDS.items() if name in fields},
        limits=limits,
        schedulers=OPTIONS,
        evaluations=EVALUATIONS,
        scheduler=scheduler if scheduler in EVALUATIONS else "",
        read_frames=read_frames_of(checkpoint, grid),
        frame_scaling=frame_scaling_of(checkpoint),
        most_ratio=most_ratio_of(checkpoint),
        bucket_fields=("width", "height", "num_frames", "max_sequence_length"),
        fingerprint=fingerprint(*sources),
        config_digest=config_digest(*sources),
    )


def fields_of(checkpoint: WanCheckpoint) -> frozenset[str]:
    """Return the request fields that a Wan checkpoint supports."""
    served = {
        "guidance_scale_2": checkpoint.boundary_ratio is not None,
        "image": "image-to-video" in checkpoint.tasks,
        "last_image": checkpoint.takes_last_image,
        **dict.fromkeys((*VACE_IMAGES, "conditioning_scale"), checkpoint.reads_control),
        **dict.fromkeys(ANIMATE_VIDEOS, checkpoint.animates),
        "mask_video": checkpoint.reads_control or checkpoint.animates,
    }
    return frozenset(name for name in FIELDS if served.get(name, True))


def most_ratio_of(checkpoint: WanCheckpoint) -> dict[str, int]:
    """Return the maximum aspect ratio of images that are fitted into a video, by field."""
    if checkpoint.reads_control:
        return dict.fromkeys(COVERING, MAX_RATIO)
    return {"image": MAX_RATIO} if checkpoint.animates else {}


def frame_scaling_of(checkpoint: WanCheckpoint) -> Mapping[str, FrameScaling]:
    """Return how input video frames are scaled, by field."""
    if checkpoint.reads_control:
        return {"control_video": vace_inputs.FRAMES, "mask_video": vace_inputs.MASKS}
    config = checkpoint.transformer
    if not isinstance(config, AnimateConfig):
        return {}
    face = replace(animate_inputs.FRAMES, side_px=config.motion_encoder_size)
    plain = dict.fromkeys((*ANIMATE_VIDEOS, "mask_video"), animate_inputs.FRAMES)
    return {**plain, "face_video": face}


def needed_of(checkpoint: WanCheckpoint) -> frozenset[str]:
    """Return the required fields, in addition to those that the task requires."""
    if checkpoint.animates:
        return frozenset({"pose_video", "face_video"})
    return frozenset({"last_image"} if checkpoint.needs_last_image else ())


def read_frames_of(checkpoint: WanCheckpoint, grid: Grid) -> Mapping[str, int]:
    """Return by how many frames each image of a field lengthens the denoised video."""
    if checkpoint.animates:
        return {"image": grid.frame}
    return {"reference_images": grid.frame} if checkpoint.reads_control else {}


def limits_of(grid: Grid) -> Limits:
    """Return Wan's request limits: the reach of RoPE, capped at multiples of the default size."""
    multiple = math.lcm(grid.width_multiple, grid.height_multiple)
    reach = grid.max_tokens * min(grid.width_multiple, grid.height_multiple)
    longest = min(grid.max_frames, LENGTHS * (FRAMES - 1) + 1)
    return Limits(
        size_multiple_px=multiple,
        min_side_px=multiple,
        max_side_px=max(multiple, min(reach, SIDES * WIDTH_PX) // multiple * multiple),
        max_pixels=max(multiple**2, AREAS * WIDTH_PX * HEIGHT_PX),
        max_frames=max(grid.frames_near(1)[1], grid.frames_near(longest)[0]),
        min_frames=grid.frames_near(1)[1],
        frames_multiple=grid.frame * grid.patch[0],
        max_steps=1000,
        max_images=4,
        max_sequence_length=MAX_TEXT_TOKENS,
    )


def _with_control(limits: Limits, checkpoint: WanCheckpoint) -> Limits:
    """Return the limits, extended by those of control or pose videos if the checkpoint has any."""
    config = checkpoint.transformer
    if checkpoint.animates:
        return limits.model_copy(update={"max_frames": min(limits.max_frames, SEGMENT)})
    if not isinstance(config, VaceConfig):
        return limits
    return limits.model_copy(
        update={
            "max_reference_images": MAX_REFERENCES,
            "conditioning_scales": len(config.vace_layers),
        }
    )


def _defaults_of(checkpoint: WanCheckpoint, limits: Limits) -> dict[str, Any]:
    """Return diffusers' defaults for Wan; unsupported sizes are reduced to the next supported."""
    grid, multiple = Grid.of(checkpoint.transformer, checkpoint.vae), limits.size_multiple_px

    animate = ANIMATE if checkpoint.animates else {}

    def side(usual: int) -> int:
        return max(multiple, min(usual, limits.max_side_px) // multiple * multiple)

    chosen = {
        "fps": FPS_TI2V if checkpoint.expand_timesteps else FPS,
        "num_inference_steps": 50,
        "guidance_scale": 5.0,
        "max_sequence_length": MAX_TEXT_TOKENS,
        **animate,
    }
    return {
        **chosen,
        "width": side(animate.get("width", WIDTH_PX)),
        "height": side(animate.get("height", HEIGHT_PX)),
        "num_frames": max(
            grid.frames_near(1)[1], grid.frames_near(min(FRAMES, limits.max_frames))[0]
        ),
    }
