"""The video autoencoder compared with diffusers' AutoencoderKLWan, in float32, on random
weights.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from diffusers import AutoencoderKLWan as Reference
from flax import nnx

from models.checkpoint import key_mapping
from models.loading.abstract import abstract_module
from models.vae.video import VideoAutoencoder
from models.vae.video_blocks import FeatureCache
from models.vae.video_config import VideoVaeConfig
from models.vae.video_key_mapping import RENAMES
from models.vae.video_resample import from_patches
from models.weights.loader import flat_parameters, load

TOLERANCE = 2e-5  # relative to the largest value: about fifty float32 layers deep
PSNR_DB = 60  # of pixels as bytes: rounding alone leaves 80 and more
FORGETFUL_DB = 35  # upper PSNR of a mistake in time

VARIANTS: dict[str, dict[str, Any]] = {
    "wan-2.1": {
        "base_dim": 6,
        "decoder_base_dim": 10,
        "z_dim": 5,
        "dim_mult": [1, 2, 3],
        "num_res_blocks": 2,
        "temperal_downsample": [True, True],
    },
    "wan-2.2": {
        "base_dim": 8,
        "decoder_base_dim": 12,
        "z_dim": 7,
        "dim_mult": [1, 2, 4, 4],
        "num_res_blocks": 1,
        "is_residual": True,
        "in_channels": 12,
        "out_channels": 12,
        "patch_size": 2,
        "scale_factor_spatial": 16,
    },
    "time first": {
        "base_dim": 9,
        "z_dim": 3,
        "dim_mult": [1, 4, 2],
        "num_res_blocks": 1,
        "temperal_downsample": [True, False],
        "is_residual": True,
        "patch_size": 3,
        "in_channels": 9,
        "out_channels": 27,
    },
    "more flags than halvings": {
        "base_dim": 10,
        "z_dim": 4,
        "dim_mult": [2, 1],
        "num_res_blocks": 1,
    },
}


def random_model(config: Mapping[str, Any], kind: Callable[..., Any] = Reference) -> Any:
    """diffusers' model with random norms and biases too, so every term affects the result."""
    statistics = {"latents_mean": [0.1] * config["z_dim"], "latents_std": [2.0] * config["z_dim"]}
    torch.manual_seed(5)
    model = kind(**config, **statistics)
    with torch.no_grad():
        for parameter in model.parameters():
            is_vector = parameter.shape[1:].numel() == 1
            parameter.add_(torch.randn_like(parameter) * (0.3 if is_vector else 0.02))
    return model.eval()


def converted(model: Any, folder: Path) -> VideoAutoencoder:
    """Save diffusers' model to a file and load it with Atelier's loader."""
    model.save_pretrained(folder)
    config = VideoVaeConfig.from_dict(json.loads((folder / "config.json").read_text()))
    module = abstract_module(VideoAutoencoder, config)
    return load(module, folder, RENAMES, dtype=jnp.float32)


def run(method: Callable[..., Any], model: VideoAutoencoder) -> Callable[..., Any]:
    """Compile without LLVM's optimizations: three times as fast, with the same sums."""
    graph, state = nnx.split(model)
    compiled = jax.jit(
        lambda state, *inputs: method(nnx.merge(graph, state), *inputs),
        compiler_options={"xla_backend_optimization_level": 0},
    )
    return partial(compiled, state)


def channels_last(clips: torch.Tensor) -> jax.Array:
    return jnp.asarray(clips.numpy().transpose(0, 2, 3, 4, 1))


def relative_gap(output: jax.Array, reference: torch.Tensor) -> float:
    expected = np.asarray(channels_last(reference))
    assert output.shape == expected.shape
    return float(np.abs(output - expected).max() / np.abs(expected).max())


def psnr(output: jax.Array, reference: torch.Tensor) -> float:
    a, b = (np.rint(np.asarray(x) * 127.5 + 127.5) for x in (output, channels_last(reference)))
    return float(10 * np.log10(255**2 / max(np.mean((a - b) ** 2), 1e-12)))


