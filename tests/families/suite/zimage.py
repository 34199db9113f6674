"""Suite entry of Z-Image."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from tests.families.suite.entry import CLIP, GUIDED, LEAST, SuiteEntry, drawn_by_diffusers, tiny

zimage = partial(tiny, "tiny_zimage:make_zimage", text_encoder=CLIP)
SMALL = {"n_layers": 1, "n_refiner_layers": 1}
HEADS = {"n_heads": 8, "axes_dims": (2, 2, 4)}

PLAIN = SuiteEntry(
    place=2,
    make=zimage(transformer={**SMALL, **HEADS, "n_layers": 2}),
    least=zimage(transformer=SMALL),
    request={
        **GUIDED,
        "prompt": "a red circle on a blue background above the yellow star",
        "max_sequence_length": 80,
    },
    least_request={**LEAST, "negative_prompt": "", "max_sequence_length": 60},
    reference=drawn_by_diffusers,
    guided={"guidance_scale": 3.0},
    unguided={"guidance_scale": 0.0},
    published={"z-image-turbo": "Z-Image-Turbo", "z-image": "Z-Image"},
    weighted_prompts=False,
)

ENTRIES: Mapping[str, SuiteEntry] = {"zimage": PLAIN}
