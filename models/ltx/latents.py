"""Shapes of a video and its sound in latents, and the latents of both as one vector.

Source: diffusers pipeline_ltx2.py, prepare_latents, prepare_audio_latents and their packing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from models.interface.pipeline import PyTree, RequestError
from models.ltx.audio_vae_config import LTX2AudioVaeConfig
from models.ltx.network import Places
from models.ltx.request import LTX2Request
from models.ltx.video_vae_config import LTX2VideoVaeConfig
from models.sampling.torch_rng import TorchGenerator

Flat = Float[Array, "*batch numbers"]


class BothStreams(NamedTuple):
    """Tokens of both streams."""

    video: Float[Array, "*batch tokens channels"]
    audio: Float[Array, "*batch _tokens _channels"]

    @property
    def flat(self) -> Flat:
        """Numbers of both, the video's first: the latents of a row."""
        return jnp.concatenate([one.reshape(*one.shape[:-2], -1) for one in self], axis=-1)


@dataclass(frozen=True)
class LatentGrid:
    """Sizes that a checkpoint can serve."""

    video: LTX2VideoVaeConfig
    audio: LTX2AudioVaeConfig

    def places(self, request: LTX2Request) -> Places:
        """Return the sizes of a request in latents.

        Raises: RequestError: sizes between two, or too short for sound.
        """
        frame, *sides = self.video.downsampling
        for name, side in zip(("height", "width"), sides, strict=True):
            if (size := getattr(request, name)) % side:
                raise RequestError(name, f"must be a multiple of {side}, not {size}")
        if (request.num_frames - 1) % frame:
            raise RequestError(
                "num_frames", f"must be 1 more than a multiple of {frame}, not {request.num_frames}"
            )
        sound = round(request.num_frames / request.fps * self.audio.latents_per_s)
        if not sound:
            raise RequestError("num_frames", f"is too short for sound at {request.fps} fps")
        frames = (request.num_frames - 1) // frame + 1
        return Places(
            (frames, request.height // sides[0], request.width // sides[1]), sound, request.fps
        )

    def noise(self, seed: int, places: Places) -> dict[str, np.ndarray]:
        """Draw the first noise of both streams, float32 in every dtype: inputs of a row."""
        generator, sound = TorchGenerator(seed), places.audio_latents
        video = generator.randn((1, self.video.latent_channels, *places.grid))[0]
        audio = generator.randn((1, self.audio.latent_channels, sound, self.audio.latent_bins))[0]
        return {
            "noise": video.transpose(1, 2, 3, 0),
            "audio_noise": audio.transpose(1, 0, 2).reshape(sound, -1),
        }

    def numbers(self, places: Places) -> int:
        """Return how many numbers both streams' latents are."""
        video = int(np.prod(places.grid)) * self.video.latent_channels
        return video + places.audio_latents * self.audio.features

    def streams(self, latents: Flat, places: Places) -> BothStreams:
        """Return a row's or rows' latents as tokens."""
        tokens = int(np.prod(places.grid))
        end, batch = tokens * self.video.latent_channels, latents.shape[:-1]
        return BothStreams(
            latents[..., :end].reshape(*batch, tokens, -1),
            latents[..., end:].reshape(*batch, places.audio_latents, -1),
        )


def sizes(places: Places) -> dict[str, np.ndarray]:
    """Return sizes as leaves of a row: shapes of arrays without values."""
    rate = int(places.fps)
    return {"grid": np.zeros((*places.grid, 0)), "sound": np.zeros((places.audio_latents, rate, 0))}


def places_of(row: PyTree) -> Places:
    """Return the sizes of a row or of rows."""
    frames, rows, columns = row["grid"].shape[-4:-1]
    sound, rate = row["sound"].shape[-3:-1]
    return Places((frames, rows, columns), sound, float(rate))