@pytest.mark.parametrize(("name", "frames"), [*((name, 9) for name in VARIANTS), ("time first", 1)])
def test_latents_and_pixels_are_those_of_diffusers(name: str, frames: int, tmp_path: Path) -> None:
    original = random_model(VARIANTS[name])
    network = converted(original, tmp_path)
    config = network.config
    side = config.patch * 2**config.halvings
    colours = config.in_channels // config.patch**2
    pixels = torch.rand(2, colours, frames, 3 * side, 2 * side) * 2 - 1
    latents = torch.randn(2, config.z_dim, 1 + frames // 4, 2, 3)

    mean, log_variance = run(VideoAutoencoder.encode, network)(channels_last(pixels))
    decoded = run(VideoAutoencoder.decode, network)(channels_last(latents))

    with torch.no_grad():
        distribution = original.encode(pixels).latent_dist
        expected = original.decode(latents).sample
    assert relative_gap(mean, distribution.mean) < TOLERANCE
    assert relative_gap(log_variance, distribution.logvar) < TOLERANCE
    assert relative_gap(decoded, expected) < TOLERANCE
    assert psnr(decoded, expected) > PSNR_DB


def test_odd_sides_and_frame_counts_are_truncated_as_in_diffusers(tmp_path: Path) -> None:
    """Odd rows are dropped at each downsampling, and frames after the last whole group of four."""
    original = random_model(VARIANTS["more flags than halvings"])
    network = converted(original, tmp_path)
    pixels = torch.rand(1, 3, 7, 7, 5) * 2 - 1
    mean, _ = run(VideoAutoencoder.encode, network)(channels_last(pixels))
    with torch.no_grad():
        expected = original.encode(pixels).latent_dist.mean
    assert expected.shape[2:] == (5, 3, 2)
    assert relative_gap(mean, expected) < TOLERANCE


def test_attention_in_the_encoder(tmp_path: Path) -> None:
    """The encoder matches diffusers' with attention at the scales that the config names.

    The reference builds these layers but passes its cache, which they do not accept. The test calls
    them without the cache.
    """
    torch.manual_seed(5)
    channels = {"z_dim": 4, "latents_mean": [0.0] * 4, "latents_std": [1.0] * 4}
    original = Reference(
        base_dim=6, dim_mult=[1, 2], num_res_blocks=2, attn_scales=[0.5], **channels
    ).eval()
    attentions = [
        m for m in original.encoder.down_blocks if type(m).__name__ == "WanAttentionBlock"
    ]
    assert len(attentions) == 2
    for module in attentions:
        attend = module.forward
        module.forward = lambda x, attend=attend, **_: attend(x)
    network = converted(original, tmp_path)
    pixels = torch.rand(1, 3, 5, 6, 4) * 2 - 1
    mean, _ = run(VideoAutoencoder.encode, network)(channels_last(pixels))
    with torch.no_grad():
        assert relative_gap(mean, original.encode(pixels).latent_dist.mean) < TOLERANCE


def test_missing_decoder_cache_breaks_parity(tmp_path: Path) -> None:
    """A decoder without its cache, or with part of the cache, is far from the reference."""
    original = random_model(VARIANTS["time first"])
    network = converted(original, tmp_path)
    latents = torch.randn(1, 3, 3, 2, 3)
    with torch.no_grad():
        expected = original.decode(latents).sample

    def decode(
        model: VideoAutoencoder, latents: jax.Array, before: jax.Array, last: jax.Array
    ) -> jax.Array:
        """Decode with the cached features between chunks scaled: the last frame's, and the earlier
        ones'.
        """
        features, parts = None, []
        for frame in jnp.split(model.post_quant_conv(latents), 3, axis=1):
            cache = FeatureCache(features)
            parts.append(model.decoder(frame, cache))
            features = tuple(
                x.at[:, :-1].multiply(before).at[:, -1].multiply(last) for x in cache.features
            )
        pixels = from_patches(jnp.concatenate(parts, axis=1), model.config.patch)
        return jnp.clip(pixels, -1, 1)

    decode_with = partial(run(decode, network), channels_last(latents))
    assert psnr(decode_with(1.0, 1.0), expected) > PSNR_DB
    for before, last in ((0.0, 0.0), (0.0, 1.0), (1.0, 0.0)):
        wrong = decode_with(before, last)
        assert psnr(wrong, expected) < FORGETFUL_DB
        assert relative_gap(wrong, expected) > 1000 * TOLERANCE


WAN_2_2 = {
    "base_dim": 160,
    "decoder_base_dim": 256,
    "z_dim": 48,
    "is_residual": True,
    "in_channels": 12,
    "out_channels": 12,
    "patch_size": 2,
    "scale_factor_spatial": 16,
    "latents_mean": [0.0] * 48,
    "latents_std": [1.0] * 48,
}


@pytest.mark.parametrize(("config", "count"), [({}, 126_892_531), (WAN_2_2, 704_688_668)])
def test_published_sizes_have_every_tensor_in_its_place(config: dict, count: int) -> None:
    """Every tensor of Wan 2.1's and 2.2's published autoencoders has its place, as abstract shapes
    show."""
    with torch.device("meta"):
        stored = Reference(**config).state_dict()
    module = abstract_module(VideoAutoencoder, VideoVaeConfig.from_dict(config))
    leaves = {path: leaf.shape for path, leaf in flat_parameters(module).items()}
    shapes = {}
    for key, tensor in stored.items():
        target = key_mapping.target(key, RENAMES)
        assert target is not None
        shapes[target.path] = placed(tuple(tensor.shape), leaves[target.path])
    assert shapes == leaves
    assert sum(np.prod(shape) for shape in leaves.values()) == count


def placed(stored: tuple[int, ...], leaf: tuple[int, ...]) -> tuple[int, ...]:
    """Convert torch's shape of a kernel, (out, in, *window), to the leaf's."""
    if len(stored) == 1 or stored == leaf:
        return stored
    return (*stored[2:], *stored[1::-1])[-len(leaf) :]
