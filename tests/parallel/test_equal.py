"""Every layout draws what one device draws: each step's latents, and the pixels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from models import registry
from models.interface.pipeline import Pipeline
from tests.parallel.layouts import denoise, layout
from tests.parity.tiny import make_flux
from tests.parity.tiny_sdxl import make_sdxl
from tests.parity.tiny_wan import make_wan

LATENTS = 1e-4
"""Relative, of each step. Rounding alone: sums in another order."""
MOST_LEVELS, LEAST_DB = 2, 60.0

LAYOUTS: dict[str, dict[str, Any]] = {
    "data 2": {"data": 2},
    "cfg 2": {"cfg": 2},
    "ulysses 4": {"context": 4},
    "ring 4": {"context": 4, "ring": 4},
    "ring 2 of ulysses 4": {"context": 8, "ring": 2},
    "tensor 2": {"tensor": 2},
    "fsdp 8": {"fsdp": 8},
    "cfg 2, context 4": {"cfg": 2, "context": 4},
    "fsdp 2, cfg 2, tensor 2": {"fsdp": 2, "cfg": 2, "tensor": 2},
    "cfg 2, ring 2, tensor 2": {"cfg": 2, "context": 2, "ring": 2, "tensor": 2},
    "data 2, fsdp 2, ulysses 2": {"data": 2, "fsdp": 2, "context": 2},
}
FIELDS = {
    "flux": {"width": 48, "height": 80, "true_cfg_scale": 2.0, "negative_prompt": "a blue square"},
    "sdxl": {"width": 40, "height": 72, "guidance_scale": 4.0},
    "wan": {"width": 48, "height": 80, "num_frames": 9, "guidance_scale": 4.0},
}
"""Sizes whose tokens do not divide into four or eight."""
CLIP, T5 = {"num_hidden_layers": 2}, {"num_layers": 1}
MAKE: dict[str, Callable[..., Any]] = {
    "flux": lambda folder: make_flux(
        folder,
        transformer={"num_attention_heads": 8, "num_layers": 1, "num_single_layers": 2},
        clip=CLIP,
        t5=T5,
    ),
    "sdxl": lambda folder: make_sdxl(
        folder,
        unet={
            "attention_head_dim": (8, 8),
            "block_out_channels": (16, 32),
            "transformer_layers_per_block": 1,
        },
        clip=CLIP,
        clip_2=CLIP,
    ),
    "wan": lambda folder: make_wan(
        folder, transformer={"num_attention_heads": 8, "num_layers": 2}, t5=T5
    ),
}
"""Few layers: each kind once or twice, compiled thirty times."""


@pytest.fixture(scope="module", params=MAKE)
def pipeline(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pipeline:
    folder = MAKE[request.param](tmp_path_factory.mktemp("layouts") / request.param)
    return registry.load(request.param, str(folder), "float32", {})


@pytest.fixture(scope="module")
def drawing(pipeline: Pipeline) -> tuple[Any, list[np.ndarray], np.ndarray]:
    """What one device draws: latents after encoding and each step, and pixels."""
    fields = {**pipeline.spec.defaults, **FIELDS[pipeline.spec.family]}
    fields |= {"prompt": "a red circle", "seed": 3, "num_inference_steps": 2}
    prepared = pipeline.prepare(fields, {})
    return prepared, *drawn(pipeline, prepared, layout())


def drawn(pipeline: Pipeline, prepared: Any, by: Any) -> tuple[list[np.ndarray], np.ndarray]:
    *rows, pixels = denoise(pipeline, prepared, by)
    return [np.asarray(row["latents"]) for row in rows], np.asarray(pixels)


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_layout_draws_what_one_device_draws(
    name: str, pipeline: Pipeline, drawing: tuple[Any, list[np.ndarray], np.ndarray]
) -> None:
    prepared, steps, pixels = drawing
    found_steps, found = drawn(pipeline, prepared, layout(**LAYOUTS[name]))
    for found_latents, latents in zip(found_steps, steps, strict=True):
        gap = np.abs(found_latents - latents).max() / np.abs(latents).max()
        assert gap < LATENTS, f"{gap:.1e}"
    levels = np.abs(found.astype(int) - pixels)
    assert levels.max() <= MOST_LEVELS
    noise = np.mean(np.square(levels))
    assert noise == 0 or 10 * np.log10(255**2 / noise) >= LEAST_DB
