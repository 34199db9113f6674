"""Flux of the demo: a small transformer on the packed latents of 96 px images.

Source: Lipman et al. 2023 (flow matching); Esser et al. 2024, section 3.1, for the shift.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float

from lab.demo.training.checkpoint_folder import (
    Checkpoint,
    SavedNetwork,
    clip_config,
    diffusers_config,
    gated,
    t5_config,
)
from lab.demo.training.image_vae import CONFIG as VAE
from lab.demo.training.images import ImageSubject
from lab.demo.training.recipe import Subject, Text, Tokens
from lab.demo.training.train import shifted, spread
from lab.demo.training.weights import embeddings_as_large, scaled, zeroed
from lab.demo.world.scenes import SIZE_PX
from lab.demo.world.tokenizers import (
    CLIP_LENGTH,
    CLIP_VOCABULARY,
    T5_LENGTH,
    T5_VOCABULARY,
    words,
    write_clip,
    write_t5,
)
from models.flux import key_mapping as flux_weights
from models.flux.config import FluxConfig
from models.flux.latents import image_ids
from models.flux.network import FluxTransformer
from models.sampling import registry
from models.text import clip as clip_text
from models.text import t5 as t5_text
from models.text.clip import ClipConfig, ClipTextModel
from models.text.t5 import T5Config, T5Encoder
from models.text.tokenizer import ClipTokenizer, T5Tokenizer, Tokenizer
from models.vae import key_mapping as vae_weights
from models.vae.image import AutoencoderKL
from models.vae.patches import pack, unpack

SHIFT = 3.0
"""Shift of the sigmas towards the noise levels that decide the layout."""
SIDE = SIZE_PX // VAE.downsampling
"""Latents along a side of a demo image."""
IMAGE_IDS = image_ids(SIDE, SIDE)
TEXT_IDS = np.zeros((T5_LENGTH, 3), int)

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
SCHEDULER = {
    "_class_name": "FlowMatchEulerDiscreteScheduler",
    "num_train_timesteps": 1000,
    "shift": SHIFT,
    "use_dynamic_shifting": False,
}
MODEL_INDEX = {
    "_class_name": "FluxPipeline",
    "scheduler": ["diffusers", "FlowMatchEulerDiscreteScheduler"],
    "text_encoder": ["transformers", "CLIPTextModel"],
    "text_encoder_2": ["transformers", "T5EncoderModel"],
    "tokenizer": ["transformers", "CLIPTokenizer"],
    "tokenizer_2": ["transformers", "T5TokenizerFast"],
    "transformer": ["diffusers", "FluxTransformer2DModel"],
    "vae": ["diffusers", "AutoencoderKL"],
    "feature_extractor": [None, None],
    "image_encoder": [None, None],
}


class FluxSizes(NamedTuple):
    """Configs of the demo's Flux and its two text encoders."""

    clip: ClipConfig = CLIP
    t5: T5Config = T5
    flux: FluxConfig = FLUX


DEMO = FluxSizes()


