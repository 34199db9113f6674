"""Qwen-Image transformer: predicts the velocity of packed latents from a caption and time.

Image and text have separate streams. Source: Wu et al. 2025 (Qwen-Image), section 3; diffusers'
QwenImageTransformer2DModel for the parametrisation.
"""

from __future__ import annotations

import math
from functools import partial

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from models.nn.attention.attention import TokenAttention, token_attention
from models.nn.blocks.double_stream import StreamShape
from models.nn.blocks.feed_forward import GeluFeedForward
from models.nn.blocks.joint_transformer import ControlArrays, JointTransformer, Modulations
from models.nn.layers.norms import RMSNorm
from models.nn.layers.parameterised import Kinds
from models.nn.layers.row_grids import RowGrids
from models.nn.layers.step_cache import CachedStep
from models.qwenimage.config import QwenImageConfig
from models.qwenimage.latents import first_of_rows, image_ids, text_ids, text_ids_of_rows
from models.qwenimage.modulations import QwenImageConditions
from models.vae.references import Grid

THETA = 10_000.0
"""Base of the RoPE frequencies; the same in every Qwen-Image."""


def shape_of(config: QwenImageConfig) -> StreamShape:
    """Return the shape of a Qwen-Image stream: width, heads and feed-forward."""
    width = config.width
    return StreamShape(width, config.num_attention_heads, partial(GeluFeedForward, width))


class QwenImageTransformer(JointTransformer):
    """Denoising transformer of Qwen-Image: packed latents, captions and time to velocity."""

    config: QwenImageConfig

    def __init__(
        self,
        config: QwenImageConfig,
        attention: TokenAttention = token_attention,
        *,
        rngs: nnx.Rngs,
        param_dtype: DTypeLike = jnp.float32,
    ) -> None:
        shape, kinds = shape_of(config), Kinds(rngs=rngs, param_dtype=param_dtype)
        super().__init__(config, shape, attention, QwenImageConditions, theta=THETA, **kinds)
        self.text_norm = RMSNorm(config.joint_attention_dim, shape.epsilon, **kinds)

    def __call__(
        self,
        latents: Float[Array, "batch image_tokens patch"],
        captions: Float[Array, "batch text_tokens features"],
        lengths: Int[Array, " batch"],
        modulations: Modulations,
        grids: tuple[Grid, ...] | RowGrids,
        cache: CachedStep | None = None,
        control_arrays: ControlArrays | None = None,
    ) -> Float[Array, "batch image_tokens patch"]:
        """Return the velocity of the latents, in the dtype of the weights.

        Args:
            captions: features of the text encoder, padded.
            lengths: tokens of each caption, without padding.
            modulations: output of `conditions` for the timestep.
            grids: token rows and columns of each image, in token order; or those of padded rows.
            cache: state of earlier steps; may replace most blocks.
            control_arrays: residuals of ControlNets; None: the model has no ControlNets.
        """
        tokens, generated = captions.shape[1], None
        of_image: np.ndarray | RowGrids
        of_text: np.ndarray | Array
        if isinstance(grids, RowGrids):
            of_image = grids._replace(first=first_of_rows)
            of_text = text_ids_of_rows(tokens, grids.extents)
        else:
            of_image, of_text = image_ids(*grids), text_ids(tokens, grids)
            generated = math.prod(grids[0]) if self.config.zero_cond_t else None
        return self.velocity(
            latents,
            self.text_norm(captions.astype(self.text_in.kernel.dtype)),
            modulations,
            of_image,
            of_text,
            cache,
            jnp.arange(tokens) < lengths[:, None],
            generated,
            control_arrays,
        )
