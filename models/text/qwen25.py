"""Language model of Qwen2.5-VL as an encoder of texts that may contain images.

Source: Bai et al. 2025 (Qwen2.5-VL), section 2; transformers' Qwen2_5_VLTextModel.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from models.text.config import check_numbers, known_fields, rope_theta
from models.text.qwen import Decoder, RotaryTable, rotary_table
from models.text.qwen_encoder import QwenEncoder, layers_to, renames_up_to

POSITIONS = ("default", "mrope")
"""Supported values of `rope_type`; mrope has three numbers per token, which are equal in a text."""


@dataclass(frozen=True)
class Qwen25Config:
    """Config of a Qwen2.5-VL (`text_encoder/config.json`), with transformers' defaults.

    Raises:
        ValueError: a value that the network cannot have, by name.
    """

    vocab_size: int = 152064
    hidden_size: int = 8192
    intermediate_size: int = 29568
    num_hidden_layers: int = 80
    num_attention_heads: int = 64
    num_key_value_heads: int = 8
    rms_norm_eps: float = 1e-5
    rope_theta: float = 1_000_000.0
    hidden_act: str = "silu"
    mrope_section: tuple[int, ...] = ()
    """Pairs of a head that each of a token's three positions rotates; empty: no images."""

    def __post_init__(self) -> None:
        check_numbers("Qwen2.5", self)
        if self.hidden_act != "silu":
            raise ValueError(f"Qwen2.5 hidden_act must be silu, not {self.hidden_act!r}")
        if self.hidden_size % self.num_attention_heads:
            raise ValueError(
                f"Qwen2.5 hidden_size {self.hidden_size} must be a multiple of "
                f"num_attention_heads {self.num_attention_heads}"
            )
        _ = self.decoder  # checks the heads

    @property
    def decoder(self) -> Decoder:
        """Dimensions of the encoder's transformer layers."""
        return Decoder(
            self.hidden_size,
            self.intermediate_size,
            self.num_attention_heads,
            self.num_key_value_heads,
            self.hidden_size // self.num_attention_heads,
            self.rms_norm_eps,
            normed_heads=False,
            biased_inputs=True,
        )

    @classmethod
    def from_dict(cls, config: Mapping[str, Any]) -> Qwen25Config:
        """Read a parsed `config.json`: of the language model alone, or of the whole model.

        The whole model's has the fields at top level in transformers 4, or in `text_config` in 5.
        Keys that do not shape the network are ignored.

        Raises: ValueError: scaled positions or a sliding window, which are not supported.
        """
        given = {**config, **(config.get("text_config") or {})}
        if given.get("use_sliding_window") or "sliding_attention" in (
            given.get("layer_types") or ()
        ):
            raise ValueError("Qwen2.5 use_sliding_window must be false: all layers see all tokens")
        scaling = {**(given.get("rope_scaling") or {}), **(given.get("rope_parameters") or {})}
        given["mrope_section"] = tuple(scaling.get("mrope_section", ()))
        given["rope_theta"] = rope_theta("Qwen2.5", given, cls.rope_theta, POSITIONS)
        if given.get("num_key_value_heads") is None:
            given["num_key_value_heads"] = given.get("num_attention_heads", cls.num_attention_heads)
        return cls(**known_fields(cls, given))

    def state(self, index: int) -> int:
        """Return the number of layers before a hidden state.

        Args:
            index: in transformers' `hidden_states`, negative from the end. The first state is the
                embedding, which needs no layer; the last is after all layers and the norm.

        Raises: ValueError: there is no such state.
        """
        return layers_to("Qwen2.5", index, self.num_hidden_layers)


class ImagePosition(NamedTuple):
    """Position and size of an image in a text."""

    first: int
    """Number of tokens before it."""
    grid: tuple[int, int]
    """Rows and columns of the image's tokens."""


class Qwen25Encoder(QwenEncoder):
    """Encoder from Qwen2.5's tokens to the concatenated hidden states of chosen layers."""

    def encode_with_images(
        self,
        tokens: Int[Array, "batch tokens"],
        mask: Bool[Array, "batch tokens"],
        images: Sequence[Float[Array, "_image_tokens width"]],
        places: Sequence[ImagePosition],
    ) -> Float[Array, "batch tokens features"]:
        """Encode texts that all have the same images at the same places.

        Args:
            mask: for texts that are padded on the right.
            images: features of each image, which replace the tokens at its place.
        """
        x = self.embedded(tokens)
        for image, (first, _) in zip(images, places, strict=True):
            features = jnp.broadcast_to(image.astype(x.dtype), (len(x), *image.shape))
            x = jnp.concatenate([x[:, :first], features, x[:, first + len(image) :]], axis=1)
        return self.encoded(
            x, mask, self._rotary_table(positions_with_images(tokens.shape[1], places))
        )

    def _rotary_table(self, positions: Int[np.ndarray, "3 tokens"]) -> RotaryTable:
        """Return a RoPE table in which pairs rotate by time, row or column (mrope).

        Source: Wang et al. 2024 (Qwen2-VL).
        """
        config: Qwen25Config = self.config  # type: ignore[assignment]
        every = rotary_table(positions, config.decoder.head_dim, config.rope_theta)
        ends = np.cumsum(config.mrope_section)[:-1]
        return RotaryTable(
            *(
                jnp.concatenate(
                    [of[axis] for axis, of in enumerate(jnp.split(part, ends, axis=-1))], axis=-1
                )
                for part in every
            )
        )


def positions_with_images(
    tokens: int, places: Sequence[ImagePosition]
) -> Int[np.ndarray, "3 tokens"]:
    """Return mrope positions of a text with images: a grid for each image."""
    parts, read, position = [], 0, 0
    for first, (rows, columns) in places:
        parts.append(_of_words(position, first - read))
        position += first - read
        grid = np.mgrid[:1, :rows, :columns].reshape(3, -1)
        parts.append(grid + position)
        position += max(rows, columns)
        read = first + rows * columns
    return np.concatenate([*parts, _of_words(position, tokens - read)], axis=1)


def _of_words(first: int, count: int) -> Int[np.ndarray, "3 tokens"]:
    return np.tile(np.arange(first, first + count), (3, 1))


def renames_of(config: Qwen25Config, states: tuple[int, ...]) -> tuple[tuple[str, str], ...]:
    """Return rename rules for the encoder of those states; the vision part is ignored."""
    prefix = r"(?:model\.)?(?:language_model\.)?(?:model\.)?"
    return ((r"(?:model\.)?visual\..+", ""), *renames_up_to(config, states, prefix))
