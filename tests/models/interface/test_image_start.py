"""Start image for image-to-image, or latents in its place."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from models.interface.image_start import clean_latents, latents_file, resized, start_inputs
from workers.programs.second_pass import image_file, stand_in


@pytest.mark.parametrize(
    ("size", "target"),
    [((5, 7), (10, 14)), ((5, 7), (9, 11)), ((8, 6), (8, 6)), ((1, 1), (4, 3)), ((6, 6), (3, 4))],
)
def test_latents_are_resized_as_torch_interpolates(
    size: tuple[int, int], target: tuple[int, int]
) -> None:
    latents = np.random.default_rng(1).normal(size=(*size, 4)).astype(np.float32)
    reference = torch.nn.functional.interpolate(
        torch.tensor(latents.transpose(2, 0, 1))[None], size=target, mode="bilinear"
    )
    output = resized(latents, *target)
    assert output.dtype == np.float32
    np.testing.assert_allclose(output, reference[0].numpy().transpose(1, 2, 0), atol=5e-6)


def test_latents_input_uses_no_autoencoder_noise() -> None:
    latents = np.random.default_rng(1).normal(size=(3, 2, 4)).astype(np.float32)
    inputs = start_inputs(latents_file(latents), (16, 24), (3, 2, 4), pytest.fail)
    assert inputs.keys() == {"image_latents"}
    assert np.array_equal(inputs["image_latents"], latents)
    assert clean_latents(inputs, pytest.fail) is inputs["image_latents"]


def test_unknown_latents_have_any_shape() -> None:
    assert start_inputs(stand_in("latent"), (16, 24), (3, 2, 4), pytest.fail)[
        "image_latents"
    ].shape == (
        3,
        2,
        4,
    )


def test_an_image_is_encoded_with_noise() -> None:
    noise = np.ones((3, 2, 4), np.float32)
    pixels = np.full((24, 16, 3), 255, np.uint8)
    inputs = start_inputs(image_file(pixels), (16, 24), (3, 2, 4), lambda: noise)
    assert np.array_equal(inputs["image"], np.ones((24, 16, 3), np.float32))
    assert clean_latents(inputs, lambda image, noise: (image.shape, noise)) == (
        (24, 16, 3),
        inputs["image_noise"],
    )
    assert clean_latents({"noise": noise}, pytest.fail) is None
