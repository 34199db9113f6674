"""Suite entries of FLUX.2 klein, without and with reference images, and of FLUX.2 dev."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from PIL import Image

from tests.families.suite.entry import (
    GUIDED,
    SMALLEST,
    SuiteEntry,
    drawn_by_diffusers,
    image_file,
    tiny,
)

flux2, dev = (partial(tiny, f"tiny_flux2:make_flux2{kind}") for kind in ("", "_dev"))
HEADS = {"num_attention_heads": 8, "attention_head_dim": 8, "axes_dims_rope": (2, 2, 2, 2)}
REFERENCES = {
    "image": image_file(9, size=(75, 64)),
    "reference_images.0": image_file(10, size=(64, 88)),
}

MEGAPIXELS = {path: image_file(9, size=(1024, 1024)) for path in REFERENCES}

PLAIN = SuiteEntry(
    place=4,
    make=flux2(transformer={**HEADS, "num_single_layers": 2}),
    least=flux2(transformer={"num_layers": 1, "num_single_layers": 1}),
    request={**GUIDED, "max_sequence_length": 83},
    smallest_request={**SMALLEST, "negative_prompt": "", "max_sequence_length": 60},
    reference=drawn_by_diffusers,
    guided={"guidance_scale": 3.0},
    unguided={"guidance_scale": 1.0},
    published={
        "flux2-klein-4b": "FLUX.2 klein 4B",
        "flux2-klein-9b": "FLUX.2 klein 9B",
        "flux2-klein-base-4b": "FLUX.2 klein base 4B",
        "flux2-klein-base-9b": "FLUX.2 klein base 9B",
    },
    has_strength=False,
    weighted_prompts=False,
)

EDIT = replace(
    PLAIN,
    place=8,
    reference=partial(
        drawn_by_diffusers, image=[Image.open(io.BytesIO(file)) for file in REFERENCES.values()]
    ),
    images=REFERENCES,
    largest_images=MEGAPIXELS,
)

ENTRIES: Mapping[str, SuiteEntry] = {
    "flux2": PLAIN,
    "flux2-edit": EDIT,
    "flux2-dev": replace(
        EDIT,
        place=25,
        make=dev(transformer={**HEADS, "num_single_layers": 2}),
        least=dev(transformer={"num_layers": 1, "num_single_layers": 1}),
        smallest_request={**SMALLEST, "max_sequence_length": 60},
        guided={},
        unguided={},
        published={"flux2-dev": "FLUX.2 dev"},
    ),
}
