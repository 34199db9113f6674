"""Suite entries of Z-Image."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
from PIL import Image

from models.loading.sources import ControlSource
from models.zimage.config import OWN_REFINER
from tests.families.suite.entry import (
    CLIP,
    CONTROL_IMAGES,
    GUIDED,
    SMALLEST,
    Fields,
    SuiteEntry,
    drawn_by_diffusers,
    tiny,
    with_controls,
)

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
    smallest_request={**SMALLEST, "negative_prompt": "", "max_sequence_length": 60},
    reference=drawn_by_diffusers,
    guided={"guidance_scale": 3.0},
    unguided={"guidance_scale": 0.0},
    published={"z-image-turbo": "Z-Image-Turbo", "z-image": "Z-Image"},
    weighted_prompts=False,
)

CONTROL_NETS: Mapping[str, Fields] = {
    "edges": {"add_control_noise_refiner": OWN_REFINER, "control_refiner_layers_places": [0]},
    "depth": {"control_layers_places": [0]},
}
"""Version 2.1, and 1.0 with another number of layers."""
CONTROL: Fields = {"control": [{"name": "edges", "scale": 0.7}]}
UNLIKE: tuple[Fields, ...] = (
    CONTROL,
    {"control": [{"name": "depth", "scale": 0.9, "start": 0.3}]},
    {"control": []},
    {"control": [{"name": "depth", "scale": 0.6}, {"name": "edges", "scale": 0.4, "end": 0.5}]},
)
"""Controls of the rows of one batch: one network, another, none, or both."""
controlled = partial(with_controls, module="tiny_zimage", nets=CONTROL_NETS)


def _drawn_with_control(folder: Path, request: Fields) -> np.ndarray:
    """Generate a request with one control with diffusers."""
    from diffusers import ZImageControlNetModel, ZImageControlNetPipeline

    ((entry,), image) = request["control"], io.BytesIO(CONTROL_IMAGES["control.0.image"])
    net = ZImageControlNetModel.from_pretrained(folder / "controls" / entry["name"])
    return drawn_by_diffusers(
        folder,
        {name: value for name, value in request.items() if name != "control"},
        of=partial(ZImageControlNetPipeline.from_pretrained, controlnet=net),
        control_image=Image.open(image),
        controlnet_conditioning_scale=entry["scale"],
    )


ENTRIES: Mapping[str, SuiteEntry] = {
    "zimage": PLAIN,
    "zimage-controlnet": replace(
        PLAIN,
        place=26,
        make=controlled(PLAIN.make),
        least=controlled(zimage(transformer={**SMALL, "n_layers": 2})),
        request={**PLAIN.request, **CONTROL},
        smallest_request={**PLAIN.smallest_request, **CONTROL},
        reference=_drawn_with_control,
        published={"z-image-turbo-controlnet-union-2.1": "Z-Image-Turbo with ControlNet Union 2.1"},
        images=CONTROL_IMAGES,
        image_fields=CONTROL,
        controls={name: ControlSource(f"controls/{name}") for name in CONTROL_NETS},
        max_controls=2,
        batch_variants=UNLIKE,
    ),
}
