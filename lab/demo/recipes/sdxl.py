"""SDXL of the demo: a small v-prediction UNet on the latents of 96 px images.

Source: Podell et al. 2023 (SDXL); Salimans and Ho 2022 for v; Lin et al. 2024 for zero-terminal SNR
and trailing timesteps, without which images keep residual grey.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from lab.demo.training.checkpoint_folder import (
    Checkpoint,
    SavedNetwork,
    clip_config,
    diffusers_config,
)
from lab.demo.training.image_vae import CONFIG as VAE
from lab.demo.training.images import ImageSubject
from lab.demo.training.recipe import Subject, Text, Tokens
from lab.demo.training.train import shifted, spread
from lab.demo.training.weights import embeddings_as_large, zeroed
from lab.demo.world.scenes import SIZE_PX
from lab.demo.world.tokenizers import CLIP_LENGTH, CLIP_VOCABULARY, write_clip
from models.sampling.base import Scheduler
from models.sampling.ddim import DDIM
from models.sdxl import key_mapping as unet_weights
from models.sdxl.config import UNetConfig
from models.sdxl.network import UNet
from models.text import clip as clip_text
from models.text.clip import ClipConfig, ClipTextModel, ClipTextModelWithProjection
from models.text.tokenizer import ClipTokenizer
from models.vae import key_mapping as vae_weights
from models.vae.image import AutoencoderKL

SHIFT = 2.0
"""Shift of the training times towards the noise levels that decide the layout."""
SIZE_FEATURES = 16
SIZES = 6
"""Numbers in the time ids: original size, crop and target size."""

CLIP = ClipConfig(
    vocab_size=CLIP_VOCABULARY,
    hidden_size=64,
    intermediate_size=256,
    projection_dim=64,
    # The UNet uses the penultimate layer.
    num_hidden_layers=3,
    num_attention_heads=2,
    max_position_embeddings=CLIP_LENGTH,
    eos_token_id=CLIP_VOCABULARY - 1,
)
CLIP_2 = dataclasses.replace(
    CLIP, hidden_size=128, num_attention_heads=4, projection_dim=64, hidden_act="gelu"
)
SIDE = SIZE_PX // VAE.downsampling
"""Latents along a side of a demo image."""
UNET = UNetConfig(
    sample_size=SIDE,
    in_channels=VAE.latent_channels,
    out_channels=VAE.latent_channels,
    down_block_types=("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
    up_block_types=("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
    block_out_channels=(64, 128, 128),
    layers_per_block=1,
    norm_num_groups=8,
    cross_attention_dim=CLIP.hidden_size + CLIP_2.hidden_size,
    attention_head_dim=(2, 4, 4),
    use_linear_projection=True,
    addition_embed_type="text_time",
    addition_time_embed_dim=SIZE_FEATURES,
    projection_class_embeddings_input_dim=SIZES * SIZE_FEATURES + CLIP_2.projection_dim,
)
SCHEDULE = DDIM(
    num_train_timesteps=1000,
    beta_start=0.00085,
    beta_end=0.012,
    beta_schedule="scaled_linear",
    prediction_type="v_prediction",
    rescale_betas_zero_snr=True,
    timestep_spacing="trailing",
    clip_sample=False,
    set_alpha_to_one=True,
)
SCHEDULER = {
    "_class_name": "DDIMScheduler",
    "num_train_timesteps": SCHEDULE.num_train_timesteps,
    "beta_start": SCHEDULE.beta_start,
    "beta_end": SCHEDULE.beta_end,
    "beta_schedule": SCHEDULE.beta_schedule,
    "prediction_type": SCHEDULE.prediction_type,
    "rescale_betas_zero_snr": SCHEDULE.rescale_betas_zero_snr,
    "timestep_spacing": SCHEDULE.timestep_spacing,
    "clip_sample": SCHEDULE.clip_sample,
    "set_alpha_to_one": SCHEDULE.set_alpha_to_one,
}
MODEL_INDEX = {
    "_class_name": "StableDiffusionXLPipeline",
    "force_zeros_for_empty_prompt": False,
    "scheduler": ["diffusers", "DDIMScheduler"],
    "text_encoder": ["transformers", "CLIPTextModel"],
    "text_encoder_2": ["transformers", "CLIPTextModelWithProjection"],
    "tokenizer": ["transformers", "CLIPTokenizer"],
    "tokenizer_2": ["transformers", "CLIPTokenizer"],
    "unet": ["diffusers", "UNet2DConditionModel"],
    "vae": ["diffusers", "AutoencoderKL"],
    "feature_extractor": [None, None],
    "image_encoder": [None, None],
}
ALPHAS_CUMPROD = SCHEDULE.alphas_cumprod()


class SdxlSizes(NamedTuple):
    """Configs of the demo's UNet and its two text encoders."""

    clip: ClipConfig = CLIP
    clip_2: ClipConfig = CLIP_2
    unet: UNetConfig = UNET


DEMO = SdxlSizes()