class FluxDenoiser(nnx.Module):
    """Text encoders and transformer of the demo's Flux.

    Implements `lab.demo.training.recipe.Denoiser`.
    """

    def __init__(self, sizes: FluxSizes, *, rngs: nnx.Rngs) -> None:
        self.clip = ClipTextModel(sizes.clip, rngs=rngs)
        self.t5 = T5Encoder(sizes.t5, rngs=rngs)
        self.transformer = FluxTransformer(sizes.flux, rngs=rngs)

    def read(self, tokens: Tokens) -> Text:
        """Encode the prompts with CLIP and T5."""
        return self.t5(tokens["t5"]), self.clip(tokens["clip"]).pooled

    def predict(
        self, latents: Float[Array, "batch h w c"], timestep: Float[Array, " batch"], text: Text
    ) -> Float[Array, "batch h w c"]:
        """Return the velocity for noisy latents at a timestep."""
        return self.velocity(jax.vmap(pack)(latents), IMAGE_IDS, timestep, text)

    def velocity(
        self,
        tokens: Float[Array, "batch tokens channels"],
        ids: np.ndarray,
        timestep: Float[Array, " batch"],
        text: Text,
    ) -> Float[Array, "batch h w c"]:
        """Return the velocity of the latents, which are the first tokens."""
        prompt_embeds, pooled = text
        velocity = self.transformer(tokens, prompt_embeds, pooled, timestep, None, ids, TEXT_IDS)
        of_latents = velocity[:, : len(IMAGE_IDS)]
        return jax.vmap(lambda tokens: unpack(tokens, SIDE, SIDE))(of_latents)

    def loss(
        self, latents: Float[Array, "batch h w c"], text: Text, key: jax.Array
    ) -> Float[Array, ""]:
        """Return the mean squared velocity error, at sigmas spread over the batch."""
        noise_key, time_key = jax.random.split(key)
        noise = jax.random.normal(noise_key, latents.shape)
        sigma = shifted(spread(time_key, len(latents)), SHIFT)
        noisy = latents + sigma[:, None, None, None] * (noise - latents)
        return jnp.square(self.predict(noisy, 1000 * sigma, text) - (noise - latents)).mean()


class Flux:
    """Training recipe of the demo's Flux; implements `lab.demo.training.recipe.Recipe`."""

    name = "flux"
    subject: Subject = ImageSubject()
    scheduler = registry.from_config(SCHEDULER)
    steps = 16
    guidance = 2.0
    """Scale of classifier-free guidance with an empty negative prompt; it improves the accuracy of
    shapes."""
    batch = 32
    latents_shape: tuple[int, ...] = (SIDE, SIDE, VAE.latent_channels)

    def __init__(self, sizes: FluxSizes = DEMO) -> None:
        self.sizes = sizes

    def untrained(self, seed: int) -> FluxDenoiser:
        """Return initial weights: blocks are identities, and the output is zero."""
        model = FluxDenoiser(self.sizes, rngs=nnx.Rngs(seed))
        embeddings_as_large(model, 0.5)
        scaled(
            model,
            self.sizes.t5.d_kv**-0.5,
            lambda path: path[0] == "t5" and path[-2:] == ("q", "kernel"),
        )
        zeroed(
            model,
            lambda path: "latents_out" in path or any("modulation" in name for name in path),
        )
        return model

    def write_tokenizers(self, folder: Path) -> None:
        """Write the files of both tokenizers."""
        write_clip(folder / "tokenizer")
        write_t5(folder / "tokenizer_2", words())

    def tokenizers(self, folder: Path) -> Mapping[str, Tokenizer]:
        """Return the tokenizers by the names of their inputs."""
        return {
            "clip": ClipTokenizer(folder / "tokenizer"),
            "t5": T5Tokenizer(folder / "tokenizer_2"),
        }

    def checkpoint(self, model: FluxDenoiser, vae: AutoencoderKL) -> Checkpoint:
        """Return the trained Flux in diffusers' layout."""
        return Checkpoint(
            model_index=MODEL_INDEX,
            scheduler=SCHEDULER,
            defaults={
                "num_inference_steps": self.steps,
                "max_sequence_length": T5_LENGTH,
                "width": SIZE_PX,
                "height": SIZE_PX,
                "true_cfg_scale": self.guidance,
                "negative_prompt": "",
            },
            parts={
                "transformer": SavedNetwork(
                    model.transformer,
                    flux_weights.RENAMES,
                    diffusers_config("FluxTransformer2DModel", model.transformer.config),
                ),
                "vae": SavedNetwork(
                    vae, vae_weights.RENAMES, diffusers_config("AutoencoderKL", vae.config)
                ),
                "text_encoder": SavedNetwork(
                    model.clip,
                    clip_text.RENAMES,
                    clip_config("CLIPTextModel", model.clip.config),
                ),
                "text_encoder_2": SavedNetwork(
                    model.t5,
                    gated(t5_text.RENAMES),
                    t5_config("T5EncoderModel", "t5", model.t5.config),
                ),
            },
            write_tokenizers=self.write_tokenizers,
            reference_px=SIZE_PX,
        )
