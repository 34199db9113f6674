"""Texts in image files that are expensive to parse, against a real server process: it stays
responsive, and its log stays short."""

from __future__ import annotations

import base64
import io
import json
import struct
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from PIL import Image

from models.media.image_files import ImageFileError
from service.http.file_texts import MAX_TEXT_BYTES, parameters_in
from tests.hostile_images import png_chunk, within
from tests.service.attacked import ERRORS, Attacked, attacked, status_of
from tests.service.standin import picture

MIB = 2**20
LOG_BYTES = 4_000
"""Bytes that an attack may add to the log."""


@pytest.fixture(scope="module")
def server(redis_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Attacked]:
    with attacked(redis_url, tmp_path_factory.mktemp("server")) as server:
        yield server


def inflating() -> bytes:
    """1.5 KB that inflate to 1 MB of text."""
    return with_text(b"zTXt", b"parameters\0\0" + zlib.compress(b"a" * MIB))


def with_text(kind: bytes, *contents: bytes) -> bytes:
    return within(picture("PNG", (8, 8)), *(png_chunk(kind, content) for content in contents))


def many_texts() -> bytes:
    return with_text(b"tEXt", *[b"parameters\0" + b"a" * 1000] * 19_000)


def xmp(size: int) -> bytes:
    """A JPEG followed by an XMP packet of `size` bytes."""
    properties = b"<a>b</a>" * (size // 8)
    return picture("JPEG", (8, 8)) + b"<x:xmpmeta xmlns:x='x'>" + properties + b"</x:xmpmeta>"


def many_tags() -> bytes:
    """A JPEG whose EXIF tags have values beyond its end."""
    count = 1_500
    tags = (struct.pack("<HHII", 0x9000 + n, 2, 1000, 10**6) for n in range(count))
    inner = struct.pack("<H", count) + b"".join(tags) + bytes(4)
    outer = b"II*\0\x08\0\0\0\x01\0" + struct.pack("<HHII", 0x8769, 4, 1, 26) + bytes(4)
    file = io.BytesIO()
    Image.new("RGB", (8, 8)).save(file, "JPEG", exif=b"Exif\0\0" + outer + inner)
    return file.getvalue()


def of_parameters(text: bytes) -> bytes:
    """A PNG with the longest text that is parsed, of repeats of `text`."""
    return with_text(b"tEXt", b"parameters\0" + (text * MAX_TEXT_BYTES)[:MAX_TEXT_BYTES])


FILES: Mapping[str, tuple[Callable[[], bytes], int]] = {
    "a text that inflates": (inflating, 422),
    "many texts": (many_texts, 200),
    "a long packet": (lambda: xmp(4 * MIB - 100), 200),
    "a longer packet": (lambda: xmp(5 * MIB), 200),
    "many tags": (many_tags, 200),
    "names without an end": (lambda: of_parameters(b"a"), 200),
    "names without a value": (lambda: of_parameters(b"a: "), 200),
    "texts without an end": (lambda: of_parameters(b'a:"\\"'), 200),
}
"""Files, and the status of the response. A file that takes too long gets 422."""


@pytest.mark.parametrize("name", FILES)
def test_hostile_text_does_not_block_others(server: Attacked, name: str) -> None:
    make, expected = FILES[name]
    body = json.dumps({"image": base64.b64encode(make()).decode()}).encode()
    head = b"POST /sdapi/v1/png-info HTTP/1.1\r\nHost: localhost\r\n"
    check(server, request(head, b"application/json", body), {expected, 422})


@pytest.mark.parametrize(
    "file",
    [
        inflating(),
        with_text(b"tEXt", b"parameters\0" + b"a" * (MAX_TEXT_BYTES + 1)),
        with_text(b"tEXt", b"parameters\0" + b"a" * MIB),
        with_text(b"iTXt", b"parameters\0\1\0\0\0" + zlib.compress(b"a" * MIB)),
    ],
    ids=["inflates", "longer", "much longer", "international"],
)
def test_texts_above_64_kib_are_refused(file: bytes) -> None:
    with pytest.raises(ImageFileError, match="a text of more than 65536 bytes"):
        parameters_in(file, 64)


@pytest.mark.parametrize("size", [4 * MIB - 100, 5 * MIB])
def test_hostile_recipe_does_not_block_others(server: Attacked, size: int) -> None:
    head = b"POST /v1/verify HTTP/1.1\r\nHost: localhost\r\n"
    check(server, request(head, b"image/jpeg", xmp(size)), {200})


def request(head: bytes, content_type: bytes, body: bytes) -> bytes:
    lines = b"Content-Type: %s\r\nContent-Length: %d\r\n\r\n" % (content_type, len(body))
    return head + lines + body


def check(server: Attacked, data: bytes, statuses: set[int]) -> None:
    log = Path(server.folder / ERRORS)
    before, answers = log.stat().st_size, []
    server.stays_well(
        lambda: answers.append(status_of(server.send(data))), grows=8 * len(data) + 64 * MIB
    )
    assert {*answers} <= statuses
    assert log.stat().st_size - before < LOG_BYTES
