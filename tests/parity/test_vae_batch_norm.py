"""AutoencoderKLFlux2 compared with diffusers' in float32: pixels, latents and their statistics."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from diffusers import AutoencoderKLFlux2, Flux2KleinPipeline
from flax import nnx
from safetensors.torch import load_file, save_file

from models.loading.abstract import abstract_module
from models.vae.batch_normed import STATISTICS, BatchNormedAutoencoder, BatchNormedVaeConfig
from models.vae.key_mapping import RENAMES
from models.vae.patches import pack, unpack
from models.weights.loader import load
from tests.parity.distances import largest
from tests.parity.tiny_flux2 import flux2_vae

TOLERANCE = 2e-5
"""Tolerance relative to the largest value, as for other autoencoders (test_vae.py)."""

VARIANTS: dict[str, Mapping[str, Any]] = {
    "klein": {"block_out_channels": (8, 12, 12, 16), "layers_per_block": 2},
    "odd": {
        "block_out_channels": (12, 18),
        "decoder_block_out_channels": (6, 9),
        "layers_per_block": 3,
        "latent_channels": 3,
        "norm_num_groups": 3,
        "use_post_quant_conv": False,
        "mid_block_add_attention": False,
        "batch_norm_eps": 0.05,
    },
}


def converted(model: AutoencoderKLFlux2, folder: Path) -> BatchNormedAutoencoder:
    """Save diffusers' model to a file and load it with Atelier's loader."""
    model.save_pretrained(folder)
    config = BatchNormedVaeConfig.from_dict(json.loads((folder / "config.json").read_text()))
    module = abstract_module(BatchNormedAutoencoder, config, param_dtype=jnp.bfloat16)
    loaded = load(module, folder, (*STATISTICS, *RENAMES))
    assert loaded.statistics.mean[...].dtype == jnp.float32, (
        "statistics stay float32 for any dtype of the weights"
    )
    return load(module, folder, (*STATISTICS, *RENAMES), dtype=jnp.float32)


def encoded(vae: BatchNormedAutoencoder, pixels: jax.Array) -> jax.Array:
    return vae.statistics.normed(pack(vae.encode(pixels)[0][0]))


def decoded(vae: BatchNormedAutoencoder, packed: jax.Array, h: int, w: int) -> jax.Array:
    return vae.decode(unpack(vae.statistics.restored(packed), h, w)[None])


def diffusers_latents(reference: AutoencoderKLFlux2, pixels: torch.Tensor) -> np.ndarray:
    """Latents of an image by diffusers' pipeline: [tokens, packed]."""
    pipeline = Flux2KleinPipeline.__new__(Flux2KleinPipeline)
    pipeline.vae = reference
    with torch.no_grad():
        latents = pipeline._encode_vae_image(pixels, None)
    return pipeline._pack_latents(latents)[0].numpy()


def diffusers_pixels(
    reference: AutoencoderKLFlux2, packed: torch.Tensor, h: int, w: int
) -> np.ndarray:
    """Pixels of packed latents, decoded as by diffusers' pipeline."""
    latents = packed.T.reshape(1, -1, h // 2, w // 2)
    std = torch.sqrt(reference.bn.running_var.view(1, -1, 1, 1) + reference.config.batch_norm_eps)
    latents = latents * std + reference.bn.running_mean.view(1, -1, 1, 1)
    with torch.no_grad():
        pixels = reference.decode(Flux2KleinPipeline._unpatchify_latents(latents)).sample
    return pixels.numpy().transpose(0, 2, 3, 1)


def errors(
    reference: AutoencoderKLFlux2, actual: BatchNormedAutoencoder, h: int = 6, w: int = 4
) -> tuple[float, float]:
    """Errors of an image's latents, and of the pixels of latents."""
    generator, factor = torch.Generator().manual_seed(3), actual.config.downsampling
    pixels = torch.rand(1, 3, h * factor, w * factor, generator=generator) * 2 - 1
    packed = torch.randn(h * w // 4, actual.config.packed_channels, generator=generator)
    latents = nnx.jit(encoded)(actual, jnp.asarray(pixels.numpy().transpose(0, 2, 3, 1)))
    images = nnx.jit(decoded, static_argnums=(2, 3))(actual, jnp.asarray(packed.numpy()), h, w)
    return (
        largest(latents, diffusers_latents(reference, pixels)),
        largest(images, diffusers_pixels(reference, packed, h, w)),
    )


@pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS)
def test_latents_and_pixels_are_those_of_diffusers(
    variant: Mapping[str, Any], tmp_path: Path, record_property: Any
) -> None:
    original = flux2_vae(7, **variant)
    gaps = errors(original, converted(original, tmp_path))
    record_property("relative", max(gaps))
    print("latents {:.1e}, pixels {:.1e}".format(*gaps))
    assert max(gaps) <= TOLERANCE


def test_wrong_epsilon_breaks_parity(tmp_path: Path) -> None:
    """The wrong epsilon is the network's 1e-6 or 1e-5 instead of the statistics' own."""
    original = flux2_vae(7)
    assert original.config.batch_norm_eps == 1e-4
    original.register_to_config(batch_norm_eps=1e-5)
    network = converted(original, tmp_path)
    original.register_to_config(batch_norm_eps=1e-4)
    assert min(errors(original, network)) > TOLERANCE


@pytest.mark.parametrize("name", ["mean", "variance"])
def test_missing_statistics_break_parity(tmp_path: Path, name: str) -> None:
    original = flux2_vae(7)
    network = converted(original, tmp_path)
    leaf = getattr(network.statistics, name)
    leaf[...] = jnp.zeros_like(leaf[...]) if name == "mean" else jnp.ones_like(leaf[...])
    assert min(errors(original, network)) > 1000 * TOLERANCE


def test_files_without_a_count_of_batches_serve_too(tmp_path: Path) -> None:
    original = flux2_vae(7)
    original.save_pretrained(tmp_path)
    file = tmp_path / "diffusion_pytorch_model.safetensors"
    remaining = {
        name: array for name, array in load_file(file).items() if "num_batches" not in name
    }
    save_file(remaining, file)
    config = BatchNormedVaeConfig.from_dict(dict(original.config))
    module = abstract_module(BatchNormedAutoencoder, config)
    network = load(module, tmp_path, (*STATISTICS, *RENAMES), dtype=jnp.float32)
    assert max(errors(original, network)) <= TOLERANCE


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"patch_size": (1, 1)}, "patch_size"),
        ({"decoder_block_out_channels": (6, 9)}, "block_out_channels names"),
        ({"decoder_block_out_channels": (96, 192, 384, 390)}, "390 is not a multiple"),
    ],
    ids=str,
)
def test_configs_that_are_not_served(values: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        BatchNormedVaeConfig.from_dict(values)
