"""AutoencoderKL against diffusers' own, in float32, on random weights."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from diffusers import AutoencoderKL as Reference
from flax import nnx

from models.vae.config import VaeConfig
from models.vae.image import AutoencoderKL
from models.vae.weights import RENAMES

TOLERANCE = 2e-5  # relative to the largest value: some forty float32 layers deep

VARIANTS = {
    "flux": {
        "block_out_channels": (16, 32, 32, 48),
        "layers_per_block": 2,
        "latent_channels": 16,
        "norm_num_groups": 8,
        "use_quant_conv": False,
        "use_post_quant_conv": False,
    },
    "sdxl": {
        "block_out_channels": (16, 24, 32),
        "layers_per_block": 1,
        "latent_channels": 4,
        "norm_num_groups": 4,
    },
    "one-quant": {
        "block_out_channels": (12, 24),
        "layers_per_block": 3,
        "latent_channels": 3,
        "norm_num_groups": 3,
        "use_post_quant_conv": False,
        "mid_block_add_attention": False,
    },
}


def reference(name: str) -> Reference:
    """diffusers' model with weights that let every term show: norms and biases too."""
    depth = len(VARIANTS[name]["block_out_channels"])
    torch.manual_seed(5)
    model = Reference(
        down_block_types=("DownEncoderBlock2D",) * depth,
        up_block_types=("UpDecoderBlock2D",) * depth,
        **VARIANTS[name],
    )
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * (0.3 if parameter.ndim == 1 else 0.02))
    return model.eval()


def converted(model: Reference) -> AutoencoderKL:
    ours = AutoencoderKL(VaeConfig.from_dict(model.config), rngs=nnx.Rngs(0))
    paths = {".".join(map(str, path)): leaf for path, leaf in nnx.to_flat_state(nnx.state(ours))}
    for key, value in model.state_dict().items():
        pattern, replacement = next(rule for rule in RENAMES if re.fullmatch(rule[0], key))
        leaf = paths.pop(re.sub(pattern, replacement, key))
        array = value.numpy()
        axes = {1: (0,), 2: (1, 0), 4: (2, 3, 1, 0)}[array.ndim]
        assert leaf.shape == array.transpose(axes).shape, key
        leaf[...] = jnp.asarray(array.transpose(axes))
    assert not paths
    return ours


def agree(ours: jax.Array, theirs: torch.Tensor) -> None:
    expected = theirs.detach().numpy().transpose(0, 2, 3, 1)
    assert ours.shape == expected.shape
    assert np.abs(ours - expected).max() <= TOLERANCE * np.abs(expected).max()


@pytest.mark.parametrize("name", VARIANTS)
def test_moments_and_pixels_are_those_of_diffusers(name: str) -> None:
    theirs = reference(name)
    ours = converted(theirs)
    factor = ours.config.downsampling
    height, width = 5 * factor, 3 * factor
    pixels = torch.rand(2, 3, height, width) * 2 - 1
    latents = torch.randn(2, ours.config.latent_channels, 5, 3)

    mean, log_variance = nnx.jit(lambda m, x: m.encode(x))(ours, channels_last(pixels))
    decoded = nnx.jit(lambda m, x: m.decode(x))(ours, channels_last(latents))

    with torch.no_grad():
        distribution = theirs.encode(pixels).latent_dist
        agree(mean, distribution.mean)
        agree(log_variance, distribution.logvar)
        agree(decoded, theirs.decode(latents).sample)


def test_the_check_bites() -> None:
    """Padding on the other side, the likeliest mistake, is far outside the tolerance."""
    theirs = reference("flux")
    ours = converted(theirs)
    for block in ours.encoder.down_blocks:
        if block.downsample is not None:
            block.downsample.padding = ((1, 0), (1, 0))
    pixels = torch.rand(1, 3, 24, 40) * 2 - 1
    with torch.no_grad():
        expected = theirs.encode(pixels).latent_dist.mean
    wrong = np.asarray(ours.encode(channels_last(pixels))[0])
    gap = np.abs(wrong - expected.numpy().transpose(0, 2, 3, 1)).max()
    assert gap > 100 * TOLERANCE * float(expected.abs().max())


def channels_last(images: torch.Tensor) -> jax.Array:
    return jnp.asarray(images.numpy().transpose(0, 2, 3, 1))
