from __future__ import annotations

import hashlib
import io

import numpy as np
import pytest
from PIL import Image

from service.recipes.files import read_recipe
from service.settings.output import OutputSettings
from tests.service.recipes.examples import PIXELS, recipe
from workers.media.outputs import File, Marking, files

CLIP = np.stack([PIXELS, 255 - PIXELS])


def made(pixels: np.ndarray, format: str, marked: bool = True, **settings: bool) -> list[File]:
    marking = Marking.of_settings(OutputSettings(**settings))
    embedded = recipe() if marked else None
    return list(files(pixels, {"output": {"format": format}}, embedded, marking))


@pytest.mark.parametrize("format", ["png", "jpeg", "webp", "mp4", "gif"])
def test_pixels_have_the_same_digest_with_a_recipe_and_without(format: str) -> None:
    pixels = CLIP if format in ("mp4", "gif") else PIXELS
    [marked], [unmarked] = made(pixels, format), made(pixels, format, marked=False)
    assert marked.data != unmarked.data
    assert read_recipe(marked.data) == recipe() and read_recipe(unmarked.data) is None
    digest = hashlib.sha256(pixels.tobytes()).hexdigest()
    assert marked.pixels_sha256 == unmarked.pixels_sha256 == digest


def test_the_digest_can_be_checked_against_a_lossless_file() -> None:
    [file] = made(PIXELS, "png")
    decoded = np.asarray(Image.open(io.BytesIO(file.data)))
    assert hashlib.sha256(decoded.tobytes()).hexdigest() == file.pixels_sha256


def test_recipes_have_frame_numbers() -> None:
    recipes = [read_recipe(file.data) for file in made(CLIP, "png")]
    assert [item and item.frame for item in recipes] == [0, 1]
    assert [file.pixels_sha256 for file in made(CLIP, "png")] == [
        hashlib.sha256(frame.tobytes()).hexdigest() for frame in CLIP
    ]


def test_an_operator_may_leave_out_prompts() -> None:
    [file] = made(PIXELS, "png", prompts=False)
    assert read_recipe(file.data) == recipe().without_prompts()
    assert b"fox" not in file.data and b"blurred" not in file.data


@pytest.mark.parametrize(
    ("setting", "options", "wanted"),
    [(True, {}, True), (True, {"metadata": False}, False), (False, {"metadata": True}, False)],
)
def test_settings_and_request_both_switch_it_off(
    setting: bool, options: dict[str, bool], wanted: bool
) -> None:
    marking = Marking.of_settings(OutputSettings(metadata=setting))
    assert marking.wants_recipe({"output": options}) is wanted


@pytest.mark.parametrize("format", ["png", "webp"])
@pytest.mark.parametrize("alpha", [0, 255])
def test_alpha_is_in_the_file_and_in_the_digest(format: str, alpha: int) -> None:
    """The digest of opaque pixels has no alpha, like that of a file that has none."""
    pixels = np.dstack([PIXELS, np.full(PIXELS.shape[:2], alpha, np.uint8)])
    [file] = files(pixels, {"output": {"format": format, "quality": 100}}, recipe())
    decoded = np.asarray(Image.open(io.BytesIO(file.data)).convert("RGBA"))
    np.testing.assert_array_equal(decoded, pixels)
    counted = PIXELS if alpha == 255 else pixels
    assert file.pixels_sha256 == hashlib.sha256(counted.tobytes()).hexdigest()
