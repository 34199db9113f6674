"""Keys of configs that are ignored: the reference ignores them, too.

A key that a class of diffusers reads and ours does not would change images without an error.
"""

from __future__ import annotations

import inspect
from dataclasses import fields
from typing import Any

import diffusers
import pytest

from models.checkpoint.config_fields import OF_AVERAGING
from models.chroma.config import ChromaConfig
from models.flux.config import FluxConfig
from models.flux.control_config import FluxControlNetConfig
from models.flux2.config import Flux2Config
from models.krea2.config import Krea2Config
from models.ltx.config import LTX2Config
from models.ltx.video_vae_config import LTX2VideoVaeConfig
from models.qwenimage.config import QwenImageConfig
from models.qwenimage21.config import QwenImage21Config
from models.sdxl.config import UNetConfig
from models.vae import video_config
from models.vae.config import VaeConfig
from models.vae.frame import FrameVaeConfig
from models.vae.video_config import VideoVaeConfig
from models.wan.config import WanConfig
from models.zimage.config import ZImageConfig

READ_AS: dict[type, frozenset[str]] = {
    VideoVaeConfig: video_config.WITHOUT_EFFECT | {"input_channels"},
    FrameVaeConfig: video_config.WITHOUT_EFFECT,
}
"""Further keys that a class reads, or that it ignores because they have no effect."""


@pytest.mark.parametrize(
    ("kind", "reference"),
    [
        (ChromaConfig, "ChromaTransformer2DModel"),
        (FluxConfig, "FluxTransformer2DModel"),
        (FluxControlNetConfig, "FluxControlNetModel"),
        (Flux2Config, "Flux2Transformer2DModel"),
        (Krea2Config, "Krea2Transformer2DModel"),
        (QwenImageConfig, "QwenImageTransformer2DModel"),
        (QwenImage21Config, "QwenImage21Transformer2DModel"),
        (ZImageConfig, "ZImageTransformer2DModel"),
        (WanConfig, "WanTransformer3DModel"),
        (LTX2Config, "LTX2VideoTransformer3DModel"),
        (UNetConfig, "UNet2DConditionModel"),
        (VaeConfig, "AutoencoderKL"),
        (VideoVaeConfig, "AutoencoderKLWan"),
        (VideoVaeConfig, "AutoencoderKLQwenImage"),
        (FrameVaeConfig, "AutoencoderKLQwenImage21"),
        (LTX2VideoVaeConfig, "AutoencoderKLLTX2Video"),
    ],
)
def test_every_argument_of_the_reference_is_a_field(kind: Any, reference: str) -> None:
    arguments = inspect.signature(getattr(diffusers, reference).__init__).parameters
    names = {field.name for field in fields(kind)} | OF_AVERAGING | READ_AS.get(kind, frozenset())
    assert {*arguments} - {"self"} <= names | getattr(kind, "WITHOUT_EFFECT", frozenset())
