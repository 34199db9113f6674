"""Wan of the demo: a small transformer on the latents of videos of 17 frames, 64 px a side.

Source: Wan Team 2025; Lipman et al. 2023 (flow matching); Esser et al. 2024, section 3.1, for the
shift.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from lab.demo.training.checkpoint_folder import (
    Checkpoint,
    SavedNetwork,
    diffusers_config,
    gated,
    t5_config,
)
from lab.demo.training.moving import VideoSubject
from lab.demo.training.recipe import Subject, Text, Tokens
from lab.demo.training.train import shifted, spread
from lab.demo.training.video_vae import CONFIG as VAE
from lab.demo.training.weights import embeddings_as_large, scaled, zeroed
from lab.demo.world.motion import FRAMES, FRAMES_PER_SECOND, SIZE_PX
from lab.demo.world.tokenizers import CLIPS_T5_VOCABULARY, T5_LENGTH, clip_words, write_t5
from models.sampling import registry
from models.text import umt5
from models.text.tokenizer import T5Tokenizer
from models.text.umt5 import UMT5Config, UMT5Encoder
from models.vae import video_key_mapping
from models.vae.video import VideoAutoencoder
from models.wan import key_mapping as wan_weights
from models.wan.config import WanConfig
from models.wan.network import WanTransformer
from models.wan.prompts import prompt_embeds

SHIFT = 3.0
"""Shift of the sigmas towards the noise levels that decide the layout."""
PADDING = 0

T5 = UMT5Config(
    vocab_size=CLIPS_T5_VOCABULARY,
    d_model=128,
    d_kv=32,
    d_ff=256,
    num_layers=2,
    num_heads=4,
    relative_attention_num_buckets=16,
    relative_attention_max_distance=16,
)
WAN = WanConfig(
    # 9 x 8 x 8 latents make 48 tokens.
    patch_size=(3, 2, 2),
    num_attention_heads=5,
    attention_head_dim=32,
    in_channels=VAE.z_dim,
    out_channels=VAE.z_dim,
    text_dim=T5.d_model,
    freq_dim=64,
    ffn_dim=480,
    num_layers=6,
)
SCHEDULER = {
    "_class_name": "UniPCMultistepScheduler",
    "num_train_timesteps": 1000,
    "prediction_type": "flow_prediction",
    "use_flow_sigmas": True,
    "flow_shift": SHIFT,
}
MODEL_INDEX = {
    "_class_name": "WanPipeline",
    "scheduler": ["diffusers", "UniPCMultistepScheduler"],
    "text_encoder": ["transformers", "UMT5EncoderModel"],
    "tokenizer": ["transformers", "T5TokenizerFast"],
    "transformer": ["diffusers", "WanTransformer3DModel"],
    "vae": ["diffusers", "AutoencoderKLWan"],
    "transformer_2": [None, None],
    "boundary_ratio": None,
    "expand_timesteps": False,
}
UPSAMPLER = tuple(
    (rf"(decoder\.up_blocks\.\d+)\.upsampler\.{source}", rf"\1.resample.{target}")
    for source, target in (
        (r"resample\.1\.weight", "resample.kernel"),
        (r"resample\.1\.bias", "resample.bias"),
        (r"time_conv\.weight", "time_conv.kernel"),
        (r"time_conv\.bias", "time_conv.bias"),
    )
)
VAE_RENAMES = (*UPSAMPLER, *video_key_mapping.RENAMES)
"""Renames that prefer 2.2's decoder names; the shared table has alternatives."""
VAE_WINDOWS = (
    (r".*(quant_conv|conv_shortcut)\.weight", 3),
    (r".*attentions\.0\.(to_qkv|proj)\.weight", 2),
)


class WanSizes(NamedTuple):
    """Configs of the demo's Wan and its text encoder."""

    t5: UMT5Config = T5
    wan: WanConfig = WAN


DEMO = WanSizes()


