"""VACE transformer config: Wan's fields, and the blocks that receive hints."""

from __future__ import annotations

from dataclasses import dataclass

from models.wan.config import WanConfig


@dataclass(frozen=True)
class VaceConfig(WanConfig):
    """Fields of diffusers' WanVACETransformer3DModel config, with its defaults (14B's).

    Raises:
        ValueError: a value that the network does not support; names the field.
    """

    vace_layers: tuple[int, ...] = (0, 5, 10, 15, 20, 25, 30, 35)
    """Blocks after which a hint is added, in ascending order; each hint has its control block."""
    vace_in_channels: int = 96
    """Channels of the control video: preserved latents, generated latents, and the mask."""

    def __post_init__(self) -> None:
        super().__post_init__()
        layers = self.vace_layers
        if not all(type(layer) is int for layer in layers) or list(layers) != sorted({*layers}):
            raise ValueError(f"vace_layers {layers} must be whole numbers in rising order")
        if not layers or layers[0] != 0:
            raise ValueError(f"vace_layers {layers} must begin with 0")
        if layers[-1] >= self.num_layers:
            raise ValueError(f"vace_layers {layers} are more than num_layers {self.num_layers}")
        if type(self.vace_in_channels) is not int or self.vace_in_channels < 1:
            raise ValueError(
                f"vace_in_channels must be a positive integer, not {self.vace_in_channels!r}"
            )
