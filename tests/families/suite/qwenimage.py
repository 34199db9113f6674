"""Qwen-Image and its editing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from tests.families.suite.entry import (
    CLIP,
    FEW,
    TRUE_CFG,
    UNSCALED,
    Family,
    Fields,
    drawn_by_diffusers,
    image_file,
)


def _qwenimage(folder: Path) -> Path:
    from tests.parity.tiny_qwenimage import make_qwenimage

    sizes = {"num_attention_heads": 8, "axes_dims_rope": (2, 2, 4), "num_layers": 2}
    return make_qwenimage(folder, transformer=sizes, text_encoder=CLIP)


def _least_qwenimage(folder: Path) -> Path:
    from tests.parity.tiny_qwenimage import make_qwenimage

    return make_qwenimage(folder, transformer={"num_layers": 1}, text_encoder=CLIP)


DEEP: Fields = {"dim_mult": [1, 1, 1, 2, 2, 2], "temperal_downsample": [False] * 3 + [True] * 2}
"""An autoencoder that makes few tokens of a megapixel."""


def _qwenimage_edit(folder: Path) -> Path:
    from tests.parity.tiny_qwenimage import make_edit

    sizes = {"num_attention_heads": 8, "axes_dims_rope": (2, 2, 4), "num_layers": 2}
    return make_edit(folder, transformer=sizes, text_encoder=CLIP, vae=DEEP)


def _least_qwenimage_edit(folder: Path) -> Path:
    from tests.parity.tiny_qwenimage import make_edit

    return make_edit(folder, transformer={"num_layers": 1}, text_encoder=CLIP, vae=DEEP)


def _edited(folder: Path, request: Fields, images: Mapping[str, bytes]) -> np.ndarray:
    """Draw an edit by diffusers."""
    from tests.parity.tiny_qwenimage import edits

    return drawn_by_diffusers(folder, request, images=images, of=edits)


PLAIN = Family(
    place=3,
    make=_qwenimage,
    least=_least_qwenimage,
    request={**FEW, "width": 56, "height": 80, **TRUE_CFG, "max_sequence_length": 150},
    least_request={**UNSCALED, **TRUE_CFG, "max_sequence_length": 150},
    reference=drawn_by_diffusers,
    guided=TRUE_CFG,
    unguided={},
    published=("qwen-image",),
    scale="true_cfg_scale",
    weighted_prompts=False,
)

ENTRIES: Mapping[str, Family] = {
    "qwenimage": PLAIN,
    "qwenimage-edit": replace(
        PLAIN,
        place=6,
        make=_qwenimage_edit,
        least=_least_qwenimage_edit,
        request={**FEW, "width": 192, "height": 320, **TRUE_CFG, "max_sequence_length": 450},
        least_request={
            **UNSCALED,
            **TRUE_CFG,
            "width": 64,
            "height": 64,
            "max_sequence_length": 450,
        },
        reference=partial(_edited, images={"image": image_file(9, size=(120, 120))}),
        published=("qwen-image-edit",),
        images={"image": image_file(9, size=(120, 120))},
    ),
}
