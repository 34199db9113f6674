"""First and last images of Wan: validation, preprocessing, and the network's inputs."""

from __future__ import annotations

import io
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

from models.spec.request import RequestError, read_request
from models.vision.preprocess import ClipPreprocessor
from models.wan.checkpoint import WanCheckpoint
from models.wan.image_conditioning import (
    ConditioningImages,
    conditioning_video,
    join,
    known_frames,
    token_timesteps,
    with_first_frame,
)
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
def test_unsupported_input_is_named(
    checkpoint: WanCheckpoint, images: dict[str, bytes], changes: dict[str, Any], field: str
) -> None:
    with pytest.raises(RequestError) as error:
        inputs(checkpoint, images, **changes)
    assert error.value.field == field


def test_two_images_need_two_frames() -> None:
    checkpoint = picture(FROM_IMAGE, image_encoder=None)
    with pytest.raises(RequestError, match="num_frames: must be more than 1"):
        inputs(checkpoint, {"image": FIRST, "last_image": LAST}, num_frames=1)


def test_text_to_video_has_no_image_inputs() -> None:
    assert inputs(text(), {}) == {}
    assert inputs(TI2V, {}) == {}


def test_images_are_resized_for_the_vae_and_the_encoder() -> None:
    arrays = inputs(picture(), {"image": FIRST})
    assert arrays["image"].shape == (48, 80, 3)
    np.testing.assert_array_equal(arrays["image"][0, 0], [1, -1, -1])
    assert arrays["clip_pixels"].shape == (1, 30, 30, 3)


def test_both_images_reach_the_encoder_in_order() -> None:
    checkpoint = picture(type(EMBEDDED)(**(vars(EMBEDDED) | PAIRED)))
    arrays = inputs(checkpoint, {"last_image": LAST, "image": FIRST})
    assert arrays["clip_pixels"].shape == (2, 30, 30, 3)
    red, _, blue = arrays["clip_pixels"][:, 0, 0].T
    assert red[0] > red[1]
    assert blue[0] < blue[1]
    with pytest.raises(RequestError, match="last_image: is needed"):
        inputs(checkpoint, {"image": FIRST})


def test_networks_without_an_image_embedding_use_only_latents() -> None:
    assert set(
        inputs(text(transformers={"transformer": CONFIG}, expand_timesteps=True), {"image": FIRST})
    ) == {"image"}


def test_mask_of_first_frame_fills_its_latent_last_frame_a_quarter() -> None:
    mask = known_frames(3, 4, with_last=False)
    assert mask.tolist() == [[1, 1, 1, 1], [0, 0, 0, 0], [0, 0, 0, 0]]
    mask = known_frames(3, 4, with_last=True)
    assert mask.tolist() == [[1, 1, 1, 1], [0, 0, 0, 0], [0, 0, 0, 1]]
    joined = join(mask, jnp.full((3, 2, 2, 5), 7.0))
    assert joined.shape == (3, 2, 2, 9)
    assert joined[2, 1, 0].tolist() == [0, 0, 0, 1, 7, 7, 7, 7, 7]


def test_frames_between_the_images_are_grey() -> None:
    first, last = jnp.full((2, 2, 3), -1.0), jnp.ones((2, 2, 3))
    means = conditioning_video(first, last, 5).mean(axis=(1, 2, 3))
    assert means.tolist() == [-1, 0, 0, 0, 1]
    assert conditioning_video(first, None, 5).mean(axis=(1, 2, 3)).tolist() == [-1, 0, 0, 0, 0]
    assert conditioning_video(first, None, 1).shape == (1, 2, 2, 3)


def test_tokens_of_the_first_frame_are_at_timestep_0() -> None:
    times = token_timesteps(jnp.asarray([10.0, 20.0]), (3, 1, 2))
    np.testing.assert_array_equal(times, [[0, 0, 10, 10, 10, 10], [0, 0, 20, 20, 20, 20]])


def test_image_replaces_the_first_frame() -> None:
    latents, first = jnp.zeros((2, 3, 1, 1, 1)), jnp.ones((2, 1, 1, 1, 1))
    rows = with_first_frame(latents, first)
    assert rows[:, :, 0, 0, 0].tolist() == [[1, 0, 0], [1, 0, 0]]
    np.testing.assert_array_equal(with_first_frame(latents[0], first[0]), rows[0])
