"""Chroma pipeline for the engine: pure functions of the weights."""

from __future__ import annotations

from collections.abc import Mapping

import jax
from jaxtyping import Array, Float

from models.chroma.config import ChromaConfig
from models.chroma.key_mapping import SPELLINGS
from models.chroma.request import ChromaRequest
from models.flow.caption_pipeline import CaptionPipeline
from models.flow.chat_pipeline import ChatNetworks, ModulatedPipeline
from models.text.emphasis import scaled
from models.text.tokenizer import ReadTexts
from models.text.weighted import read_lines
from models.vae.latent_images import LatentImagePipeline
from models.vae.patches import pack, pack_on_host, unpack


class ChromaPipeline(CaptionPipeline, ModulatedPipeline, LatentImagePipeline[ChatNetworks]):
    """Pipeline of Chroma: text and images to images. The text encoder is T5, no chat model."""

    ENCODER = "T5"
    SPELLINGS = SPELLINGS
    REQUEST = ChromaRequest
    config: ChromaConfig
    pack = staticmethod(pack)
    pack_on_host = staticmethod(pack_on_host)
    unpack = staticmethod(unpack)

    @property
    def break_even_tokens(self) -> int:
        """Tokens at which attention costs as much as a layer's 12 w² parameters."""
        return 6 * self.config.width

    def read_texts(self, request: ChromaRequest, texts: Mapping[str, str], limit: int) -> ReadTexts:
        """Tokenize the prompts, with `token_weights` if they have weights.

        Raises: RequestError: weights out of range; names the field.
        """
        if request.prompt_syntax == "plain":
            return super().read_texts(request, texts, limit)
        lines = read_lines(self.ENCODER, self.tokenizer, texts, limit)
        inputs = {"ids": lines.ids, "read": lines.mask, **lines.weight_inputs}
        return ReadTexts(inputs, lines.warnings)

    def captions(
        self, weights: ChatNetworks, inputs: Mapping[str, jax.Array]
    ) -> Float[Array, "prompts tokens features"]:
        """Encode the prompts, and scale the features of weighted tokens."""
        return scaled(super().captions(weights, inputs), inputs.get("token_weights"))
