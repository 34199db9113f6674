"""Language model of Qwen3-VL as an encoder of texts that may contain images.

It is a Qwen3 whose last norm is not applied.

Source: Bai et al. 2025 (Qwen3-VL), section 2; transformers' Qwen3VLTextModel; diffusers
pipeline_qwenimage21.py for the state before the norm.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from models.checkpoint.key_mapping import Renames
from models.nn.layers.scanned import layers_of, scan
from models.text.qwen import RotaryTable, causal_bias, rotary_table
from models.text.qwen3 import Qwen3Config
from models.text.qwen25 import ImagePosition, positions_with_images
from models.text.qwen_encoder import QwenEncoder, renames_up_to

C = TypeVar("C", bound="Qwen3VLConfig")
PREFIX = r"(?:model\.)?(?:language_model\.)?(?:model\.)?"


@dataclass(frozen=True)
class Qwen3VLConfig(Qwen3Config):
    """Config of a Qwen3-VL's language model, with transformers' defaults.

    Raises:
        ValueError: a value that the network cannot have, by name.
    """

    rope_theta: float = 500_000.0
    mrope_section: tuple[int, ...] = (24, 20, 20)
    """Pairs of a head that each of a token's three positions rotates, in turns."""

    @classmethod
    def from_dict(cls: type[C], config: Mapping[str, Any]) -> C:
        """Read a parsed `config.json`: of the language model alone, or of the whole model.

        A token of a text has the same position on all three axes (mrope), as in Qwen3.

        Raises: ValueError: scaled positions or a sliding window, which are not supported.
        """
        given = {**config, **(config.get("text_config") or {})}
        scaling = {**(given.get("rope_scaling") or {}), **(given.get("rope_parameters") or {})}
        if "mrope_section" in scaling:
            given["mrope_section"] = tuple(scaling["mrope_section"])
        return super().from_dict(given)


class Qwen3VLEncoder(QwenEncoder):
    """Encoder from Qwen3-VL's tokens to hidden states; the last is before the model's norm."""

    NORMED = False

    def encode_with_images(
        self,
        tokens: Int[Array, "batch tokens"],
        mask: Bool[Array, "batch tokens"],
        places: Sequence[ImagePosition],
        images: Sequence[Float[Array, "_image_tokens width"]],
        added: Sequence[Float[Array, "layers _image_tokens width"]],
    ) -> Float[Array, "batch tokens features"]:
        """Encode texts that all have the same images at the same places.

        Args:
            mask: for texts that are padded on the right.
            images: features of each image, which replace the tokens at its place.
            added: features of each image to add to its tokens after the first layers.
        """
        x = self.embedded(tokens)
        depth, width = len(added[0]), x.shape[-1]
        extra = jnp.zeros((depth, x.shape[1], width), x.dtype)
        for image, more, (first, _) in zip(images, added, places, strict=True):
            end = first + len(image)
            x = x.at[:, first:end].set(image.astype(x.dtype))
            extra = extra.at[:, first:end].set(more.astype(x.dtype))
        rope, bias = self._rotary_table(tokens.shape[1], places), causal_bias(mask)
        layers = layers_of(self.blocks)
        x, _ = scan(
            self.blocks,
            x,
            lambda block, x, more: block(x, bias, rope) + more,
            extra,
            between=(0, depth),
        )
        return scan(self.blocks, x, lambda b, x: b(x, bias, rope), between=(depth, layers))[0]

    def _rotary_table(self, tokens: int, places: Sequence[ImagePosition]) -> RotaryTable:
        """Return a RoPE table: pairs rotate by time, row and column in turns, the last by time.

        Source: transformers' Qwen3VLTextRotaryEmbedding.
        """
        config: Qwen3VLConfig = self.config  # type: ignore[assignment]
        pairs = np.arange(config.head_dim // 2)
        in_turns = pairs < 3 * np.asarray(config.mrope_section)[pairs % 3]
        axis = np.where(in_turns, pairs % 3, 0)
        every = rotary_table(
            positions_with_images(tokens, places), config.head_dim, config.rope_theta
        )
        return RotaryTable(*(jnp.moveaxis(part, 1, 0)[:, axis, pairs] for part in every))


def renames_of(config: Qwen3VLConfig, states: tuple[int, ...], *, normed: bool = False) -> Renames:
    """Return rename rules for the encoder of those states; the vision part is ignored.

    Args:
        normed: whether the state after all layers is normed.
    """
    names = renames_up_to(config, states, PREFIX, normed=normed)
    return ((r"(?:model\.)?visual\..+", ""), *names)
