"""The FLUX.2 transformer compared with diffusers' in float32, on random weights and odd sizes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import torch
from diffusers import Flux2KleinPipeline, Flux2Transformer2DModel
from flax import nnx

from models.checkpoint.folder import read_config
from models.checkpoint.key_mapping import target
from models.flux2.config import Flux2Config
from models.flux2.family import DEV_NETWORKS, KLEIN_4B, KLEIN_9B
from models.flux2.key_mapping import RENAMES
from models.flux2.network import Flux2Transformer
from models.loading.abstract import abstract_module
from models.weights.loader import flat_parameters, load
from tests.parity.distances import relative
from tests.parity.tiny_flux2 import flux2_transformer

RELATIVE = 1e-5
"""Relative tolerance of the velocity. The largest measured error is 9e-7."""

SIZES: Mapping[str, Any] = {"in_channels": 16, "joint_attention_dim": 21}
ODD: Mapping[str, Any] = {
    "in_channels": 12,
    "joint_attention_dim": 33,
    "num_layers": 1,
    "num_single_layers": 4,
    "attention_head_dim": 14,
    "num_attention_heads": 5,
    "timestep_guidance_channels": 35,
    "mlp_ratio": 2.37,
    "axes_dims_rope": (2, 4, 6, 2),
    "rope_theta": 300,
    "eps": 1e-2,
}
CASES: dict[str, Mapping[str, Any]] = {
    "klein": SIZES,
    "odd": ODD,
    "double blocks alone": {**SIZES, "num_single_layers": 0},
    "single blocks alone": {**SIZES, "num_layers": 0},
}
GRID, REFERENCES, TEXT_TOKENS = (5, 3), ((2, 4), (3, 3)), 7
TIMES = np.array([731.25, 12.5], np.float32)


@nnx.jit
def run(model: Flux2Transformer, latents: Any, text: Any, times: Any) -> Any:
    return model(latents, text, model.conditions(times), (GRID, *REFERENCES))


def inputs(config: Mapping[str, Any]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    draw = np.random.default_rng(1).standard_normal
    tokens = sum(rows * columns for rows, columns in (GRID, *REFERENCES))
    latents = draw((2, tokens, config["in_channels"]), np.float32)
    return latents, draw((2, TEXT_TOKENS, config["joint_attention_dim"]), np.float32), TIMES


def run_diffusers(reference: Flux2Transformer2DModel, config: Mapping[str, Any]) -> np.ndarray:
    """Return the velocity of diffusers' network with the pipeline's positions."""
    latents, text, times = inputs(config)
    prepare = Flux2KleinPipeline
    grid = prepare._prepare_latent_ids(torch.zeros(1, 1, *GRID))
    references = prepare._prepare_image_ids([torch.zeros(1, 1, *size) for size in REFERENCES])
    with torch.no_grad():
        return reference(
            hidden_states=torch.tensor(latents),
            encoder_hidden_states=torch.tensor(text),
            timestep=torch.tensor(times) / 1000,
            img_ids=torch.cat([grid, references], dim=1),
            txt_ids=prepare._prepare_text_ids(torch.tensor(text)),
        ).sample.numpy()


def run_atelier(reference: Flux2Transformer2DModel, folder: Path) -> Flux2Transformer:
    reference.save_pretrained(folder)
    config = Flux2Config.from_dict(read_config(folder.parent, folder.name))
    return load(abstract_module(Flux2Transformer, config), folder, RENAMES, dtype=jnp.float32)


@pytest.mark.parametrize("config", CASES.values(), ids=CASES)
def test_velocity(config: Mapping[str, Any], tmp_path: Path, record_property: Any) -> None:
    reference = flux2_transformer(3, **config)
    network = run_atelier(reference, tmp_path)
    expected = run_diffusers(reference, config)
    gap = relative(run(network, *inputs(config)), expected)
    record_property("relative", gap)
    print(f"{gap:.1e}")
    assert gap < RELATIVE
    assert expected.std() > 0.1


BITES = {
    "modulation of the text": "conditions.text_modulation.linear.kernel",
    "modulation of single blocks": "conditions.single_modulation.linear.kernel",
    "gate of a stream": "double_blocks.image.feed_forward.gate.kernel",
    "gate of the single blocks": "single_blocks.middle.gate.kernel",
    "key norm of the text": "double_blocks.text.attention.k_norm.scale",
    "last modulation": "conditions.out_modulation.linear.kernel",
}


@pytest.mark.parametrize("path", BITES.values(), ids=BITES)
def test_changed_array_breaks_parity(path: str, tmp_path: Path) -> None:
    reference = flux2_transformer(3, **ODD)
    damaged = run_atelier(reference, tmp_path)
    leaf: Any = damaged
    for name in path.split("."):
        leaf = getattr(leaf, name)
    leaf[...] = leaf[...] * 1.01
    assert relative(run(damaged, *inputs(ODD)), run_diffusers(reference, ODD)) > 10 * RELATIVE


@pytest.mark.parametrize(
    ("field", "value"), [("eps", 1e-6), ("rope_theta", 10_000), ("axes_dims_rope", (4, 2, 6, 2))]
)
def test_wrong_config_breaks_parity(field: str, value: Any, tmp_path: Path) -> None:
    reference = flux2_transformer(3, **ODD)
    expected = run_diffusers(reference, ODD)
    reference.register_to_config(**{field: value})
    assert relative(run(run_atelier(reference, tmp_path), *inputs(ODD)), expected) > 10 * RELATIVE


def test_every_array_of_the_reference_has_a_place(tmp_path: Path) -> None:
    reference = flux2_transformer(3, **SIZES)
    goals = [target(key, RENAMES) for key in reference.state_dict()]
    assert None not in goals
    leaves = flat_parameters(run_atelier(reference, tmp_path))
    assert sum(p.numel() for p in reference.parameters()) == sum(
        leaf.get_value().size for leaf in leaves.values()
    )


@pytest.mark.parametrize(
    ("published", "billions"), [(KLEIN_4B, 3.88), (KLEIN_9B, 9.08), (DEV_NETWORKS, 32.22)]
)
def test_published_sizes(published: Mapping[str, Any], billions: float) -> None:
    module = abstract_module(Flux2Transformer, Flux2Config.from_dict(published["transformer"]))
    leaves = flat_parameters(module).values()
    assert round(sum(leaf.get_value().size for leaf in leaves) / 1e9, 2) == billions
