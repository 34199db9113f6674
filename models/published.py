"""What the published checkpoints are made of, and what their weights take: no weights needed."""

from __future__ import annotations

from collections.abc import Mapping

from jax.typing import DTypeLike

from models.flux import published as flux
from models.flux.config import FluxConfig
from models.parameters import Count, memory_bytes, parameters, projected
from models.sdxl import published as sdxl
from models.sdxl.config import UNetConfig
from models.text.clip import ClipConfig
from models.text.t5 import T5Config
from models.text.umt5 import UMT5Config
from models.vae.config import VaeConfig
from models.vae.video_config import VideoVaeConfig
from models.vision.clip import ClipVisionConfig
from models.wan import published as wan
from models.wan.config import WanConfig

Parts = Mapping[str, Count]
"""Component → how many parameters it has."""


def _flux(configs: flux.Checkpoint) -> Parts:
    return {
        "transformer": parameters(FluxConfig.from_dict(configs["transformer"])),
        "text_encoder": parameters(ClipConfig.from_dict(configs["text_encoder"])),
        "text_encoder_2": parameters(T5Config.from_dict(configs["text_encoder_2"])),
        "vae": parameters(VaeConfig.from_dict(configs["vae"])),
    }


def _sdxl(configs: sdxl.Checkpoint) -> Parts:
    return {
        "unet": parameters(UNetConfig.from_dict(configs["unet"])),
        "text_encoder": parameters(ClipConfig.from_dict(configs["text_encoder"])),
        "text_encoder_2": projected(ClipConfig.from_dict(configs["text_encoder_2"])),
        "vae": parameters(VaeConfig.from_dict(configs["vae"])),
    }


def _wan(*experts: wan.Config, vae: wan.Config, sees: bool = False) -> Parts:
    """`sees`: whether CLIP's vision tower comes with it."""
    names = ("transformer", "transformer_2")
    parts = {
        name: parameters(WanConfig.from_dict(config))
        for name, config in zip(names, experts, strict=False)
    }
    parts["text_encoder"] = parameters(UMT5Config.from_dict(wan.UMT5_XXL))
    parts["vae"] = parameters(VideoVaeConfig.from_dict(vae))
    if sees:
        seen = parameters(ClipVisionConfig.from_dict(wan.CLIP_VIT_H))
        parts["image_encoder"] = Count(0, seen.total)  # loaded in float32, whatever the rest is
    return parts


CHECKPOINTS: Mapping[str, Parts] = {
    "SDXL base 1.0": _sdxl(sdxl.SDXL_BASE),
    "FLUX.1 schnell": _flux(flux.FLUX_SCHNELL),
    "FLUX.1 dev": _flux(flux.FLUX_DEV),
    "Wan 2.1 T2V 1.3B": _wan(wan.T2V_1_3B, vae=wan.VAE_2_1),
    "Wan 2.1 T2V 14B": _wan(wan.T2V_14B, vae=wan.VAE_2_1),
    "Wan 2.1 I2V 14B": _wan(wan.I2V_14B, vae=wan.VAE_2_1, sees=True),
    "Wan 2.2 T2V A14B": _wan(wan.T2V_14B, wan.T2V_14B, vae=wan.VAE_2_1),
    "Wan 2.2 I2V A14B": _wan(wan.I2V_A14B, wan.I2V_A14B, vae=wan.VAE_2_1),
    "Wan 2.2 TI2V 5B": _wan(wan.TI2V_5B, vae=wan.VAE_2_2),
}
"""By the names that their authors gave them."""


def gibibytes(checkpoint: str, dtype: DTypeLike) -> float:
    """What a published checkpoint's weights take, loaded in `dtype`, all of them at once."""
    return memory_bytes(CHECKPOINTS[checkpoint].values(), dtype) / 2**30