class WanDenoiser(nnx.Module):
    """Text encoder and transformer of the demo's Wan.

    Implements `lab.demo.training.recipe.Denoiser`.
    """

    def __init__(self, sizes: WanSizes, *, rngs: nnx.Rngs) -> None:
        self.t5 = UMT5Encoder(sizes.t5, rngs=rngs)
        self.transformer = WanTransformer(sizes.wan, rngs=rngs)

    def read(self, tokens: Tokens) -> Text:
        """Encode the prompts with UMT5."""
        return prompt_embeds(self.t5, tokens["t5"], tokens["t5"] != PADDING)

    def predict(
        self, latents: Float[Array, "batch f h w c"], timestep: Float[Array, " batch"], text: Text
    ) -> Float[Array, "batch f h w c"]:
        """Return the velocity for noisy video latents at a timestep."""
        return self.transformer(latents, timestep, text)

    def loss(
        self, latents: Float[Array, "batch f h w c"], text: Text, key: jax.Array
    ) -> Float[Array, ""]:
        """Return the mean squared velocity error, at sigmas spread over the batch."""
        noise_key, time_key = jax.random.split(key)
        noise = jax.random.normal(noise_key, latents.shape)
        sigma = shifted(spread(time_key, len(latents)), SHIFT)
        noisy = latents + sigma[:, None, None, None, None] * (noise - latents)
        return jnp.square(self.predict(noisy, 1000 * sigma, text) - (noise - latents)).mean()


class Wan:
    """Training recipe of the demo's Wan; implements `lab.demo.training.recipe.Recipe`."""

    name = "wan"
    subject: Subject = VideoSubject()
    scheduler = registry.from_config(SCHEDULER)
    steps = 16
    guidance = 2.0
    batch = 16
    latents_shape: tuple[int, ...] = (
        (FRAMES - 1) // VAE.scale_factor_temporal + 1,
        SIZE_PX // VAE.scale_factor_spatial,
        SIZE_PX // VAE.scale_factor_spatial,
        VAE.z_dim,
    )

    def __init__(self, sizes: WanSizes = DEMO) -> None:
        self.sizes = sizes

    def untrained(self, seed: int) -> WanDenoiser:
        """Return initial weights: no modulation by time, and the output is zero."""
        model = WanDenoiser(self.sizes, rngs=nnx.Rngs(seed))
        embeddings_as_large(model, 0.5)
        scaled(
            model,
            self.sizes.t5.d_kv**-0.5,
            lambda path: path[0] == "t5" and path[-2:] == ("q", "kernel"),
        )
        zeroed(model, lambda path: path[1] in ("time_modulation", "patches_out"))
        return model

    def write_tokenizers(self, folder: Path) -> None:
        """Write the files of the T5 tokenizer."""
        write_t5(folder / "tokenizer", clip_words())

    def tokenizers(self, folder: Path) -> Mapping[str, T5Tokenizer]:
        """Return the tokenizer by the name of its input."""
        return {"t5": T5Tokenizer(folder / "tokenizer")}

    def checkpoint(self, model: WanDenoiser, vae: VideoAutoencoder) -> Checkpoint:
        """Return the trained Wan in diffusers' layout."""
        return Checkpoint(
            model_index=MODEL_INDEX,
            scheduler=SCHEDULER,
            defaults={
                "num_inference_steps": self.steps,
                "guidance_scale": self.guidance,
                "negative_prompt": "",
                "max_sequence_length": T5_LENGTH,
                "width": SIZE_PX,
                "height": SIZE_PX,
                "num_frames": FRAMES,
                "fps": FRAMES_PER_SECOND,
            },
            parts={
                "transformer": SavedNetwork(
                    model.transformer,
                    wan_weights.RENAMES,
                    diffusers_config("WanTransformer3DModel", model.transformer.config),
                ),
                "vae": SavedNetwork(
                    vae,
                    VAE_RENAMES,
                    diffusers_config("AutoencoderKLWan", vae.config),
                    VAE_WINDOWS,
                ),
                "text_encoder": SavedNetwork(
                    model.t5,
                    gated(umt5.RENAMES),
                    t5_config("UMT5EncoderModel", "umt5", model.t5.config),
                ),
            },
            write_tokenizers=self.write_tokenizers,
        )
