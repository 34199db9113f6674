"""A video's shape in latents, and its first noise."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from jaxtyping import Array, Float

from models.interface.pipeline import RequestError
from models.sampling.torch_rng import TorchGenerator
from models.vae.video_config import VideoVaeConfig
from models.wan.config import WanConfig
from models.wan.request import WanRequest


@dataclass(frozen=True)
class Grid:
    """Sizes that a checkpoint can serve: what its VAE and its patches divide, up to RoPE's end."""

    frame: int
    """Frames that one latent frame stands for; the video's first one stands for itself."""
    pixel: int
    """Side, in pixels, of the square that one latent stands for."""
    patch: tuple[int, ...]
    """Latent frames, rows and columns of a token."""
    max_tokens: int
    """Along each axis."""

    @classmethod
    def of(cls, config: WanConfig, vae: VideoVaeConfig) -> Grid:
        """Return the grid of a checkpoint's latents."""
        return cls(
            vae.scale_factor_temporal,
            vae.scale_factor_spatial,
            config.patch_size,
            config.rope_max_seq_len,
        )

    @property
    def height_multiple(self) -> int:
        """Multiple that heights must be of."""
        return self.pixel * self.patch[1]

    @property
    def width_multiple(self) -> int:
        """Multiple that widths must be of."""
        return self.pixel * self.patch[2]

    def frames_near(self, count: int) -> tuple[int, int]:
        """The numbers of frames around this one that make whole tokens; equal to it if it does."""
        step = self.frame * self.patch[0]
        first = step - self.frame + 1
        below = first + (count - first) // step * step
        return below, below if below == count else below + step

    @property
    def max_frames(self) -> int:
        """Maximum frames that RoPE's table reaches."""
        return self.frame * (self.patch[0] * self.max_tokens - 1) + 1

    def latents(self, request: WanRequest) -> tuple[int, int, int]:
        """Latent frames, rows and columns. Raises: RequestError for a size between two."""
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
    return math.prod(size // of for size, of in zip(sizes, patch, strict=True))


def patches(latents: Float[np.ndarray, "f h w c"], patch: tuple[int, ...]) -> np.ndarray:
    """Return the patches of latents as a video that has them one behind the other, as tokens are.

    Of a patch's height and width, on the host: what is of another size has the same shape then.
    """
    counts = [size // of for size, of in zip(latents.shape, patch, strict=False)]
    axes = [number for pair in zip(counts, patch, strict=True) for number in pair]
    apart = latents.reshape(*axes, -1).transpose(0, 2, 4, 1, 3, 5, 6)
    return apart.reshape(-1, *patch[1:], latents.shape[-1])


def without_patches(
    video: Float[Array, "patches rows columns c"], sizes: tuple[int, ...], patch: tuple[int, ...]
) -> Float[Array, "f h w c"]:
    """The inverse of `patches`, of a video that may have padding behind them."""
    counts = [size // of for size, of in zip(sizes, patch, strict=True)]
    own = video[: math.prod(counts) * patch[0]]
    apart = own.reshape(*counts, *patch, -1).transpose(0, 3, 1, 4, 2, 5, 6)
    return apart.reshape(*sizes, -1)


def draw_noise(
    generator: TorchGenerator, latents: tuple[int, int, int], channels: int
) -> Float[np.ndarray, "f h w c"]:
    """Standard normal, float32 in every dtype, drawn channel by channel as in diffusers."""
    return generator.randn((1, channels, *latents))[0].transpose(1, 2, 3, 0)
