from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from PIL import Image

from models.interface.pipeline import RequestError
from models.interface.request import read_request
from models.vision.preprocess import ClipPreprocessor
from models.wan.checkpoint import WanCheckpoint
from models.wan.conditioning_images import ConditioningImages
from models.wan.request import WanRequest
from tests.models.wan.test_checkpoint import CONFIG, EMBEDDED, FROM_IMAGE, picture, text
from tests.models.wan.test_request import FIELDS

PAIRED = {"pos_embed_seq_len": 20}
TI2V = text(expand_timesteps=True)


def png(colour: str) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (31, 17), colour).save(file, "PNG")
    return file.getvalue()


FIRST, LAST = png("red"), png("blue")


def inputs(
    checkpoint: WanCheckpoint, images: dict[str, bytes], **changes: Any
) -> dict[str, np.ndarray]:
    encoder = checkpoint.image_encoder
    side = (encoder.image_size,) * 2 if encoder else (0, 0)
    preprocessor = ClipPreprocessor(size=side, crop_size=side) if encoder else None
    request = read_request(WanRequest, FIELDS | changes)
    return ConditioningImages(checkpoint, preprocessor).inputs(request, images)


@pytest.mark.parametrize(
    ("checkpoint", "images", "changes", "field"),
    [
        (text(), {"image": FIRST}, {}, "image"),
        (picture(), {}, {}, "image"),
        (picture(), {"image": b"no image"}, {}, "image"),
        (picture(), {"image": FIRST, "last_image": LAST}, {}, "last_image"),
        (TI2V, {"last_image": LAST}, {}, "image"),
        (TI2V, {"image": FIRST, "last_image": LAST}, {}, "last_image"),
    ],
)
def test_what_a_checkpoint_cannot_take_is_refused_by_name(
    checkpoint: WanCheckpoint, images: dict[str, bytes], changes: dict[str, Any], field: str
) -> None:
    with pytest.raises(RequestError) as error:
        inputs(checkpoint, images, **changes)
    assert error.value.field == field


def test_two_pictures_need_two_frames() -> None:
    checkpoint = picture(FROM_IMAGE, image_encoder=None)
    with pytest.raises(RequestError, match="num_frames: must be more than 1"):
        inputs(checkpoint, {"image": FIRST, "last_image": LAST}, num_frames=1)


def test_text_alone_has_no_pictures() -> None:
    assert inputs(text(), {}) == {}
    assert inputs(TI2V, {}) == {}


def test_pictures_are_resized_for_the_vae_and_seen_whole_by_the_encoder() -> None:
    arrays = inputs(picture(), {"image": FIRST})
    assert arrays["image"].shape == (48, 80, 3)
    np.testing.assert_array_equal(arrays["image"][0, 0], [1, -1, -1])
    assert arrays["clip_pixels"].shape == (1, 30, 30, 3)


def test_both_pictures_go_to_the_encoder_in_order() -> None:
    checkpoint = picture(type(EMBEDDED)(**(vars(EMBEDDED) | PAIRED)))
    arrays = inputs(checkpoint, {"last_image": LAST, "image": FIRST})
    assert arrays["clip_pixels"].shape == (2, 30, 30, 3)
    red, _, blue = arrays["clip_pixels"][:, 0, 0].T
    assert red[0] > red[1]
    assert blue[0] < blue[1]
    with pytest.raises(RequestError, match="last_image: is needed"):
        inputs(checkpoint, {"image": FIRST})


def test_networks_without_a_picture_embedding_have_the_latents_alone() -> None:
    assert set(
        inputs(text(transformers={"transformer": CONFIG}, expand_timesteps=True), {"image": FIRST})
    ) == {"image"}
