"""Builds the `ModelSpec` of an LTX-2 checkpoint: tasks, request fields, defaults and limits."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from models.checkpoint.fingerprint import config_digest, fingerprint
from models.checkpoint.folder import chosen_defaults
from models.ltx.config import LTX2Config
from models.ltx.latent_upsampler_config import LatentUpsamplerConfig
from models.ltx.request import FIELDS
from models.ltx.second_stage import enlargers_of
from models.ltx.video_vae_config import LTX2VideoVaeConfig
from models.spec.model_spec import Limits, ModelSpec

WIDTH_PX, HEIGHT_PX, FRAMES, FPS = 768, 512, 121, 24
"""Default size of a video, as in diffusers' LTX2Pipeline."""
AREAS = 6
"""Maximum area of a request as a multiple of the default; includes 1080p."""
MAX_SEQUENCE_LENGTH = 1024
"""Maximum number of Gemma tokens, as in diffusers' LTX2Pipeline."""
DEFAULTS: Mapping[str, Any] = {
    "num_inference_steps": 30,
    "guidance_scale": 3.0,
    "audio_guidance_scale": 7.0,
    "modality_scale": 3.0,
    "guidance_rescale": 0.7,
    "fps": FPS,
}


def make_spec(
    config: LTX2Config,
    vae: LTX2VideoVaeConfig,
    name: str,
    sources: tuple[Path, ...],
    defaults: Mapping[str, Any],
    *,
    text_multiple: int,
    min_steps: int,
    sound_hz: int,
    upsampler: LatentUpsamplerConfig | None = None,
) -> ModelSpec:
    """Build the `ModelSpec` of an LTX-2 checkpoint.

    The folder's `atelier.json`, then the operator's values, override diffusers' defaults.

    Args:
        sources: the folder, and the file of weights, if any.
        text_multiple: factor by which the number of text tokens must be divisible.
        min_steps: minimum steps of the schedule.
        sound_hz: sample rate of the audio.
        upsampler: latent upsampler config for a second stage; None without one.
    """
    fields = FIELDS if config.perturbed_attn else FIELDS - {"stg_scale"}
    chosen = chosen_defaults(name, sources[0], defaults, fields)
    limits = _limits(config, vae, text_multiple, min_steps)
    return ModelSpec(
        name=name,
        family="ltx",
        tasks=("text-to-video", "image-to-video"),
        fields=fields,
        defaults={**_defaults_of(limits, stg=config.perturbed_attn), **chosen},
        limits=limits,
        sound_hz=sound_hz,
        enlargers=enlargers_of(upsampler, stg=config.perturbed_attn),
        bucket_fields=("width", "height", "num_frames", "fps", "max_sequence_length"),
        fingerprint=fingerprint(*sources),
        config_digest=config_digest(*sources),
    )


def _limits(
    config: LTX2Config, vae: LTX2VideoVaeConfig, text_multiple: int, min_steps: int
) -> Limits:
    """Return LTX-2's request limits: the sizes and seconds that positions are relative to."""
    frame, *sides = vae.downsampling
    multiple = math.lcm(*sides)
    reach = min(config.base_height, config.base_width) // multiple * multiple
    longest = config.pos_embed_max_pos * FPS // frame * frame + 1
    return Limits(
        size_multiple_px=multiple,
        min_side_px=multiple,
        max_side_px=max(multiple, reach),
        max_pixels=max(multiple**2, AREAS * WIDTH_PX * HEIGHT_PX),
        max_frames=max(frame + 1, longest),
        min_frames=frame + 1,
        frames_multiple=frame,
        max_steps=1000,
        min_steps=min_steps,
        max_images=4,
        max_sequence_length=MAX_SEQUENCE_LENGTH // text_multiple * text_multiple,
        sequence_length_multiple=text_multiple,
    )


def _defaults_of(limits: Limits, *, stg: bool) -> dict[str, Any]:
    """Return diffusers' defaults for LTX-2; unsupported sizes are reduced to the next supported."""
    multiple, frame = limits.size_multiple_px, limits.frames_multiple
    width, height = (
        max(multiple, min(usual, limits.max_side_px) // multiple * multiple)
        for usual in (WIDTH_PX, HEIGHT_PX)
    )
    frames = (min(FRAMES, limits.max_frames) - 1) // frame * frame + 1
    return {
        "width": width,
        "height": height,
        "num_frames": max(limits.min_frames, frames),
        **DEFAULTS,
        "max_sequence_length": limits.max_sequence_length,
        **({"stg_scale": 1.0} if stg else {}),
    }
