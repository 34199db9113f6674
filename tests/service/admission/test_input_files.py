"""Decoding of a request's images: variants of base64."""

from __future__ import annotations

import base64

import pytest

from models.media.image_files import ImageFileError
from service.admission.input_files import from_base64

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
def test_invalid_base64_is_rejected(text: str, said: str) -> None:
    with pytest.raises(ImageFileError, match=said):
        from_base64(text)
