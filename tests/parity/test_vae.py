"""AutoencoderKL compared with diffusers' in float32, on random weights."""

from __future__ import annotations

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from diffusers import AutoencoderKL as Reference
from flax import nnx
from safetensors.numpy import load_file, save_file

from models.loading.abstract import abstract_module
from models.vae.config import VaeConfig
from models.vae.image import AutoencoderKL
from models.vae.key_mapping import RENAMES
from models.weights.loader import load

TOLERANCE = 2e-5  # relative to the largest value: about forty float32 layers deep

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
    """diffusers' model with random norms and biases too, so every term affects the result."""
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


def converted(model: Reference, folder: Path) -> AutoencoderKL:
    """Save diffusers' model to a file and load it with Atelier's loader."""
    model.save_pretrained(folder)
    config = VaeConfig.from_dict(json.loads((folder / "config.json").read_text()))
    module = abstract_module(AutoencoderKL, config)
    return load(module, folder, RENAMES, dtype=jnp.float32)


def agree(output: jax.Array, reference: torch.Tensor) -> None:
    expected = reference.detach().numpy().transpose(0, 2, 3, 1)
    assert output.shape == expected.shape
    assert np.abs(output - expected).max() <= TOLERANCE * np.abs(expected).max()


@pytest.mark.parametrize("name", VARIANTS)
def test_moments_and_pixels_are_those_of_diffusers(name: str, tmp_path: Path) -> None:
    original = reference(name)
    network = converted(original, tmp_path)
    factor = network.config.downsampling
    height, width = 5 * factor, 3 * factor
    pixels = torch.rand(2, 3, height, width) * 2 - 1
    latents = torch.randn(2, network.config.latent_channels, 5, 3)

    mean, log_variance = nnx.jit(lambda m, x: m.encode(x))(network, channels_last(pixels))
    decoded = nnx.jit(lambda m, x: m.decode(x))(network, channels_last(latents))

    with torch.no_grad():
        distribution = original.encode(pixels).latent_dist
        agree(mean, distribution.mean)
        agree(log_variance, distribution.logvar)
        agree(decoded, original.decode(latents).sample)


def test_wrong_padding_breaks_parity(tmp_path: Path) -> None:
    """Padding on the other side, the likeliest mistake, exceeds the tolerance by far."""
    original = reference("flux")
    network = converted(original, tmp_path)
    for block in network.encoder.down_blocks:
        if block.downsample is not None:
            block.downsample.padding = ((1, 0), (1, 0))
    pixels = torch.rand(1, 3, 24, 40) * 2 - 1
    with torch.no_grad():
        expected = original.encode(pixels).latent_dist.mean
    wrong = np.asarray(network.encode(channels_last(pixels))[0])
    gap = np.abs(wrong - expected.numpy().transpose(0, 2, 3, 1)).max()
    assert gap > 100 * TOLERANCE * float(expected.abs().max())


def channels_last(images: torch.Tensor) -> jax.Array:
    return jnp.asarray(images.numpy().transpose(0, 2, 3, 1))


def test_names_of_old_checkpoints_are_read(tmp_path: Path) -> None:
    """Older files have other names for the parts of the mid block's attention."""
    original = reference("sdxl")
    network = converted(original, tmp_path)
    file = tmp_path / "diffusion_pytorch_model.safetensors"
    save_file({aged(key): value for key, value in load_file(file).items()}, file)
    reloaded = load(network, tmp_path, RENAMES, dtype=jnp.float32)
    for expected, output in zip(
        jax.tree.leaves(nnx.state(network)), jax.tree.leaves(nnx.state(reloaded)), strict=True
    ):
        assert np.array_equal(expected, output)


def aged(key: str) -> str:
    for new, old in (
        ("to_q", "query"),
        ("to_k", "key"),
        ("to_v", "value"),
        ("to_out.0", "proj_attn"),
    ):
        key = key.replace(f".{new}.", f".{old}.")
    return key
