"""Image files: decoded as by diffusers' `load_image`, or refused before any pixel is read."""

from __future__ import annotations

import io
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from models.media.image_files import (
    FORMATS,
    MAX_SCANS,
    ImageFile,
    ImageFileError,
    check,
    count_scans,
    decode,
    load,
)
from tests.hostile_images import jpeg_of_scans

PIXELS = np.random.default_rng(0).integers(0, 256, (6, 9, 4), np.uint8)
MAX_PIXELS = 100


def save(image: Image.Image, file_format: str, **options: object) -> bytes:
    file = io.BytesIO()
    image.save(file, file_format, **options)
    return file.getvalue()


def checked(data: bytes) -> Image.Image:
    """Validate and decode a file as a worker does."""
    file, image = check(data, MAX_PIXELS), decode(data)
    assert image.mode == "RGB" and image.size == (file.width, file.height)
    return image


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "L", "P", "1", "LA"])
def test_every_mode_becomes_rgb(mode: str) -> None:
    opaque = np.dstack([PIXELS[..., :3], np.full(PIXELS.shape[:2], 255, np.uint8)])
    source = Image.fromarray(opaque if "A" in mode else PIXELS[..., :3]).convert(mode)
    image = checked(save(source, "PNG"))
    assert not check(save(source, "PNG"), MAX_PIXELS).is_transparent
    np.testing.assert_array_equal(np.asarray(image), np.asarray(source.convert("RGB")))


@pytest.mark.parametrize("kind", ["RGBA", "LA", "palette"])
def test_transparent_pixels_are_white_except_in_masks(kind: str) -> None:
    """The transparent pixels are black, as left by an eraser."""
    colours = Image.new("RGBA", (3, 1), (0, 0, 0, 0))
    colours.putpixel((1, 0), (0, 0, 0, 128))
    colours.putpixel((2, 0), (200, 200, 200, 255))
    if kind == "palette":
        source = Image.new("P", (3, 1), 0)
        source.putpalette([0, 0, 0, 200, 200, 200])
        source.putpixel((2, 0), 1)
        data, levels = save(source, "PNG", transparency=0), [255, 255, 200]
    else:
        data, levels = save(colours.convert(kind), "PNG"), [255, 127, 200]
    assert check(data, MAX_PIXELS).is_transparent
    assert np.asarray(checked(data))[0, :, 0].tolist() == levels
    assert np.asarray(decode(data, is_mask=True))[0, :, 0].tolist() == [0, 0, 200]


@pytest.mark.parametrize("file_format", FORMATS)
def test_every_format_is_read(file_format: str) -> None:
    data = save(Image.fromarray(PIXELS[..., :3]), file_format)
    assert check(data, MAX_PIXELS) == ImageFile(FORMATS[file_format], 9, 6)
    with Image.open(io.BytesIO(data)) as expected:
        np.testing.assert_array_equal(
            np.asarray(checked(data)), np.asarray(expected.convert("RGB"))
        )


def test_the_camera_s_orientation_is_applied() -> None:
    """Source: diffusers' load_image, which rotates first and then drops alpha."""
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was rotated by 90 degrees
    source = Image.fromarray(PIXELS[..., :3])
    image = checked(save(source, "PNG", exif=exif))
    np.testing.assert_array_equal(np.asarray(image), np.rot90(np.asarray(source), -1))


def test_the_limit_is_the_last_size_that_passes() -> None:
    assert check(save(Image.new("RGB", (10, 10)), "PNG"), MAX_PIXELS)
    with pytest.raises(ImageFileError, match="11 x 10 pixels; 100 are allowed"):
        check(save(Image.new("RGB", (11, 10)), "PNG"), MAX_PIXELS)


@pytest.mark.parametrize("file_format", ["GIF", "TIFF", "BMP", "PPM", "ICO"])
def test_other_formats_are_refused(file_format: str) -> None:
    with pytest.raises(ImageFileError, match="is not a PNG, JPEG or WebP image"):
        check(save(Image.new("RGB", (8, 8)), file_format), MAX_PIXELS)


SOUND = {
    file_format: save(Image.fromarray(PIXELS[..., :3]), file_format) for file_format in FORMATS
}


@given(
    data=st.sampled_from(sorted(SOUND.values())),
    changes=st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), max_size=8),
    keep=st.integers(0, 10_000),
)
@settings(max_examples=300, deadline=None, derandomize=True)
def test_damaged_file_is_an_error_or_an_image(
    data: bytes, changes: list[tuple[int, int]], keep: int
) -> None:
    damaged = bytearray(data)
    for place, value in changes:
        damaged[place % len(damaged)] = value
    try:
        image = checked(bytes(damaged[: max(1, keep % (len(damaged) + 1))]))
    except ImageFileError as error:
        assert str(error)
    else:
        assert image.width * image.height <= MAX_PIXELS


def test_scans_are_counted_without_decoding() -> None:
    assert count_scans(SOUND["PNG"]) == count_scans(b"") == count_scans(b"\xff\xd8\xff") == 0
    assert count_scans(SOUND["JPEG"]) == 1
    for scans in (10, MAX_SCANS):
        data = jpeg_of_scans(scans, (10, 10))
        assert count_scans(data) == scans and check(data, MAX_PIXELS).width == 10
    with pytest.raises(ImageFileError, match=f"more than {MAX_SCANS} scans"):
        check(jpeg_of_scans(MAX_SCANS + 1, (10, 10)), MAX_PIXELS)


def test_scans_of_a_thumbnail_are_not_the_image_s() -> None:
    exif = b"Exif\0\0" + SOUND["JPEG"] * (MAX_SCANS + 1)
    data = SOUND["JPEG"]
    marked = data[:2] + b"\xff\xe1" + (len(exif) + 2).to_bytes(2, "big") + exif + data[2:]
    assert count_scans(marked) == 1


@pytest.mark.parametrize("read", [decode, lambda data: load(data, 100)])
def test_grey_levels_of_16_bits_are_scaled(read: Callable[[bytes], Image.Image]) -> None:
    """Depth maps have 16 bits. Pillow would turn all levels above 255 white."""
    levels = np.array([[0, 4369, 32896, 65535]], np.uint16)
    file = io.BytesIO()
    Image.fromarray(levels).save(file, "PNG")
    assert np.asarray(read(file.getvalue()))[0, :, 0].tolist() == [0, 17, 128, 255]
