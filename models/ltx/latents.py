"""Latent shapes of a video and its audio, and the flat vector that holds both.

Source: diffusers pipeline_ltx2.py, prepare_latents, prepare_audio_latents and their packing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from models.interface.pipeline import PyTree
from models.ltx.audio_vae_config import LTX2AudioVaeConfig
from models.ltx.network import LatentSizes
from models.ltx.request import LTX2Request
from models.ltx.video_vae_config import LTX2VideoVaeConfig
from models.sampling.torch_rng import TorchGenerator
from models.spec.request import RequestError

Flat = Float[Array, "*batch numbers"]


class BothStreams(NamedTuple):
    """Latent tokens of a video and of its audio."""

    video: Float[Array, "*batch tokens channels"]
    audio: Float[Array, "*batch _tokens _channels"]

    @property
    def flat(self) -> Flat:
        """Tokens of both streams as one vector, video first: the latents of a row."""
        return jnp.concatenate([tokens.reshape(*tokens.shape[:-2], -1) for tokens in self], axis=-1)


@dataclass(frozen=True)
class LatentGrid:
    """Mapping of request sizes to latent shapes for one checkpoint."""

    video: LTX2VideoVaeConfig
    audio: LTX2AudioVaeConfig

    def latent_sizes(self, request: LTX2Request) -> LatentSizes:
        """Return the latent sizes of a request.

        Raises: RequestError: unsupported sizes, or a video too short for audio.
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
        return LatentSizes(
            (frames, request.height // sides[0], request.width // sides[1]), sound, request.fps
        )

    def noise(self, seed: int, sizes: LatentSizes) -> dict[str, np.ndarray]:
        """Draw the initial noise of both streams as inputs of a row, always float32."""
        generator, sound = TorchGenerator(seed), sizes.audio_latents
        video = generator.randn((1, self.video.latent_channels, *sizes.grid))[0]
        audio = generator.randn((1, self.audio.latent_channels, sound, self.audio.latent_bins))[0]
        return {
            "noise": video.transpose(1, 2, 3, 0),
            "audio_noise": audio.transpose(1, 0, 2).reshape(sound, -1),
        }

    def numbers(self, sizes: LatentSizes) -> int:
        """Return the number of elements of the flat latent vector of both streams."""
        video = int(np.prod(sizes.grid)) * self.video.latent_channels
        return video + sizes.audio_latents * self.audio.features

    def streams(self, latents: Flat, sizes: LatentSizes) -> BothStreams:
        """Split the flat latents of one or several rows into tokens."""
        return BothStreams(*self.split(latents, sizes))

    def split(self, latents: Any, sizes: LatentSizes) -> tuple[Any, Any]:
        """Split flat latents, arrays of NumPy or JAX, into tokens of video and audio."""
        tokens = int(np.prod(sizes.grid))
        end, batch = tokens * self.video.latent_channels, latents.shape[:-1]
        return (
            latents[..., :end].reshape(*batch, tokens, -1),
            latents[..., end:].reshape(*batch, sizes.audio_latents, -1),
        )


def size_leaves(sizes: LatentSizes) -> dict[str, np.ndarray]:
    """Store sizes as leaves of a row: shapes of empty arrays."""
    rate = int(sizes.fps)
    return {"grid": np.zeros((*sizes.grid, 0)), "sound": np.zeros((sizes.audio_latents, rate, 0))}


def latent_sizes_of(row: PyTree) -> LatentSizes:
    """Return the latent sizes stored in the leaves of one or several rows."""
    frames, rows, columns = row["grid"].shape[-4:-1]
    sound, rate = row["sound"].shape[-3:-1]
    return LatentSizes((frames, rows, columns), sound, float(rate))
