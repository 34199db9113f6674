"""Edits of Qwen-Image 2.1 compared with diffusers' pipeline; bounds as in test_flux.py."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.parity.pairs import Pair, drawn_by, drawn_from, pairs_of
from tests.parity.test_flux import assert_far, assert_same
from tests.parity.tiny_qwenimage21 import make_edit, pipeline_of

REQUEST = {
    "prompt": "a red circle",
    "width": 256,
    "height": 384,
    "num_inference_steps": 3,
    "seed": 7,
}
GUIDED = {"negative_prompt": "a blue square and a star", "true_cfg_scale": 3.0}


def picture(seed: int, size: tuple[int, int]) -> Image.Image:
    fields = np.random.default_rng(seed).integers(0, 256, (4, 4, 3), dtype=np.uint8)
    return Image.fromarray(fields).resize(size, Image.Resampling.NEAREST)


IMAGES = {"image": picture(1, (120, 120)), "reference_images.0": picture(2, (200, 50))}
CASES = {
    "one image": (1, {}),
    "two images, guided": (2, GUIDED),
}


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Pair]:
    root = tmp_path_factory.mktemp("qwenimage21_edit")
    return pairs_of(root, {"edit": {}}, make_edit, pipeline_of)


@pytest.mark.parametrize(("count", "more"), CASES.values(), ids=CASES)
def test_edit(
    pairs: Mapping[str, Pair], count: int, more: dict[str, Any], record_property: Any
) -> None:
    pair, request = pairs["edit"], {**REQUEST, **more}
    images = dict([*IMAGES.items()][:count])
    result = drawn_from(pair.atelier, {**request, "max_sequence_length": 200}, images)
    expected = drawn_by(pair.diffusers, request, image=[*images.values()])
    assert_same(result, expected, record_property)
    other = {"image": IMAGES["reference_images.0"]}
    assert_far(drawn_from(pair.atelier, {**request, "max_sequence_length": 200}, other), expected)
