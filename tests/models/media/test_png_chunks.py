"""Metadata of PNG files is skipped, however large; pixels and orientation stay."""

from __future__ import annotations

import io
import zlib
from collections.abc import Callable, Mapping

import numpy as np
import pytest
from PIL import Image

from models.media.image_files import check, decode, load, mask_of_alpha
from models.media.png_chunks import MAX_TEXT_BYTES, SIGNATURE, without_metadata
from service.http.file_texts import parameters_in
from tests.hostile_images import TEXT_BOMBS, png_chunk, text_bomb, within

PIXELS = np.random.default_rng(0).integers(0, 256, (6, 9, 4), np.uint8)
MAX_PIXELS = 100
TURNED = b'XML:com.adobe.xmp\0\0\0\0\0<x:xmpmeta tiff:Orientation="6"/>'


def png() -> bytes:
    file = io.BytesIO()
    Image.fromarray(PIXELS).save(file, "PNG")
    return file.getvalue()


def at_the_end(data: bytes, chunk: bytes) -> bytes:
    return data[:-12] + chunk + data[-12:]


LARGE: Mapping[str, Callable[[], bytes]] = {
    "profile": lambda: png_chunk(b"iCCP", b"wide\0\0" + zlib.compress(bytes(3_000_000))),
    "text": lambda: png_chunk(b"tEXt", b"comment\0" + b"a" * 3_000_000),
    "many texts": lambda: png_chunk(b"tEXt", b"a\0" + b"b" * 1000) * 20_000,
    "XMP": lambda: png_chunk(b"iTXt", b"XML:com.adobe.xmp\0\0\0\0\0" + b"a" * 3_000_000),
    "packed XMP": lambda: png_chunk(
        b"iTXt", b"XML:com.adobe.xmp\0\1\0\0\0" + zlib.compress(b"a" * 3_000_000)
    ),
    "EXIF in a text": lambda: png_chunk(
        b"zTXt", b"Raw profile type exif\0\0" + zlib.compress(b"a" * 3_000_000)
    ),
    "broken deflate": lambda: png_chunk(b"zTXt", b"Raw profile type exif\0\0damaged"),
    **{f"bomb {kind}": lambda kind=kind: text_bomb(kind) for kind in TEXT_BOMBS},
}


@pytest.mark.parametrize(
    ("name", "place"),
    [*((name, within) for name in LARGE), ("text", at_the_end), ("profile", at_the_end)],
)
def test_large_metadata_is_skipped(name: str, place: Callable[[bytes, bytes], bytes]) -> None:
    data = place(png(), LARGE[name]())
    assert check(data, MAX_PIXELS) == check(png(), MAX_PIXELS)
    assert len(without_metadata(data)) == len(png())
    np.testing.assert_array_equal(np.asarray(decode(data)), np.asarray(decode(png())))
    np.testing.assert_array_equal(np.asarray(load(data, MAX_PIXELS)), PIXELS)
    assert mask_of_alpha(data, MAX_PIXELS) == mask_of_alpha(png(), MAX_PIXELS)


def test_an_orientation_in_xmp_is_kept() -> None:
    file = check(within(png(), png_chunk(b"iTXt", TURNED)), MAX_PIXELS)
    assert (file.width, file.height) == (6, 9)


def test_parameters_are_read_next_to_a_large_profile() -> None:
    text = png_chunk(
        b"tEXt", b"parameters\0a cat\nSteps: 4, CFG scale: 7, Seed: 18446744073709551615"
    )
    answer = parameters_in(within(png(), LARGE["profile"](), text), MAX_PIXELS)
    assert answer["parameters"]["Seed"] == str(2**64 - 1)


@pytest.mark.parametrize("data", [b"", b"\xff\xd8\xff", SIGNATURE, SIGNATURE + b"\0" * 11])
def test_other_files_are_unchanged(data: bytes) -> None:
    assert without_metadata(data) == data


@pytest.mark.parametrize("length", [1, 2**16, MAX_TEXT_BYTES, 2**31, 2**32 - 1])
def test_a_chunk_without_end_is_left_to_the_decoder(length: int) -> None:
    data = SIGNATURE + length.to_bytes(4, "big") + b"iCCP"
    assert without_metadata(data) == data
