"""Incremental JSON reader: equal to parsing at once, with limits that apply before values are
built."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.errors.problems import Malformed
from service.http.json_reader import LONG_TEXT_BYTES, JsonReader, parse_object, parse_value

IMAGE = "data:image/png;base64," + "A+/=" * LONG_TEXT_BYTES
VALUES: Any = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(alphabet=st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=8,
)  # fmt: skip


def in_pieces(body: bytes, size: int) -> dict[str, Any]:
    reader = JsonReader()
    for start in range(0, len(body), size):
        reader.feed(body[start : start + size])
    return reader.finish()


@given(st.dictionaries(st.text(max_size=3), VALUES, max_size=3), st.integers(1, 9), st.booleans())
def test_json_in_pieces_parses_to_the_same_object(
    value: dict[str, Any], size: int, is_ascii: bool
) -> None:
    body = json.dumps(value, ensure_ascii=is_ascii).encode("utf-8", "surrogatepass")
    assert in_pieces(body, size) == json.loads(body)


@pytest.mark.parametrize("size", [1000, 4093, 2**20])
@pytest.mark.parametrize("escape", ["/", "\\/", "\\u002f"])
def test_long_escaped_texts_are_images(size: int, escape: str) -> None:
    parts = {"prompt": 'ж"\\', "image": IMAGE, "n": -1.5e3, "last_image": IMAGE[::-1]}
    body = json.dumps(parts).replace("/", escape).encode()
    assert in_pieces(body, size) == parts


BAD = {
    "tokens": b'{"a": [' + b"1," * 40_000 + b"1]}",
    "depth": b'{"a": ' + b"[" * 17,
    "digits": b'{"a": ' + b"1" * 600 + b"}",
    "blanks": b'{"a": 1' + b" " * 2**21 + b"}",
    "texts": b'{"a": ["' + b'", "'.join([b"x" * 1000] * 2000) + b'"]}',
    "NaN": b'{"a": NaN}',
    "infinity": b'{"a": -Infinity}',
    "a key twice": b'{"a": 1, "a": 1}',
    "a long key": b'{"' + b"a" * 2**18 + b'": 1}',
    "a long text": ('{"a": "' + "ж" * 2**18 + '"}').encode(),
    "control characters": b'{"a": "' + b"\n" * 2**18 + b'"}',
    "a long escaped text": b'{"a": "' + b"\\u0436" * 2**18 + b'"}',
    "a strange escape": b'{"a": "\\x41 and more"}',
    "no end": b'{"a": "' + b"a" * 2**18,
    "half an escape": b'{"a": "\\u00',
    "no UTF-8": b'{"a": "\xff"}',
}


@pytest.mark.parametrize("body", BAD.values(), ids=BAD.keys())
@pytest.mark.parametrize("size", [2**15, 2**22])
def test_malformed_json_is_rejected(body: bytes, size: int) -> None:
    with pytest.raises(Malformed):
        in_pieces(body, size)


def test_ten_thousand_numbers_are_fine() -> None:
    assert len(parse_object(json.dumps({"sigmas": [0.5] * 10_000}).encode())["sigmas"]) == 10_000


@pytest.mark.parametrize(
    ("text", "value"), [("1", 1), (" 1.5 ", 1.5), ("true", True), ("[1, 2]", [1, 2]), ('"a"', "a")]
)
def test_a_value_is_read(text: str, value: Any) -> None:
    assert parse_value(text) == value


@pytest.mark.parametrize(
    "text",
    [
        *("", "a cat", "1 2", "1}", '1, "other": 2', '1, "value": 2', "NaN", "[" * 100_000),
        *("[" + "1," * 40_000 + "1]", "9" * 5_000, "\ud800"),
    ],
    ids=lambda text: text[:12],
)
def test_invalid_value_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match="value"):
        parse_value(text)


@pytest.mark.parametrize("size", [1, 2, 3, 4, 1000])
def test_a_byte_order_mark_is_skipped(size: int) -> None:
    assert in_pieces(b"\xef\xbb\xbf" + b'{"a": "\xef\xbb\xbf"}', size) == {"a": "\ufeff"}


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
def test_utf_16_is_named(encoding: str) -> None:
    with pytest.raises(Malformed, match="it is in UTF-16; send it in UTF-8"):
        parse_object("\ufeff{}".encode(encoding))
