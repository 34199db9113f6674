"""Suite entries of Qwen-Image 2.1, without and with references."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType

import numpy as np
from PIL import Image

from tests.families.suite.entry import (
    CLIP,
    FEW,
    TRUE_CFG,
    UNSCALED,
    Fields,
    SuiteEntry,
    drawn_by_diffusers,
    image_file,
    tiny,
)

NO_IMAGES: Mapping[str, bytes] = MappingProxyType({})
HEADS: Fields = {"num_attention_heads": 8, "axes_dims_rope": (2, 2, 4), "num_layers": 2}
SMALL: Fields = {"dim_mult": [1, 2, 2], "temperal_downsample": [False, True]}
"""Autoencoder with four pixels per latent, for many tokens."""

qwenimage21 = partial(tiny, "tiny_qwenimage21:make_qwenimage21", text_encoder=CLIP, vae=SMALL)


edit = partial(tiny, "tiny_qwenimage21:make_edit", text_encoder=CLIP)
IMAGES = {
    "image": image_file(9, size=(120, 120)),
    "reference_images.0": image_file(10, size=(200, 50)),
}
"""Images that are scaled to whole tokens of the tiny checkpoint."""


def _drawn(folder: Path, request: Fields, images: Mapping[str, bytes] = NO_IMAGES) -> np.ndarray:
    """Generate a request with diffusers, which does not limit the text's length."""
    from tests.parity.tiny_qwenimage21 import pipeline_of

    unlimited = {name: of for name, of in request.items() if name != "max_sequence_length"}
    opened = [Image.open(io.BytesIO(file)) for file in images.values()]
    return drawn_by_diffusers(folder, unlimited, of=pipeline_of, image=opened or None)


PLAIN = SuiteEntry(
    place=21,
    make=qwenimage21(transformer=HEADS),
    least=qwenimage21(transformer={"num_layers": 1}),
    request={**FEW, "width": 24, "height": 40, **TRUE_CFG, "max_sequence_length": 150},
    smallest_request={**UNSCALED, **TRUE_CFG, "max_sequence_length": 150},
    reference=_drawn,
    guided=TRUE_CFG,
    unguided={},
    published={"qwen-image-2.1": "Qwen-Image-2.1"},
    scale="true_cfg_scale",
    has_strength=False,
    weighted_prompts=False,
)

EDIT = replace(
    PLAIN,
    place=22,
    make=edit(transformer=HEADS),
    least=edit(transformer={"num_layers": 1}),
    request={**FEW, "width": 256, "height": 384, **TRUE_CFG, "max_sequence_length": 150},
    smallest_request={
        **UNSCALED,
        **TRUE_CFG,
        "width": 256,
        "height": 256,
        "max_sequence_length": 150,
    },
    reference=partial(_drawn, images=IMAGES),
    images=IMAGES,
)

ENTRIES: Mapping[str, SuiteEntry] = {"qwenimage21": PLAIN, "qwenimage21-edit": EDIT}
