"""Suite entries of FLUX.2-klein, without and with reference images."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

from PIL import Image

from tests.families.suite.entry import (
    FEW,
    LEAST,
    Family,
    drawn_by_diffusers,
    image_file,
)


def _flux2(folder: Path) -> Path:
    from tests.parity.tiny_flux2 import make_flux2

    sizes = {"num_attention_heads": 8, "attention_head_dim": 8, "axes_dims_rope": (2, 2, 2, 2)}
    return make_flux2(folder, transformer={**sizes, "num_single_layers": 2})


def _least_flux2(folder: Path) -> Path:
    from tests.parity.tiny_flux2 import make_flux2

    return make_flux2(folder, transformer={"num_layers": 1, "num_single_layers": 1})


REFERENCES = {
    "image": image_file(9, size=(75, 64)),
    "reference_images.0": image_file(10, size=(64, 88)),
}

MEGAPIXELS = {path: image_file(9, size=(1024, 1024)) for path in REFERENCES}

PLAIN = Family(
    place=4,
    make=_flux2,
    least=_least_flux2,
    request={
        **FEW,
        "width": 48,
        "height": 80,
        "guidance_scale": 3.0,
        "max_sequence_length": 83,
    },
    least_request={**LEAST, "negative_prompt": "", "max_sequence_length": 60},
    reference=drawn_by_diffusers,
    guided={"guidance_scale": 3.0},
    unguided={"guidance_scale": 1.0},
    published=(
        *("flux2-klein-4b", "flux2-klein-9b"),
        *("flux2-klein-base-4b", "flux2-klein-base-9b"),
    ),
    weighted_prompts=False,
)

ENTRIES: Mapping[str, Family] = {
    "flux2": PLAIN,
    "flux2-edit": replace(
        PLAIN,
        place=8,
        reference=partial(
            drawn_by_diffusers,
            image=[Image.open(io.BytesIO(file)) for file in REFERENCES.values()],
        ),
        images=REFERENCES,
        largest_images=MEGAPIXELS,
    ),
}
