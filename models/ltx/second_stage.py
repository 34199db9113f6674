"""Second stage of LTX-2: enlarges a first video's latents, adds noise, and denoises in few steps.

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
from models.ltx.network import LatentSizes
from models.ltx.video_vae import LTX2VideoAutoencoder
from models.sampling.flow_match import FlowMatchEuler
from models.sampling.torch_rng import TorchGenerator
from models.spec.hires import FIELD
from models.spec.upscalers import Enlarger

NAME = "latent_upsampler"
"""Name of the network in a checkpoint, and of the upscaler in requests."""
SIGMAS = (0.909375, 0.725, 0.421875)
"""Noise levels of the second stage's steps, already shifted."""
UNGUIDED: Mapping[str, Any] = {
    "num_inference_steps": len(SIGMAS),
    "sigmas": [*SIGMAS],
    "guidance_scale": 1.0,
    "audio_guidance_scale": 1.0,
    "modality_scale": 1.0,
    "guidance_rescale": 0.0,
}
"""Request fields of the published second stage."""


def enlargers_of(config: LatentUpsamplerConfig | None, *, stg: bool) -> dict[str, Enlarger]:
    """Return the second-stage enlargers (latent upsamplers) that a model's spec lists.

    Args:
        config: config of the latent upsampler; None without one.
        stg: whether the model supports guidance away from a block without self-attention.
    """
    if config is None:
        return {}
    second = {**UNGUIDED, **({"stg_scale": 0.0} if stg else {})}
    return {NAME: Enlarger(scale=float(config.scale), second=second)}


def without_shift(scheduler: FlowMatchEuler) -> FlowMatchEuler:
    """Return the second stage's scheduler, which does not shift sigmas by the video's size."""
    return replace(scheduler, use_dynamic_shifting=False, shift_terminal=None)


def stage_inputs(
    images: Mapping[str, bytes], grid: LatentGrid, sizes: LatentSizes, seed: int, scale: Fraction
) -> dict[str, np.ndarray]:
    """Return the second stage's inputs: the first stage's latents, and noise of both streams.

    The noise is drawn in token order; with a first frame, the video's noise is drawn in latent
    order.

    Args:
        sizes: latent sizes of the second stage.
        scale: enlargement of both sides.
    """
    frames, rows, columns = sizes.grid
    small = frames, int(rows / scale), int(columns / scale)
    before = LatentSizes(small, sizes.audio_latents, sizes.fps)
    flat: Any = np.broadcast_to(read_latents(images[FIELD]), (grid.numbers(before),))
    video, audio = grid.split(flat, before)
    return {
        **_noise(grid, seed, sizes, of_frames="image" in images),
        "first_video": np.asarray(video.reshape(*before.grid, -1)),
        "first_audio": np.asarray(audio),
    }


def second_latents(
    inputs: Mapping[str, jax.Array],
    upsampler: LatentUpsampler,
    vae: LTX2VideoAutoencoder,
    dtype: Any,
    *,
    clean_frames: int,
) -> BothStreams:
    """Build the second stage's first latents from `stage_inputs`; the video has frames.

    Args:
        dtype: computation dtype of the upsampler.
        clean_frames: number of leading frames that receive no noise.
    """
    level = inputs["noise_scale"]
    first = vae.denormalised(inputs["first_video"])
    larger = vae.normalised(upsampler(first[None].astype(dtype)))[0]
    video = level * inputs["noise"] + (1 - level) * larger
    audio = level * inputs["audio_noise"] + (1 - level) * inputs["first_audio"]
    return BothStreams(video.at[:clean_frames].set(larger[:clean_frames]), audio)


def _noise(
    grid: LatentGrid, seed: int, sizes: LatentSizes, *, of_frames: bool
) -> dict[str, np.ndarray]:
    """Draw the second stage's noise of both streams.

    Args:
        of_frames: whether the video's noise is drawn channel by channel, as in the first stage.
    """
    generator, channels = TorchGenerator(seed), grid.video.latent_channels
    if of_frames:
        video = generator.randn((1, channels, *sizes.grid))[0].transpose(1, 2, 3, 0)
    else:
        video = generator.randn((1, math.prod(sizes.grid), channels))[0]
    audio = generator.randn((1, sizes.audio_latents, grid.audio.features))[0]
    return {"noise": video.reshape(*sizes.grid, -1), "audio_noise": audio}
