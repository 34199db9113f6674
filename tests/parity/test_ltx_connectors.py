"""LTX-2's connectors compared with diffusers' in float32, on random weights and odd sizes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import nnx

from models.checkpoint.folder import read_config
from models.loading.abstract import abstract_module
from models.ltx.connectors import TextConnectors
from models.ltx.connectors_config import ConnectorsConfig
from models.ltx.key_mapping import connector_renames
from models.weights.loader import flat_parameters, load
from tests.parity.distances import relative_of_streams
from tests.parity.tiny import Config
from tests.parity.tiny_ltx import CONNECTORS, CONNECTORS_ODD, connectors

RELATIVE = 1e-5
"""Tolerance of the contexts, relative by norm."""
TOKENS, WORDS = 12, np.array([12, 5])
CASES = {"LTX-2.3": CONNECTORS, "LTX-2.0, odd": CONNECTORS_ODD}

run = nnx.jit(lambda model, states, mask: model(states, mask))


def mask(left: bool = True) -> np.ndarray:
    places = np.arange(TOKENS)[None]
    return places >= TOKENS - WORDS[:, None] if left else places < WORDS[:, None]


def states(config: Config) -> np.ndarray:
    """Hidden states of all layers, each layer with another scale."""
    shape = (2, TOKENS, config["caption_channels"], config["text_proj_in_factor"])
    sizes = np.geomspace(0.1, 30, shape[-1], dtype=np.float32)
    return np.random.default_rng(1).standard_normal(shape, np.float32) * sizes + sizes / 3


def run_diffusers(
    reference: Any, config: Config, left: bool = True
) -> tuple[np.ndarray, np.ndarray]:
    with torch.no_grad():
        video, audio, counted = reference(
            torch.tensor(states(config)),
            torch.tensor(mask(left)).long(),
            padding_side="left" if left else "right",
        )
    assert counted.all()  # the transformer masks no text
    return video.numpy(), audio.numpy()


def run_atelier(reference: Any, folder: Path) -> TextConnectors:
    reference.save_pretrained(folder)
    config = ConnectorsConfig.from_dict(read_config(folder.parent, folder.name))
    renames = connector_renames(config.per_modality_projections)
    return load(abstract_module(TextConnectors, config), folder, renames, dtype=jnp.float32)


@pytest.mark.parametrize("left", [True, False], ids=["left", "right"])
@pytest.mark.parametrize("config", CASES.values(), ids=CASES)
def test_contexts(config: Config, left: bool, tmp_path: Path, record_property: Any) -> None:
    reference = connectors(3, **config)
    gap = relative_of_streams(
        run(run_atelier(reference, tmp_path), states(config), mask(left)),
        run_diffusers(reference, config, left),
    )
    record_property("relative", gap)
    print(f"{gap:.1e}")
    assert gap < RELATIVE


def test_padding_changes_nothing(tmp_path: Path) -> None:
    model = run_atelier(connectors(3, **CONNECTORS), tmp_path)
    inputs = states(CONNECTORS)
    other_padding = np.where(mask()[..., None, None], inputs, 7)
    output, repeated = (run(model, hidden, mask()) for hidden in (inputs, other_padding))
    jax.tree.map(np.testing.assert_array_equal, output, repeated)


BITES = {
    "registers": (CONNECTORS, "video.registers"),
    "gate": (CONNECTORS, "audio.blocks.attention.gate.kernel"),
    "projection of audio": (CONNECTORS, "projections.1.kernel"),
    "key norm": (CONNECTORS, "audio.blocks.attention.k_norm.scale"),
    "projection of both": (CONNECTORS_ODD, "projections.0.kernel"),
}


@pytest.mark.parametrize(("config", "path"), BITES.values(), ids=BITES)
def test_changed_array_breaks_parity(config: Config, path: str, tmp_path: Path) -> None:
    reference = connectors(3, **config)
    damaged = run_atelier(reference, tmp_path)
    leaf = flat_parameters(damaged)[path]
    leaf[...] = leaf[...] * 1.03
    assert (
        relative_of_streams(run(damaged, states(config), mask()), run_diffusers(reference, config))
        > 10 * RELATIVE
    )


@pytest.mark.parametrize(
    "change",
    [{"rope_type": "interleaved"}, {"connector_rope_base_seq_len": 65}, {"rope_theta": 9e3}],
    ids=str,
)
def test_wrong_config_breaks_parity(change: Config, tmp_path: Path) -> None:
    reference = connectors(3, **CONNECTORS)
    expected = run_diffusers(reference, CONNECTORS)
    reference.register_to_config(**change)
    assert relative_of_streams(
        run(run_atelier(reference, tmp_path), states(CONNECTORS), mask()), expected
    ) > (10 * RELATIVE)


def test_tokens_that_the_registers_do_not_divide(tmp_path: Path) -> None:
    model = run_atelier(connectors(3, **CONNECTORS), tmp_path)
    with pytest.raises(ValueError, match="multiple of 4 registers"):
        run(model, states(CONNECTORS)[:, :11], mask()[:, :11])


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"rope_type": "spiral"}, "rope_type"),
        ({"rope_double_precision": False}, "rope_double_precision"),
        ({"video_hidden_dim": 25}, "video_connector"),
        ({"caption_channels": 0}, "caption_channels"),
    ],
    ids=str,
)
def test_configs_that_are_not_served(values: Config, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        ConnectorsConfig.from_dict({**CONNECTORS, **values})
