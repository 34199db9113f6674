"""Image autoencoder of the demo, shared by SDXL and Flux."""

from __future__ import annotations

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from lab.demo.training.checkpoint import restore, save
from lab.demo.training.train_vae import Normed, statistics
from lab.demo.world.scenes import draw, random_scene
from models.vae.config import VaeConfig
from models.vae.image import AutoencoderKL

CONFIG = VaeConfig(
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
BATCH = 8
PAIRS_SHARE = 0.4
STATISTICS_BATCHES = 64
LOG_VARIANCE = 2 * np.log(0.1)
FINISHED = "vae_finished.safetensors"


class ImageAutoencoder:
    """Training of the image autoencoder. Normalization becomes quant_conv, unused in training."""

    peak_rate = 2e-3

    def untrained(self, seed: int) -> AutoencoderKL:
        """Return an image autoencoder with random weights."""
        return AutoencoderKL(CONFIG, rngs=nnx.Rngs(seed))

    def noise(self, progress: float) -> float:
        """Return the noise level: high while the latents take shape, then lower."""
        return 0.5 if progress < 0.6 else 0.2

    def batch(self, step: int, progress: float) -> np.ndarray:
        """Return a training batch of drawn scenes, float32 in [-1, 1]."""
        rng = np.random.default_rng([17, step])
        images = [draw(random_scene(rng, PAIRS_SHARE), rng) for _ in range(BATCH)]
        return np.stack(images).astype(np.float32) / 127.5 - 1

    def moments(self, model: AutoencoderKL, pixels: jax.Array) -> jax.Array:
        """Return the mean of the encoder's posterior."""
        return jnp.split(model.encoder(pixels), 2, axis=-1)[0]

    def pixels(self, model: AutoencoderKL, normed: Normed) -> jax.Array:
        """Decode normalized latents to images."""
        return model.decoder(normed.latents)

    def weights(self, pixels: jax.Array) -> jax.Array:
        """Return equal loss weights for all pixels."""
        return jnp.ones_like(pixels[..., :1])

    def finish(self, model: AutoencoderKL, run: Path) -> None:
        """Write the trained weights, with the normalization of their latents."""
        mean, deviation = statistics(self, model, STATISTICS_BATCHES)
        save(run / FINISHED, nnx.state(with_norm(model, mean, deviation)))


def with_norm(model: AutoencoderKL, mean: np.ndarray, deviation: np.ndarray) -> AutoencoderKL:
    """Set quant_conv so that latents have mean 0 and standard deviation 1 by channel."""
    channels = len(mean)
    kernel = np.zeros((1, 1, 2 * channels, 2 * channels), np.float32)
    kernel[0, 0, range(channels), range(channels)] = 1 / deviation
    bias = np.concatenate([-mean / deviation, np.full(channels, LOG_VARIANCE)])
    norm = {"kernel": jnp.asarray(kernel), "bias": jnp.asarray(bias, jnp.float32)}
    nnx.update(model.quant_conv, norm)
    return model


def trained(run: Path) -> AutoencoderKL:
    """Load the finished image autoencoder of a run."""
    graph, parameters = nnx.split(ImageAutoencoder().untrained(0))
    return nnx.merge(graph, restore(run / FINISHED, parameters))
