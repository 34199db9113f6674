"""LTX-2's latent upsampler compared with diffusers' in float32, on random weights and odd sizes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import nnx

from models.checkpoint.folder import read_config
from models.loading.abstract import abstract_module
from models.ltx.key_mapping import LATENT_UPSAMPLER
from models.ltx.latent_upsampler import LatentUpsampler
from models.ltx.latent_upsampler_config import LatentUpsamplerConfig
from models.weights.loader import flat_parameters, load
from tests.parity.distances import relative
from tests.parity.test_ltx_video_vae import drawn, first, last
from tests.parity.tiny import Config
from tests.parity.tiny_ltx import UPSAMPLER, UPSAMPLER_ODD, latent_upsampler

RELATIVE = 1e-5
"""Tolerance of latents, relative by norm."""
VARIANTS: dict[str, Config] = {
    "as published": UPSAMPLER,
    "odd": UPSAMPLER_ODD,
    "by 1.5": {**UPSAMPLER, "rational_spatial_scale": 1.5},
    "by 4": {**UPSAMPLER, "num_blocks_per_stage": 1, "rational_spatial_scale": 4.0},
}
enlarge = nnx.jit(lambda network, latents: network(latents))


def run_atelier(reference: Any, folder: Path) -> LatentUpsampler:
    reference.save_pretrained(folder)
    config = LatentUpsamplerConfig.from_dict(read_config(folder.parent, folder.name))
    module = abstract_module(LatentUpsampler, config)
    return load(module, folder, LATENT_UPSAMPLER, dtype=jnp.float32)


def enlarged(reference: Any, latents: np.ndarray) -> np.ndarray:
    with torch.no_grad():
        return last(reference(first(latents)))


@pytest.mark.parametrize("config", VARIANTS.values(), ids=VARIANTS)
def test_latents(config: Config, tmp_path: Path, record_property: Any) -> None:
    reference = latent_upsampler(7, **config)
    latents = drawn(2, 3, 5, 4, config["in_channels"])
    expected = enlarged(reference, latents)
    gap = relative(np.asarray(enlarge(run_atelier(reference, tmp_path), latents)), expected)
    record_property("relative", gap)
    print(f"{gap:.1e}")
    assert gap < RELATIVE and expected.std() > 0.1


BITES = {
    "norm at the beginning": "enter_norm.scale",
    "convolution before": "before.1.second.kernel",
    "convolution of the resampling": "up.kernel",
    "norm behind": "behind.0.second_norm.bias",
}


@pytest.mark.parametrize("path", BITES.values(), ids=BITES)
def test_changed_array_breaks_parity(path: str, tmp_path: Path) -> None:
    """The array is reversed, because a norm would undo another scale."""
    reference = latent_upsampler(7, **UPSAMPLER)
    damaged, latents = run_atelier(reference, tmp_path), drawn(1, 2, 3, 4, UPSAMPLER["in_channels"])
    leaf = flat_parameters(damaged)[path]
    leaf[...] = leaf[...][::-1]
    assert (
        relative(np.asarray(enlarge(damaged, latents)), enlarged(reference, latents))
        > 100 * RELATIVE
    )


def test_other_blur_breaks_parity(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from models.ltx import latent_upsampler as network

    reference = latent_upsampler(7, **VARIANTS["by 1.5"])
    latents = drawn(1, 2, 3, 4, UPSAMPLER["in_channels"])
    model, expected = run_atelier(reference, tmp_path), enlarged(reference, latents)
    monkeypatch.setattr(network, "BINOMIAL", np.array([0, 1, 2, 1, 0], np.float32) / 4)
    assert relative(np.asarray(model(jnp.asarray(latents))), expected) > 100 * RELATIVE


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"dims": 2}, "dims must be 3"),
        ({"temporal_upsample": True}, "temporal_upsample must be False"),
        ({"spatial_upsample": False}, "spatial_upsample must be True"),
        ({"rational_spatial_scale": 0.75}, "rational_spatial_scale must be 1.5 or 2.0 or 4.0"),
        ({"mid_channels": 40}, "mid_channels must be a multiple of 32"),
    ],
    ids=str,
)
def test_configs_that_are_not_served(values: Config, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        LatentUpsamplerConfig.from_dict({**UPSAMPLER, **values})
