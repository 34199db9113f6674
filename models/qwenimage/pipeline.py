"""Qwen-Image pipeline for the engine: pure functions of the weights."""

from __future__ import annotations

from collections.abc import Mapping

import jax
from jaxtyping import Array, Float

from models.flow.caption_pipeline import CaptionPipeline
from models.flow.chat_pipeline import ChatNetworks, ModulatedPipeline
from models.qwenimage.config import QwenImageConfig
from models.qwenimage.key_mapping import SPELLINGS
from models.qwenimage.prompts import CUT
from models.qwenimage.request import QwenImageRequest
from models.sampling.base import per_row
from models.sampling.guidance import classifier_free, with_norms_of
from models.vae.latent_frames import LatentFramePipeline
from models.vae.patches import pack, pack_on_host, unpack


class QwenImagePipeline(CaptionPipeline, ModulatedPipeline, LatentFramePipeline[ChatNetworks]):
    """Pipeline of Qwen-Image, for images from captions."""

    ENCODER = "Qwen2.5"
    SPELLINGS = SPELLINGS
    SCALE = "true_cfg_scale"
    CUT = CUT
    REQUEST = QwenImageRequest
    config: QwenImageConfig
    pack = staticmethod(pack)
    pack_on_host = staticmethod(pack_on_host)
    unpack = staticmethod(unpack)

    @property
    def break_even_tokens(self) -> int:
        """Tokens at which attention costs as much as a layer's 12 w² parameters."""
        return 6 * self.config.width

    def combine_prompts(
        self, output: Float[Array, "batch prompts ..."], values: Mapping[str, jax.Array]
    ) -> Float[Array, "batch ..."]:
        """Apply classifier-free guidance; each token has the norm of the prompt's prediction."""
        positive = output[:, 0]
        scale = per_row(values[self.SCALE], positive)
        return with_norms_of(positive, classifier_free(positive, output[:, 1], scale))
