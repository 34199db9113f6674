"""Suite entry of Z-Image."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tests.families.suite.entry import (
    CLIP,
    FEW,
    LEAST,
    Family,
    drawn_by_diffusers,
)


def _zimage(folder: Path) -> Path:
    from tests.parity.tiny_zimage import make_zimage

    sizes = {"n_heads": 8, "axes_dims": (2, 2, 4), "n_layers": 2, "n_refiner_layers": 1}
    return make_zimage(folder, transformer=sizes, text_encoder=CLIP)


def _least_zimage(folder: Path) -> Path:
    from tests.parity.tiny_zimage import make_zimage

    sizes = {"n_layers": 1, "n_refiner_layers": 1}
    return make_zimage(folder, transformer=sizes, text_encoder=CLIP)


PLAIN = Family(
    place=2,
    make=_zimage,
    least=_least_zimage,
    request={
        **FEW,
        "prompt": "a red circle on a blue background above the yellow star",
        "width": 48,
        "height": 80,
        "guidance_scale": 3.0,
        "max_sequence_length": 80,
    },
    least_request={**LEAST, "negative_prompt": "", "max_sequence_length": 60},
    reference=drawn_by_diffusers,
    guided={"guidance_scale": 3.0},
    unguided={"guidance_scale": 0.0},
    published=("z-image-turbo", "z-image"),
    weighted_prompts=False,
)

ENTRIES: Mapping[str, Family] = {
    "zimage": PLAIN,
}
