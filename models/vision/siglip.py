"""SigLIP's vision encoder: an image → features of its patches.

Source: Zhai et al. 2023 (SigLIP), section 3, after Dosovitskiy et al. 2020 (ViT); transformers'
SiglipVisionModel for the conventions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from models.nn.attention.attention import Attention, default_attention
from models.nn.layers.parameterised import conv, embed
from models.nn.layers.scanned import scan, stack
from models.text.clip_encoder import ClipBlock, check_tower, layer_renames, tower_norm
from models.text.config import check_numbers, known_fields


@dataclass(frozen=True)
class SiglipVisionConfig:
    """Contents of a SigLIP's `image_encoder/config.json`; the defaults are those of transformers.

    Raises:
        ValueError: an invalid value, by name.
    """

    hidden_size: int = 768
    intermediate_size: int = 3072
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    num_channels: int = 3
    image_size: int = 224
    """Side of the image, in pixels."""
    patch_size: int = 16
    hidden_act: str = "gelu_pytorch_tanh"
    layer_norm_eps: float = 1e-6

    def __post_init__(self) -> None:
        check_numbers("SigLIP vision", self)
        check_tower(self, "SigLIP")
        if self.patch_size > self.image_size:
            raise ValueError(
                f"SigLIP vision patch_size {self.patch_size} is larger than the image_size "
                f"{self.image_size}"
            )

    @property
    def tokens(self) -> int:
        """Number of complete patches; the rest of the image is ignored."""
        return (self.image_size // self.patch_size) ** 2

    @classmethod
    def from_dict(cls, config: Mapping[str, Any]) -> SiglipVisionConfig:
        """Read a parsed `config.json` of the vision encoder or of a complete SigLIP.

        Ignores keys that do not shape the network.
        """
        return cls(**known_fields(cls, config.get("vision_config", config)))


class SiglipVisionModel(nnx.Module):
    """SigLIP's vision encoder: patches, a pre-norm transformer, and a final norm."""

    def __init__(
        self,
        config: SiglipVisionConfig,
        *,
        rngs: nnx.Rngs,
        param_dtype: DTypeLike = jnp.float32,
        attention: Attention = default_attention,
    ) -> None:
        self.config = config
        width, patch = config.hidden_size, (config.patch_size, config.patch_size)
        kinds: dict[str, Any] = {"rngs": rngs, "param_dtype": param_dtype}
        self.patch_embedding = conv(
            config.num_channels, width, patch, strides=patch, use_bias=True, **kinds
        )
        self.position_embedding = embed(config.tokens, width, (None, "embed"), **kinds)
        self.blocks = stack(
            partial(ClipBlock, config, attention), config.num_hidden_layers, **kinds
        )
        self.norm_out = tower_norm(config, **kinds)

    def __call__(
        self, pixels: Float[Array, "batch height width channels"]
    ) -> Float[Array, "batch tokens hidden"]:
        """Return the normalized hidden state of the last layer.

        Args:
            pixels: from `models.vision.preprocess`, in the network's image size.

        Raises: ValueError: another size.
        """
        side = self.config.image_size
        if pixels.shape[1:3] != (side, side):
            height, width = pixels.shape[1:3]
            raise ValueError(f"pixels are {width} x {height}, but this SigLIP sees {side} x {side}")
        patches = self.patch_embedding(pixels.astype(self.patch_embedding.kernel.dtype))
        patches = patches.reshape(len(pixels), self.config.tokens, self.config.hidden_size)
        x = patches + self.position_embedding.embedding[...]
        x, _ = scan(self.blocks, x, lambda block, x: block(x))
        normed: Array = self.norm_out(x)
        return normed


_PREFIX = r"(?:vision_model\.)?"

RENAMES: tuple[tuple[str, str], ...] = (
    (rf"{_PREFIX}embeddings\.position_ids", ""),
    (rf"{_PREFIX}embeddings\.patch_embedding\.weight", "patch_embedding.kernel"),
    (rf"{_PREFIX}embeddings\.patch_embedding\.bias", "patch_embedding.bias"),
    (rf"{_PREFIX}embeddings\.position_embedding\.weight", "position_embedding.embedding"),
    *layer_renames(_PREFIX),
    (rf"{_PREFIX}post_layernorm\.weight", "norm_out.scale"),
    (rf"{_PREFIX}post_layernorm\.bias", "norm_out.bias"),
    # The pooling head, the text encoder and the logit parameters are unused.
    (rf"{_PREFIX}head\..*", ""),
    (r"text_model\..*", ""),
    (r"logit_(?:scale|bias)", ""),
)
"""Checkpoint key → path, for files of the vision encoder alone and of a complete SigLIP."""
