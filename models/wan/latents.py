"""A video's shape in latents, and its first noise."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

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


def draw_noise(
    generator: TorchGenerator, latents: tuple[int, int, int], channels: int
) -> Float[np.ndarray, "f h w c"]:
    """Standard normal, float32 in every dtype, drawn channel by channel as in diffusers."""
    return generator.randn((1, channels, *latents))[0].transpose(1, 2, 3, 0)
