"""Smallest checkpoints for slices of several processes, and requests to them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tests.families.suite import EVERY, images_of
from tests.parity.tiny import make_flux
from tests.parity.tiny_sdxl import make_sdxl
from tests.parity.tiny_wan import make_wan

MAX_LEVELS, MIN_DB = 2, 60.0
"""Tolerance between layouts, which sum in another order: levels of 255, PSNR in dB."""
CFG = {"ici": {"context": 2}, "dcn": {"cfg": 2}}
"""One prompt per host, whose tokens are swapped for heads between its devices."""
FEW: dict[str, Any] = {"prompt": "a red circle", "seed": 3, "num_inference_steps": 4}
REQUESTS: dict[str, dict[str, Any]] = {
    "flux": {"width": 32, "height": 48, "true_cfg_scale": 2.0, "negative_prompt": "a blue square"},
    "sdxl": {"width": 32, "height": 48, "guidance_scale": 4.0},
    "wan": {
        "width": 32,
        "height": 48,
        "num_frames": 5,
        "guidance_scale": 4.0,
        "max_sequence_length": 32,
    },
}
REQUESTS["wan, from image"] = REQUESTS["wan"]
LAYERS, CLIP, T5 = {"num_layers": 1}, {"num_hidden_layers": 2}, {"num_layers": 1}
MAKE: dict[str, Callable[[Path], Path]] = {
    "flux": lambda folder: make_flux(
        folder,
        transformer={"num_attention_heads": 4, "num_layers": 1, "num_single_layers": 1},
        clip=CLIP,
        t5=T5,
    ),
    "sdxl": lambda folder: make_sdxl(
        folder,
        unet={
            "attention_head_dim": (4, 4),
            "block_out_channels": (16, 32),
            "transformer_layers_per_block": 1,
        },
        clip=CLIP,
        clip_2=CLIP,
    ),
    "wan": lambda folder: make_wan(
        folder,
        transformer={**LAYERS, "num_attention_heads": 4},
        transformer_2={**LAYERS, "num_attention_heads": 4},
        boundary_ratio=0.875,
        t5=T5,
    ),
    "wan, from image": lambda folder: make_wan(
        folder,
        from_image=True,
        transformer={**LAYERS, "num_attention_heads": 4},
        vision={"num_hidden_layers": 1},
        t5=T5,
    ),
}
"""Writers of checkpoints of few layers. Wan has two experts, or an image encoder."""


def of_suite() -> tuple[str, ...]:
    """Return the models of the conformance suite that are not in `MAKE`."""
    return tuple(name for name in EVERY if name not in MAKE)


def made(model: str, folder: Path) -> Path:
    """Write a checkpoint of a model in `MAKE` or in the suite."""
    return (MAKE[model] if model in MAKE else EVERY[model].make)(folder)


def asked(model: str, more: dict[str, Any]) -> dict[str, Any]:
    """Return a request. Its field `files` contains the files of its images, by path."""
    if model in MAKE:
        return {**FEW, **REQUESTS[model], **more}
    return {**EVERY[model].request, "files": {path: f"{model}.{path}" for path in images_of(model)}}


def assert_same(pixels: np.ndarray, expected: np.ndarray) -> None:
    """Check that two images are equal but for rounding."""
    levels = np.abs(pixels.astype(int) - expected)
    noise = np.mean(np.square(levels))
    assert levels.max() <= MAX_LEVELS
    assert noise == 0 or 10 * np.log10(255**2 / noise) >= MIN_DB
    assert np.std(expected) > 10, "an image without contrast proves nothing"
