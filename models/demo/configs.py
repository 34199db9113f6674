"""The demo's sizes: small values of the real configs."""

from __future__ import annotations

from typing import NamedTuple

from models.demo.tokenizers import CLIP_LENGTH
from models.flux.config import FluxConfig
from models.text.clip import ClipConfig
from models.text.t5 import T5Config
from models.vae.config import VaeConfig

VAE = VaeConfig(
    down_block_types=("DownEncoderBlock2D",) * 4,
    up_block_types=("UpDecoderBlock2D",) * 4,
    block_out_channels=(8, 16, 32, 64),
    layers_per_block=1,
    latent_channels=4,
    norm_num_groups=1,
    sample_size=96,
    scaling_factor=1.0,
    shift_factor=0.0,
    force_upcast=False,
    use_quant_conv=True,
    use_post_quant_conv=False,
)

CLIP_VOCABULARY, T5_VOCABULARY = 596, 124
"""What `tokenizers.write_clip` and `write_t5` give; a test holds them together."""

CLIP = ClipConfig(
    vocab_size=CLIP_VOCABULARY,
    hidden_size=128,
    intermediate_size=256,
    projection_dim=128,
    num_hidden_layers=2,
    num_attention_heads=4,
    max_position_embeddings=CLIP_LENGTH,
    eos_token_id=CLIP_VOCABULARY - 1,
)

T5 = T5Config(
    vocab_size=T5_VOCABULARY,
    d_model=128,
    d_kv=32,
    d_ff=256,
    num_layers=2,
    num_heads=4,
    relative_attention_num_buckets=16,
    relative_attention_max_distance=16,
    feed_forward_proj="gated-gelu",
)

FLUX = FluxConfig(
    in_channels=4 * VAE.latent_channels,
    num_layers=2,
    num_single_layers=6,
    attention_head_dim=32,
    num_attention_heads=4,
    joint_attention_dim=T5.d_model,
    pooled_projection_dim=CLIP.hidden_size,
    guidance_embeds=False,
    axes_dims_rope=(8, 12, 12),
)


class Sizes(NamedTuple):
    """Of the three networks that are trained together."""

    clip: ClipConfig
    t5: T5Config
    flux: FluxConfig


DEMO = Sizes(CLIP, T5, FLUX)


SHIFT = 3.0
"""Of the sigmas, in training and in sampling: more of them where the layout is decided."""
STEPS = 16
"""Denoising steps that the demo takes unless told otherwise."""
TRUE_CFG_SCALE = 2.0
"""Guidance away from the empty prompt, likewise: shapes come out right more often with it."""
