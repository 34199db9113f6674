"""Shape of a video's latents, their initial noise, and conversion to patches."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from jaxtyping import Array, Float

from models.sampling.torch_rng import TorchGenerator
from models.spec.request import RequestError
from models.vae.video_config import VideoVaeConfig
from models.wan.config import WanConfig
from models.wan.request import WanRequest


@dataclass(frozen=True)
class Grid:
    """Video sizes that a checkpoint supports, given by its VAE, its patches and RoPE's reach."""

    frame: int
    """Frames per latent frame; the video's first frame has a latent frame to itself."""
    pixel: int
    """Side in pixels of the square that a latent covers."""
    patch: tuple[int, ...]
    """Latent frames, rows and columns of a token."""
    max_tokens: int
    """Maximum tokens along each axis."""

    @classmethod
    def of(cls, config: WanConfig, vae: VideoVaeConfig) -> Grid:
        """Return the grid of a Wan checkpoint."""
        return cls(
            vae.scale_factor_temporal,
            vae.scale_factor_spatial,
            config.patch_size,
            config.rope_max_seq_len,
        )

    @property
    def height_multiple(self) -> int:
        """Factor by which a video's height must be divisible."""
        return self.pixel * self.patch[1]

    @property
    def width_multiple(self) -> int:
        """Factor by which a video's width must be divisible."""
        return self.pixel * self.patch[2]

    def frames_near(self, count: int) -> tuple[int, int]:
        """Return the nearest valid frame counts below and above; both are `count` if valid."""
        step = self.frame * self.patch[0]
        first = step - self.frame + 1
        below = first + (count - first) // step * step
        return below, below if below == count else below + step

    @property
    def max_frames(self) -> int:
        """Maximum number of frames within RoPE's reach."""
        return self.frame * (self.patch[0] * self.max_tokens - 1) + 1

    def latents(self, request: WanRequest) -> tuple[int, int, int]:
        """Return a request's latent frames, rows and columns.

        Raises: RequestError: an unsupported size.
        """
        below, above = self.frames_near(request.num_frames)
        if below != above:
            near = f"{below} or {above}" if below > 0 else f"{above}"
            raise RequestError("num_frames", f"must be {near}, not {request.num_frames}")
        sides = (("height", self.height_multiple), ("width", self.width_multiple))
        for name, multiple in sides:
            size = getattr(request, name)
            if size < multiple or size % multiple:
                raise RequestError(name, f"must be a positive multiple of {multiple}, not {size}")
            if size > multiple * self.max_tokens:
                raise RequestError(name, f"must be at most {multiple * self.max_tokens}")
        if request.num_frames > self.max_frames:
            raise RequestError("num_frames", f"must be at most {self.max_frames}")
        frames = (request.num_frames - 1) // self.frame + 1
        return frames, request.height // self.pixel, request.width // self.pixel


def tokens_of(sizes: tuple[int, ...], patch: tuple[int, ...]) -> int:
    """Return the number of patches in latents of these sizes."""
    return math.prod(size // factor for size, factor in zip(sizes, patch, strict=True))


def patches(latents: Float[np.ndarray, "f h w c"], patch: tuple[int, ...]) -> np.ndarray:
    """Rearrange latents into a sequence of patches, in token order.

    Each patch has the height and width of a token. Runs on the host, so that videos of different
    sizes have the same shape on the device.
    """
    counts = [size // factor for size, factor in zip(latents.shape, patch, strict=False)]
    axes = [number for pair in zip(counts, patch, strict=True) for number in pair]
    blocks = latents.reshape(*axes, -1).transpose(0, 2, 4, 1, 3, 5, 6)
    return blocks.reshape(-1, *patch[1:], latents.shape[-1])


def without_patches(
    video: Float[Array, "patches rows columns c"], sizes: tuple[int, ...], patch: tuple[int, ...]
) -> Float[Array, "f h w c"]:
    """Rearrange patches to video latents: the inverse of `patches`; ignores padding."""
    counts = [size // factor for size, factor in zip(sizes, patch, strict=True)]
    unpadded = video[: math.prod(counts) * patch[0]]
    blocks = unpadded.reshape(*counts, *patch, -1).transpose(0, 3, 1, 4, 2, 5, 6)
    return blocks.reshape(*sizes, -1)


def draw_noise(
    generator: TorchGenerator, latents: tuple[int, int, int], channels: int
) -> Float[np.ndarray, "f h w c"]:
    """Draw standard normal noise, always float32, channel by channel as in diffusers."""
    noise: np.ndarray = generator.randn((1, channels, *latents))[0].transpose(1, 2, 3, 0)
    return noise