class SdxlDenoiser(nnx.Module):
    """Text encoders and UNet of the demo's SDXL.

    Implements `lab.demo.training.recipe.Denoiser`.
    """

    def __init__(self, sizes: SdxlSizes, *, rngs: nnx.Rngs) -> None:
        self.clip = ClipTextModel(sizes.clip, rngs=rngs)
        self.clip_2 = ClipTextModelWithProjection(sizes.clip_2, rngs=rngs)
        self.unet = UNet(sizes.unet, rngs=rngs)

    def read(self, tokens: Tokens) -> Text:
        """Encode the prompts with both CLIP encoders."""
        first, second = self.clip(tokens["clip"]), self.clip_2(tokens["clip_2"])
        embeds = [output.hidden_states[-2] for output in (first, second)]
        return jnp.concatenate(embeds, axis=-1), second.pooled

    def predict(
        self, latents: Float[Array, "batch h w c"], timestep: Float[Array, " batch"], text: Text
    ) -> Float[Array, "batch h w c"]:
        """Return the UNet's output for noisy latents at a timestep."""
        return self.unet(*self.conditions(latents, timestep, text))

    def conditions(
        self, latents: Float[Array, "batch h w c"], timestep: Float[Array, " batch"], text: Text
    ) -> tuple[Array, Array, Array, Array, Array]:
        """Return the arguments of the UNet, which its ControlNets share."""
        prompt_embeds, pooled = text
        side = jnp.float32(SIZE_PX)
        time_ids = jnp.array([side, side, 0, 0, side, side])
        time_ids = jnp.broadcast_to(time_ids, (len(latents), SIZES))
        return latents, timestep, prompt_embeds, pooled, time_ids

    def loss(
        self, latents: Float[Array, "batch h w c"], text: Text, key: jax.Array
    ) -> Float[Array, ""]:
        """Return the v-prediction loss of `predict`."""
        return self.error_of(self.predict, latents, text, key)

    def error_of(
        self,
        predict: Callable[..., Array],
        latents: Float[Array, "batch h w c"],
        text: Any,
        key: jax.Array,
    ) -> Float[Array, ""]:
        """Return the mean squared error of v = alpha noise - sigma latents.

        Times are spread over the batch.
        """
        noise_key, time_key = jax.random.split(key)
        noise = jax.random.normal(noise_key, latents.shape)
        steps = len(ALPHAS_CUMPROD)
        time = jnp.floor(steps * shifted(spread(time_key, len(latents)), SHIFT))
        time = jnp.minimum(time, steps - 1)
        clean_share = jnp.array(ALPHAS_CUMPROD)[time.astype(jnp.int32), None, None, None]
        alpha, sigma = jnp.sqrt(clean_share), jnp.sqrt(1 - clean_share)
        output = predict(alpha * latents + sigma * noise, time, text)
        return jnp.square(output - (alpha * noise - sigma * latents)).mean()


class Sdxl:
    """Training recipe of the demo's SDXL; implements `lab.demo.training.recipe.Recipe`."""

    name = "sdxl"
    subject: Subject = ImageSubject()
    scheduler: Scheduler = SCHEDULE
    steps = 28
    guidance = 3.5
    batch = 32
    latents_shape: tuple[int, ...] = (SIDE, SIDE, UNET.in_channels)

    def __init__(self, sizes: SdxlSizes = DEMO) -> None:
        self.sizes = sizes

    def untrained(self, seed: int) -> SdxlDenoiser:
        """Return initial weights: residual branches and the output are zero."""
        model = SdxlDenoiser(self.sizes, rngs=nnx.Rngs(seed))
        embeddings_as_large(model, 0.5)
        zeroed(model, lambda path: path[-2] in ("conv_out", "conv2", "proj_out"))
        return model

    def write_tokenizers(self, folder: Path) -> None:
        """Write the files of both tokenizers."""
        write_clip(folder / "tokenizer")
        write_clip(folder / "tokenizer_2", pad="!")

    def tokenizers(self, folder: Path) -> Mapping[str, ClipTokenizer]:
        """Return the tokenizers by the names of their inputs."""
        return {
            "clip": ClipTokenizer(folder / "tokenizer"),
            "clip_2": ClipTokenizer(folder / "tokenizer_2"),
        }

    def checkpoint(self, model: SdxlDenoiser, vae: AutoencoderKL) -> Checkpoint:
        """Return the trained SDXL in diffusers' layout."""
        vae_values = diffusers_config("AutoencoderKL", vae.config)
        del vae_values["shift_factor"]
        towers = "CLIPTextModel", "CLIPTextModelWithProjection"
        return Checkpoint(
            model_index=MODEL_INDEX,
            scheduler=SCHEDULER,
            defaults={
                "num_inference_steps": self.steps,
                "guidance_scale": self.guidance,
                "negative_prompt": "",
                "width": SIZE_PX,
                "height": SIZE_PX,
            },
            parts={
                "unet": SavedNetwork(
                    model.unet,
                    unet_weights.RENAMES,
                    diffusers_config("UNet2DConditionModel", model.unet.config),
                ),
                "vae": SavedNetwork(vae, vae_weights.RENAMES, vae_values),
                "text_encoder": SavedNetwork(
                    model.clip, clip_text.RENAMES, clip_config(towers[0], model.clip.config)
                ),
                "text_encoder_2": SavedNetwork(
                    model.clip_2, clip_text.RENAMES, clip_config(towers[1], model.clip_2.config)
                ),
            },
            write_tokenizers=self.write_tokenizers,
        )
