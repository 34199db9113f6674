"""Suite entry of Qwen-Image 2.1."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path

import numpy as np

from tests.families.suite.entry import (
    CLIP,
    FEW,
    TRUE_CFG,
    UNSCALED,
    Fields,
    SuiteEntry,
    drawn_by_diffusers,
    tiny,
)

HEADS: Fields = {"num_attention_heads": 8, "axes_dims_rope": (2, 2, 4), "num_layers": 2}
SMALL: Fields = {"dim_mult": [1, 2, 2], "temperal_downsample": [False, True]}
"""Autoencoder with four pixels per latent, for many tokens."""

qwenimage21 = partial(tiny, "tiny_qwenimage21:make_qwenimage21", text_encoder=CLIP, vae=SMALL)


def _drawn(folder: Path, request: Fields) -> np.ndarray:
    """Draw a request with diffusers, which has no limit of text."""
    from tests.parity.tiny_qwenimage21 import pipeline_of

    unlimited = {name: of for name, of in request.items() if name != "max_sequence_length"}
    return drawn_by_diffusers(folder, unlimited, of=pipeline_of)


PLAIN = SuiteEntry(
    place=21,
    make=qwenimage21(transformer=HEADS),
    least=qwenimage21(transformer={"num_layers": 1}),
    request={**FEW, "width": 24, "height": 40, **TRUE_CFG, "max_sequence_length": 150},
    least_request={**UNSCALED, **TRUE_CFG, "max_sequence_length": 150},
    reference=_drawn,
    guided=TRUE_CFG,
    unguided={},
    published={"qwen-image-2.1": "Qwen-Image-2.1"},
    scale="true_cfg_scale",
    has_strength=False,
    weighted_prompts=False,
)

ENTRIES: Mapping[str, SuiteEntry] = {"qwenimage21": PLAIN}
