"""VACE images of a request: valid combinations, and the arrays read from them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from PIL import Image

from models.spec.request import RequestError, read_request
from models.wan.request import WanRequest
from models.wan.vace_images import scales_of, vace_inputs
from tests.models.wan.test_request import FIELDS
from tests.parity.distances import png

RED, BLACK = (png(Image.new("RGB", (40, 24), colour)) for colour in ("red", "black"))


def read(images: Mapping[str, bytes], **fields: Any) -> dict[str, np.ndarray]:
    return vace_inputs(read_request(WanRequest, {**FIELDS, **fields}), images, 8)


def listed(field: str, count: int, file: bytes = RED) -> dict[str, bytes]:
    return {f"{field}.{index}": file for index in range(count)}


def test_no_images_give_no_inputs() -> None:
    assert read({}) == {}


def test_missing_frames_are_grey_and_generated() -> None:
    arrays = read({**listed("control_video", 3), **listed("mask_video", 1, BLACK)})
    frames, masks = arrays["control_frames"], arrays["control_masks"]
    assert frames.shape == (9, 48, 80, 3)
    assert (frames[:3] == (255, 0, 0)).all() and (frames[3:] == 128).all()
    assert (masks[:3] == 0).all() and (masks[3:] == 255).all()


def test_frames_without_masks_are_followed() -> None:
    assert (read(listed("control_video", 9))["control_masks"] == 255).all()


def test_first_and_last_image_stay() -> None:
    arrays = read({"image": RED, "last_image": BLACK})
    assert [level for level in arrays["control_masks"][:, 0, 0]] == [0, *[255] * 7, 0]
    assert (arrays["control_frames"][-1] == 0).all()


def test_references_keep_the_order_of_the_request() -> None:
    arrays = read({"reference_images.1": BLACK, "reference_images.0": RED})
    np.testing.assert_array_equal(arrays["references"][0, 24, 40], (1, -1, -1))
    assert arrays["references"].shape == (2, 48, 80, 3)


@pytest.mark.parametrize(
    ("images", "field", "said"),
    [
        (listed("mask_video", 1), "control_video", "is needed with mask_video"),
        ({"last_image": RED}, "image", "is needed with last_image"),
        (
            {"image": RED, **listed("control_video", 1)},
            "image",
            "cannot be combined with control_video",
        ),
        ({**listed("control_video", 3), **listed("mask_video", 2)}, "mask_video", "2 frames"),
        (listed("control_video", 10), "num_frames", "at least 10"),
        ({"control_video.0": b"no image"}, "control_video.0", "not an image"),
        ({"reference_images.0": b"no image"}, "reference_images.0", "not an image"),
    ],
)
def test_inconsistent_images_are_rejected(images: dict[str, bytes], field: str, said: str) -> None:
    with pytest.raises(RequestError, match=said) as error:
        read(images)
    assert error.value.field == field


def test_single_scale_applies_to_every_hint() -> None:
    np.testing.assert_array_equal(scales_of(None, 3), (1, 1, 1))
    np.testing.assert_array_equal(scales_of([0.5], 3), np.float32((0.5, 0.5, 0.5)))
    np.testing.assert_array_equal(scales_of([1.0, 2.0, 3.0], 3), (1, 2, 3))
    with pytest.raises(RequestError, match="send one, or 3"):
        scales_of([1.0, 2.0], 3)
