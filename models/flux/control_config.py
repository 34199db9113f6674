"""Flux ControlNet config (`config.json`), with validation."""

from __future__ import annotations

from dataclasses import dataclass

from models.flux.config import FluxConfig

NAME = "FluxControlNetModel"
"""Class name of Flux ControlNets in diffusers."""


@dataclass(frozen=True)
class FluxControlNetConfig(FluxConfig):
    """Fields of diffusers' FluxControlNetModel config, with its defaults.

    Raises: ValueError: a value that this network does not support; names the field.
    """

    num_mode: int | None = None
    """Number of control types of a union; None for other ControlNets."""
    conditioning_embedding_channels: int | None = None
    """Channels of a convolutional image encoder; None if the VAE encodes the image."""

    def __post_init__(self) -> None:
        if self.conditioning_embedding_channels is not None:
            raise ValueError(
                f"conditioning_embedding_channels {self.conditioning_embedding_channels}: a "
                "ControlNet with convolutions of its own for its image (XLabs') is not served; "
                "use one that reads the VAE's latents"
            )
        super().__post_init__()
        if not self.num_layers + self.num_single_layers:
            raise ValueError("num_layers and num_single_layers are 0: it would add nothing")
        if self.num_mode is not None:
            self.check_integers("num_mode")
