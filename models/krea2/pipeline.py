"""Krea 2 pipeline for the engine: pure functions of the weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import jax
from jaxtyping import Array, Float

from models.flow.caption_pipeline import CaptionPipeline
from models.flow.chat_pipeline import ChatNetworks, ModulatedPipeline
from models.krea2.key_mapping import SPELLINGS
from models.krea2.request import Krea2Request
from models.sampling.base import per_row
from models.text.chat import DESCRIBING, DESCRIBING_CUT
from models.vae.latent_frames import LatentFramePipeline
from models.vae.patches import pack, unpack

CHAT = replace(DESCRIBING, keeps_end=True)
"""Template of prompts, whose end follows also a prompt that is too long, as in diffusers."""


class Krea2Pipeline(CaptionPipeline, ModulatedPipeline, LatentFramePipeline[ChatNetworks]):
    """Pipeline of Krea 2, for images from captions."""

    ENCODER = "Qwen3-VL"
    SPELLINGS = SPELLINGS
    REQUEST = Krea2Request
    CUT = DESCRIBING_CUT
    pack = staticmethod(pack)
    unpack = staticmethod(unpack)

    def combine_prompts(
        self, output: Float[Array, "batch prompts ..."], values: Mapping[str, jax.Array]
    ) -> Float[Array, "batch ..."]:
        """Apply classifier-free guidance, with the scale relative to the prompt's prediction."""
        positive = output[:, 0]
        scale = per_row(values["guidance_scale"], positive)
        return positive + scale * (positive - output[:, 1])
