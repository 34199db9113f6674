"""Suite entries of Qwen-Image and its editing models."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
from PIL import Image

from models.loading.sources import ControlSource
from tests.families.suite.entry import (
    CLIP,
    CONTROL_IMAGES,
    FEW,
    TRUE_CFG,
    UNSCALED,
    Fields,
    SuiteEntry,
    drawn_by_diffusers,
    drawn_with_controls,
    image_file,
    tiny,
    with_controls,
)

HEADS: Fields = {"num_attention_heads": 8, "axes_dims_rope": (2, 2, 4), "num_layers": 2}
DEEP: Fields = {"dim_mult": [1, 1, 1, 2, 2, 2], "temperal_downsample": [False] * 3 + [True] * 2}
"""Autoencoder that makes few tokens of a megapixel."""

qwenimage = partial(tiny, "tiny_qwenimage:make_qwenimage", text_encoder=CLIP)
edit = partial(tiny, "tiny_qwenimage:make_edit", text_encoder=CLIP, vae=DEEP)


def _edit_plus(folder: Path, **transformer: object) -> Path:
    """Write a checkpoint that accepts several images, with time 0."""
    from diffusers import QwenImageEditPlusPipeline

    config = {**transformer, "zero_cond_t": True}
    return edit(transformer=config, kind=QwenImageEditPlusPipeline)(folder)


def _edited(folder: Path, request: Fields, images: Sequence[bytes]) -> np.ndarray:
    """Generate an edit with diffusers."""
    from tests.parity.tiny_qwenimage import edits

    first, *further = (Image.open(io.BytesIO(file)) for file in images)
    inputs = [first, *further] if further else first
    return drawn_by_diffusers(folder, request, image=inputs, of=edits)


PLAIN = SuiteEntry(
    place=3,
    make=qwenimage(transformer=HEADS),
    least=qwenimage(transformer={"num_layers": 1}),
    request={**FEW, "width": 56, "height": 80, **TRUE_CFG, "max_sequence_length": 150},
    smallest_request={**UNSCALED, **TRUE_CFG, "max_sequence_length": 150},
    reference=drawn_by_diffusers,
    guided=TRUE_CFG,
    unguided={},
    published={"qwen-image": "Qwen-Image"},
    scale="true_cfg_scale",
    weighted_prompts=False,
)

CONTROL_NETS = {"edges": {"num_layers": 2}, "depth": {"num_layers": 1}}
BOTH: Fields = {
    "control": [{"name": "edges", "scale": 0.7, "end": 0.5}, {"name": "edges", "scale": 0.5}]
}
UNLIKE: tuple[Fields, ...] = (
    BOTH,
    {"control": [{"name": "depth", "scale": 0.9, "start": 0.3}]},
    {"control": []},
    {"control": [{"name": "depth", "scale": 0.6}, {"name": "edges", "scale": 0.4}]},
)
"""Controls of the rows of one batch: two networks, one network, or none."""
IMAGES = {
    "image": image_file(9, size=(120, 120)),
    "reference_images.0": image_file(10, size=(130, 100)),
}
EDIT = replace(
    PLAIN,
    place=6,
    make=edit(transformer=HEADS),
    least=edit(transformer={"num_layers": 1}),
    request={**FEW, "width": 192, "height": 320, **TRUE_CFG, "max_sequence_length": 450},
    smallest_request={
        **UNSCALED,
        **TRUE_CFG,
        "width": 64,
        "height": 64,
        "max_sequence_length": 450,
    },
    reference=partial(_edited, images=[IMAGES["image"]]),
    published={"qwen-image-edit": "Qwen-Image-Edit"},
    images={"image": IMAGES["image"]},
    has_strength=False,
)

ENTRIES: Mapping[str, SuiteEntry] = {
    "qwenimage": PLAIN,
    "qwenimage-controlnet": replace(
        PLAIN,
        place=24,
        make=with_controls(PLAIN.make, "tiny_qwenimage", CONTROL_NETS),
        least=with_controls(PLAIN.least, "tiny_qwenimage", CONTROL_NETS),
        request={**PLAIN.request, **BOTH},
        smallest_request={**PLAIN.smallest_request, **BOTH},
        reference=partial(drawn_with_controls, images=CONTROL_IMAGES, family="QwenImage"),
        published={"qwen-image-controlnet-union": "Qwen-Image with ControlNet Union"},
        images=CONTROL_IMAGES,
        image_fields=BOTH,
        controls={name: ControlSource(f"controls/{name}") for name in CONTROL_NETS},
        max_controls=2,
        batch_variants=UNLIKE,
    ),
    "qwenimage-edit": EDIT,
    "qwenimage-edit-plus": replace(
        EDIT,
        place=17,
        make=partial(_edit_plus, **HEADS),
        least=partial(_edit_plus, num_layers=1),
        reference=partial(_edited, images=[*IMAGES.values()]),
        published={
            "qwen-image-edit-2509": "Qwen-Image-Edit-2509",
            "qwen-image-edit-2511": "Qwen-Image-Edit-2511",
        },
        images=IMAGES,
    ),
}
