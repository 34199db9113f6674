"""Config of a Flux ControlNet: its `config.json`, checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from models.checkpoint.config_fields import arguments
from models.flux.config import FluxConfig

NAME = "FluxControlNetModel"
"""Class of checkpoints that it is the config of."""


@dataclass(frozen=True)
class FluxControlNetConfig(FluxConfig):
    """The fields of diffusers' FluxControlNetModel config, with its defaults.

    Raises: ValueError: a value that this network cannot have, by name.
    """

    num_mode: int | None = None
    """Kinds of control images of a union; None: it is none."""
    conditioning_embedding_channels: int | None = None
    """Channels that convolutions of its own make of the image; None: the VAE encodes it."""

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
            self.check_whole("num_mode")

    @classmethod
    def read(cls, config: Mapping[str, Any], file: Path) -> FluxControlNetConfig:
        """Read a checkpoint's config. Raises: ValueError: an unknown key, or a wrong value."""
        if (kind := config.get("_class_name", NAME)) != NAME:
            raise ValueError(f"{file}: is of class {kind}; ControlNets of Flux are {NAME}s")
        return cls(**arguments(cls, config, str(file)))
