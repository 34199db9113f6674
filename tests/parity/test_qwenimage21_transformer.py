"""The Qwen-Image 2.1 transformer compared with diffusers' in float32, on odd sizes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import torch
from diffusers import QwenImage21Transformer2DModel
from flax import nnx

from models.checkpoint.folder import read_config
from models.loading.abstract import abstract_module
from models.qwenimage21.config import QwenImage21Config
from models.qwenimage21.key_mapping import RENAMES
from models.qwenimage21.network import QwenImage21Transformer
from models.weights.loader import load
from tests.parity.tiny_qwenimage21 import qwenimage21_transformer

RELATIVE = 1e-5
"""Relative tolerance of the velocity. The largest measured error is 9e-7."""
ODD: Mapping[str, Any] = {
    "in_channels": 6,
    "num_layers": 1,
    "num_attention_heads": 5,
    "axes_dims_rope": (2, 8, 4),
    "context_in_dim": 21,
    "mlp_ratio": 2,
    "eps": 1e-2,
}
CASES: Mapping[str, Mapping[str, Any]] = {"published": {}, "odd": ODD}
GRID, LENGTHS = (4, 6), np.array([9, 5])
TIMES = np.array([731.25, 12.5], np.float32)


@nnx.jit
def run(model: QwenImage21Transformer, *inputs: Any) -> Any:
    latents, captions, lengths, times = inputs
    return model(latents, captions, lengths, times, (GRID,))


def inputs(config: Any) -> tuple[np.ndarray, ...]:
    draw = np.random.default_rng(1).standard_normal
    latents = draw((2, GRID[0] * GRID[1], config.in_channels), np.float32)
    captions = draw((2, LENGTHS.max(), config.context_in_dim), np.float32)
    return latents, captions, LENGTHS, TIMES


def run_diffusers(reference: QwenImage21Transformer2DModel) -> np.ndarray:
    """Run diffusers' network row by row: rows of one batch have the longest caption's positions."""
    latents, captions, lengths, times = inputs(reference.config)
    rows = []
    for row, length in enumerate(lengths):
        slots = [False] * int(length) + [True] * (latents.shape[1] // 4)
        with torch.no_grad():
            output = reference(
                hidden_states=torch.tensor(latents[row : row + 1]),
                encoder_hidden_states=torch.tensor(captions[row : row + 1, :length]),
                timestep=torch.tensor(times[row : row + 1]) / 1000,
                img_shapes=[[(1, *GRID)]],
                img_mask=torch.tensor([slots]),
            ).sample
        rows.append(output[0, -latents.shape[1] :].numpy())
    return np.stack(rows)


def run_atelier(reference: QwenImage21Transformer2DModel, folder: Path) -> QwenImage21Transformer:
    reference.save_pretrained(folder)
    config = QwenImage21Config.from_dict(read_config(folder.parent, folder.name))
    module = abstract_module(QwenImage21Transformer, config)
    return load(module, folder, RENAMES, dtype=jnp.float32)


def error(output: Any, expected: np.ndarray) -> float:
    assert output.shape == expected.shape
    return float(np.linalg.norm(output - expected) / np.linalg.norm(expected))


@pytest.mark.parametrize("config", CASES.values(), ids=CASES)
def test_velocity(config: Mapping[str, Any], tmp_path: Path, record_property: Any) -> None:
    reference = qwenimage21_transformer(3, **config)
    network = run_atelier(reference, tmp_path)
    expected = run_diffusers(reference)
    gap = error(run(network, *inputs(reference.config)), expected)
    record_property("relative", gap)
    print(f"{gap:.1e}")
    assert gap < RELATIVE
    assert expected.std() > 0.1


BITES = {
    "text": "text_in.norm.scale",
    "modulation": "modulation.linear.kernel",
    "gate": "blocks.feed_forward.gate.kernel",
    "key norm": "blocks.heads.k_norm.scale",
    "last modulation": "out_modulation.linear.kernel",
}


@pytest.mark.parametrize("path", BITES.values(), ids=BITES)
def test_changed_array_breaks_parity(path: str, tmp_path: Path) -> None:
    reference = qwenimage21_transformer(3, **ODD)
    damaged = run_atelier(reference, tmp_path)
    leaf: Any = damaged
    for name in path.split("."):
        leaf = getattr(leaf, name)
    leaf[...] = leaf[...] * 1.05
    gap = error(run(damaged, *inputs(reference.config)), run_diffusers(reference))
    assert gap > 10 * RELATIVE


def test_padding_of_captions_has_no_effect(tmp_path: Path) -> None:
    network = run_atelier(qwenimage21_transformer(3), tmp_path)
    latents, captions, lengths, times = inputs(network.config)
    is_padding = np.arange(captions.shape[1])[:, None] >= lengths[:, None, None]
    loud = np.where(is_padding, np.float32(1e3), captions)
    plain, other = (run(network, latents, text, lengths, times) for text in (captions, loud))
    np.testing.assert_array_equal(plain, other)


REFERENCES, PLACES = ((2, 4), (6, 2)), (3, 6)
"""Grids of references, and numbers of tokens before them; the second is one token after the first.
"""


@nnx.jit
def run_with_references(model: QwenImage21Transformer, *inputs: Any) -> Any:
    latents, captions, lengths, times = inputs
    return model(latents, captions, lengths, times, (GRID, *REFERENCES), None, PLACES)


def test_velocity_with_references(tmp_path: Path, record_property: Any) -> None:
    reference = qwenimage21_transformer(3)
    network = run_atelier(reference, tmp_path)
    draw = np.random.default_rng(5).standard_normal
    count, lengths = GRID[0] * GRID[1], np.array([14, 11])
    counts = [rows * columns for rows, columns in REFERENCES]
    latents = draw((2, count + sum(counts), network.config.in_channels), np.float32)
    captions = draw((2, 14, network.config.context_in_dim), np.float32)
    expected = []
    for row, length in enumerate(lengths):
        slots = np.zeros(length, bool)
        for place, tokens in zip(PLACES, counts, strict=True):
            slots[place : place + tokens // 4] = True
        mask = np.concatenate([slots, np.ones(count // 4, bool)])
        ordered = np.concatenate([latents[row, count:], latents[row, :count]])
        with torch.no_grad():
            output = reference(
                hidden_states=torch.tensor(ordered[None]),
                encoder_hidden_states=torch.tensor(captions[row : row + 1, :length]),
                timestep=torch.tensor(TIMES[row : row + 1]) / 1000,
                img_shapes=[[(1, *grid) for grid in (*REFERENCES, GRID)]],
                img_mask=torch.tensor(mask[None]),
            ).sample
        expected.append(output[0, -count:].numpy())
    velocity = run_with_references(network, latents, captions, lengths, TIMES)[:, :count]
    gap = error(velocity, np.stack(expected))
    record_property("relative", gap)
    print(f"{gap:.1e}")
    assert gap < RELATIVE
