"""Inpainting by FLUX.2 klein compared with diffusers' pipeline.

Bounds as in test_flux.py: latents of each step to a relative 1e-4, images to 60 dB and two grey
levels.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from diffusers import Flux2KleinInpaintPipeline
from PIL import Image

from tests.parity.pairs import MASK, Pair, drawn_by, drawn_from, pairs_of
from tests.parity.test_flux import assert_same
from tests.parity.test_flux2 import BASE, CHECKPOINTS, picture
from tests.parity.tiny_flux2 import make_flux2

IMAGE = picture(5, (50, 82))
"""Image of another size than the request, which is that of its whole tokens."""
REQUESTS: Mapping[str, Mapping[str, Any]] = {
    "guided": {"guidance_scale": 3.0, "negative_prompt": "", "strength": 0.7},
    "from noise": {"guidance_scale": 1.0, "strength": 1.0},
}


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Pair]:
    root = tmp_path_factory.mktemp("flux2")
    return pairs_of(root, CHECKPOINTS, make_flux2, Flux2KleinInpaintPipeline.from_pretrained)


@pytest.mark.parametrize(
    ("request_name", "reference"), [("guided", None), ("from noise", picture(6, (70, 93)))]
)
@pytest.mark.parametrize("checkpoint", ["odd", "distilled"])
def test_inpainting(
    pairs: Mapping[str, Pair],
    checkpoint: str,
    request_name: str,
    reference: Image.Image | None,
    record_property: Any,
) -> None:
    pair, request = pairs[checkpoint], BASE | REQUESTS[request_name]
    files = {"image": IMAGE, "mask_image": MASK}
    if reference:
        files["reference_images.0"] = reference
    of_diffusers = {name: value for name, value in request.items() if name != "negative_prompt"}
    expected = drawn_by(
        pair.diffusers, of_diffusers, image=IMAGE, mask_image=MASK, image_reference=reference
    )
    assert_same(drawn_from(pair.atelier, request, files), expected, record_property)
