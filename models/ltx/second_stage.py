"""The second stage: latents of a first video, enlarged, noised anew and denoised in a few steps.

Source: HaCohen et al. 2026 (LTX-2), section 3; diffusers pipelines/ltx2/utils.py for the sigmas,
pipeline_ltx2.py and pipeline_ltx2_image2video.py, prepare_latents, for the noise.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from typing import Any

import jax
import numpy as np

from models.interface.image_start import read_latents
from models.ltx.latent_upsampler import LatentUpsampler
from models.ltx.latent_upsampler_config import LatentUpsamplerConfig
from models.ltx.latents import BothStreams, LatentGrid
from models.ltx.network import Places
from models.ltx.video_vae import LTX2VideoAutoencoder
from models.sampling.flow_match import FlowMatchEuler
from models.sampling.torch_rng import TorchGenerator
from models.spec.enlargers import Enlarger
from models.spec.hires import FIELD

NAME = "latent_upsampler"
"""Name of the network in a checkpoint, and of the upscaler in requests."""
SIGMAS = (0.909375, 0.725, 0.421875)
"""Noise of the second stage's steps, taken as it is: it is shifted already."""
UNGUIDED: Mapping[str, Any] = {
    "num_inference_steps": len(SIGMAS),
    "sigmas": [*SIGMAS],
    "guidance_scale": 1.0,
    "audio_guidance_scale": 1.0,
    "modality_scale": 1.0,
    "guidance_rescale": 0.0,
}
"""Fields of the published second stage."""


def enlargers_of(config: LatentUpsamplerConfig | None, *, stg: bool) -> dict[str, Enlarger]:
    """Return the enlargers of a model's spec.

    Args:
        config: None: the model has none.
        stg: whether it has guidance away from a block without self-attention.
    """
    if config is None:
        return {}
    second = {**UNGUIDED, **({"stg_scale": 0.0} if stg else {})}
    return {NAME: Enlarger(scale=float(config.scale), second=second)}


def with_given_sigmas(scheduler: FlowMatchEuler) -> FlowMatchEuler:
    """Return the scheduler of the second stage, which moves no sigmas by the video's size."""
    return replace(scheduler, use_dynamic_shifting=False, shift_terminal=None)


def stage_inputs(
    images: Mapping[str, bytes], grid: LatentGrid, places: Places, seed: int, scale: Fraction
) -> dict[str, np.ndarray]:
    """Inputs of the second stage: latents of the first one's streams, and noise of both.

    The noise of both is drawn as tokens, but that of a video with a first frame as its latents lie.

    Args:
        places: of the second stage.
        scale: of both sides.
    """
    frames, rows, columns = places.grid
    small = frames, int(rows / scale), int(columns / scale)
    before = Places(small, places.audio_latents, places.fps)
    flat: Any = np.broadcast_to(read_latents(images[FIELD]), (grid.numbers(before),))
    first = grid.streams(flat, before)
    video = first.video.reshape(*before.grid, -1)
    return {
        **_noise(grid, seed, places, of_frames="image" in images),
        "first_video": np.asarray(video),
        "first_audio": np.asarray(first.audio),
    }


def second_latents(
    inputs: Mapping[str, jax.Array],
    upsampler: LatentUpsampler,
    vae: LTX2VideoAutoencoder,
    dtype: Any,
    *,
    known: int,
) -> BothStreams:
    """Return the second stage's first latents, of the inputs of `stage_inputs`: video as frames.

    Args:
        dtype: that the upsampler computes in.
        known: frames that stay as the upsampler draws them, the first ones.
    """
    level = inputs["noise_scale"]
    first = vae.denormalised(inputs["first_video"])
    larger = vae.normalised(upsampler(first[None].astype(dtype)))[0]
    video = level * inputs["noise"] + (1 - level) * larger
    audio = level * inputs["audio_noise"] + (1 - level) * inputs["first_audio"]
    return BothStreams(video.at[:known].set(larger[:known]), audio)


def _noise(
    grid: LatentGrid, seed: int, places: Places, *, of_frames: bool
) -> dict[str, np.ndarray]:
    """Draw the noise of both streams.

    Args:
        of_frames: whether the video's is drawn channel by channel, as the first stage's is.
    """
    generator, channels = TorchGenerator(seed), grid.video.latent_channels
    if of_frames:
        video = generator.randn((1, channels, *places.grid))[0].transpose(1, 2, 3, 0)
    else:
        video = generator.randn((1, math.prod(places.grid), channels))[0]
    audio = generator.randn((1, places.audio_latents, grid.audio.features))[0]
    return {"noise": video.reshape(*places.grid, -1), "audio_noise": audio}
