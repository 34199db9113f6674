"""Pictures of a request: what diffusers' `load_image` makes of them, or an error."""

from __future__ import annotations

import base64
import io

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from service.pictures import FORMATS, PictureError, from_base64, normalize

PIXELS = np.random.default_rng(0).integers(0, 256, (6, 9, 4), np.uint8)
MAX_PIXELS = 100


def save(image: Image.Image, file_format: str, **options: object) -> bytes:
    file = io.BytesIO()
    image.save(file, file_format, **options)
    return file.getvalue()


def opened(data: bytes) -> Image.Image:
    image = Image.open(io.BytesIO(data), formats=("PNG",))
    image.load()
    return image


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "L", "P", "1", "LA"])
def test_every_mode_becomes_rgb(mode: str) -> None:
    source = Image.fromarray(PIXELS if "A" in mode else PIXELS[..., :3]).convert(mode)
    got = opened(normalize(save(source, "PNG"), MAX_PIXELS))
    assert got.mode == "RGB"
    np.testing.assert_array_equal(np.asarray(got), np.asarray(source.convert("RGB")))


@pytest.mark.parametrize("file_format", FORMATS)
def test_every_format_is_read(file_format: str) -> None:
    data = save(Image.fromarray(PIXELS[..., :3]), file_format)
    with Image.open(io.BytesIO(data)) as expected:
        np.testing.assert_array_equal(
            np.asarray(opened(normalize(data, MAX_PIXELS))), np.asarray(expected.convert("RGB"))
        )


def test_the_camera_s_orientation_is_applied() -> None:
    """Source: diffusers' load_image, which turns upright first and drops alpha then."""
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was turned by 90 degrees
    source = Image.fromarray(PIXELS[..., :3])
    got = opened(normalize(save(source, "PNG", exif=exif), MAX_PIXELS))
    assert not got.getexif()
    np.testing.assert_array_equal(np.asarray(got), np.rot90(np.asarray(source), -1))


def test_the_limit_is_the_last_size_that_passes() -> None:
    assert normalize(save(Image.new("RGB", (10, 10)), "PNG"), MAX_PIXELS)
    with pytest.raises(PictureError, match="11 x 10 pixels; 100 are allowed"):
        normalize(save(Image.new("RGB", (11, 10)), "PNG"), MAX_PIXELS)


@pytest.mark.parametrize("file_format", ["GIF", "TIFF", "BMP", "PPM", "ICO"])
def test_other_formats_are_refused(file_format: str) -> None:
    with pytest.raises(PictureError, match="no PNG, JPEG or WebP"):
        normalize(save(Image.new("RGB", (8, 8)), file_format), MAX_PIXELS)


SOUND = {
    file_format: save(Image.fromarray(PIXELS[..., :3]), file_format) for file_format in FORMATS
}


@given(
    data=st.sampled_from(sorted(SOUND.values())),
    changes=st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), max_size=8),
    keep=st.integers(0, 10_000),
)
@settings(max_examples=300, deadline=None, derandomize=True)
def test_damage_is_a_picture_error_or_a_picture(
    data: bytes, changes: list[tuple[int, int]], keep: int
) -> None:
    damaged = bytearray(data)
    for place, value in changes:
        damaged[place % len(damaged)] = value
    try:
        got = opened(normalize(bytes(damaged[: max(1, keep % (len(damaged) + 1))]), MAX_PIXELS))
    except PictureError as error:
        assert str(error)
    else:
        assert got.mode == "RGB" and got.width * got.height <= MAX_PIXELS


BYTES = bytes(range(250, 256)) * 2


@pytest.mark.parametrize(
    "text",
    [
        base64.b64encode(BYTES).decode(),
        base64.urlsafe_b64encode(BYTES).decode(),
        "data:image/png;base64," + base64.b64encode(BYTES).decode(),
        "DATA:;BASE64," + base64.b64encode(BYTES).decode(),
        "data:image/png;base64," + base64.b64encode(BYTES).decode().replace("+", "%2B"),
        "\r\n\t ".join(base64.b64encode(BYTES).decode()),
    ],
)
def test_base64_in_its_spellings(text: str) -> None:
    assert from_base64(text) == BYTES


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "empty"),
        ("====", "base64"),
        ("abc", "multiple of 4"),
        ("ab=c", "base64"),
        ("äbcd", "base64"),
        ("ab?d", "base64"),
        ("data:image/png;base64", "comma"),
        ("data:image/png,abcd", "base64"),
        ("file:///etc/passwd", "base64"),
    ],
)
def test_what_is_no_base64(text: str, said: str) -> None:
    with pytest.raises(PictureError, match=said):
        from_base64(text)
