from __future__ import annotations

import base64
import io

import numpy as np
import pytest
from PIL import Image

from workers.media.image import CONTENT_TYPES, data_uri, encode

PIXELS = np.random.default_rng(0).integers(0, 256, (24, 40, 3), np.uint8)
SMOOTH = np.linspace(0, 255, 24 * 40 * 3).reshape(24, 40, 3).astype(np.uint8)


def read(data: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))


@pytest.mark.parametrize(("format", "quality"), [("png", None), ("png", 50), ("webp", 100)])
def test_lossless(format: str, quality: int | None) -> None:
    assert (read(encode(PIXELS, format, quality)) == PIXELS).all()


@pytest.mark.parametrize("format", ["jpeg", "webp"])
def test_quality_bounds_the_error(format: str) -> None:
    sizes = [len(encode(PIXELS, format, quality)) for quality in (20, 60, 95)]
    assert sizes == sorted(sizes)
    error = np.abs(read(encode(SMOOTH, format)).astype(int) - SMOOTH).mean()
    assert error < 8  # levels of 255, at the default quality, chroma subsampled


@pytest.mark.parametrize("format", CONTENT_TYPES)
def test_equal_pixels_give_equal_bytes_without_metadata(format: str) -> None:
    data = encode(PIXELS, format)
    assert data == encode(PIXELS.copy(), format)
    image = Image.open(io.BytesIO(data))
    assert Image.MIME[image.format] == CONTENT_TYPES[format]
    assert not {"exif", "xmp", "comment", "parameters"} & set(image.info)


def test_another_format_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"'tiff'.*png, jpeg, webp"):
        encode(PIXELS, "tiff")


def test_data_uri() -> None:
    uri = data_uri(b"abc", "image/webp")
    assert uri == "data:image/webp;base64," + base64.b64encode(b"abc").decode()
