"""Qwen-Image 2.1 pipeline for the engine: pure functions of the weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from jaxtyping import Array, Float

from models.flow.caption_pipeline import CaptionPipeline
from models.flow.chat_pipeline import ChatNetworks
from models.qwenimage21.key_mapping import SPELLINGS
from models.qwenimage21.request import QwenImage21Request
from models.sampling.base import Plan
from models.spec.request import FlowImageRequest
from models.text.chat import Chat
from models.vae.latent_frames import LatentFramePipeline

SYSTEM = "<|im_start|>system\nComprehend and analyze the provided prompt.<|im_end|>\n"
"""System message, which the transformer does not receive, as in diffusers' pipeline."""
ANALYZING = Chat(f"{SYSTEM}<|im_start|>user\n", "<|im_end|>\n<|im_start|>assistant\n")


class QwenImage21Pipeline(CaptionPipeline, LatentFramePipeline[ChatNetworks]):
    """Pipeline of Qwen-Image 2.1, for images from captions.

    Args:
        sigmas: schedule of requests with as many steps; empty: evenly spaced.
    """

    ENCODER = "Qwen3-VL"
    SPELLINGS = SPELLINGS
    SCALE = "true_cfg_scale"
    REQUEST = QwenImage21Request
    PATCH = 1

    def __init__(self, *networks: Any, sigmas: Sequence[float] = ()) -> None:
        super().__init__(*networks)
        self.CUT = len(self.tokenizer.pieces([SYSTEM])[0])
        self.sigmas = tuple(sigmas)

    @staticmethod
    def pack(latents: Float[Array, "h w c"]) -> Float[Array, "tokens c"]:
        """Flatten latents to tokens [tokens, c]: each latent is a token."""
        return latents.reshape(-1, latents.shape[-1])

    @staticmethod
    def unpack(packed: Float[Array, "tokens c"], h: int, w: int) -> Float[Array, "h w c"]:
        """Reshape tokens to latents [h, w, c]: the inverse of `pack`."""
        return packed.reshape(h, w, -1)

    def plan(self, request: FlowImageRequest, tokens: int, strength: float | None) -> Plan:
        """Return the schedule: the checkpoint's sigmas, unless the request has other steps."""
        if request.sigmas is None and request.num_inference_steps == len(self.sigmas):
            request = replace(request, sigmas=self.sigmas)
        return super().plan(request, tokens, strength)
