from __future__ import annotations

import io
import json
import struct
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from workers.engine.array_framing import MAX_HEAD_BYTES, BadMessage, Message, packed, received


def read_back(data: bytes) -> Message:
    file = io.BytesIO(data)
    message = received(lambda size: bytearray(file.read(size)))
    assert not file.read(), "nothing is left over for the next message"
    return message


def with_head(head: Any, rest: bytes = b"") -> bytes:
    text = head if isinstance(head, bytes) else json.dumps(head).encode()
    return struct.pack("!I", len(text)) + text + rest


def test_framing_round_trips() -> None:
    arrays: dict[str, Any] = {
        "scalar": np.float32(2.5),
        "empty": np.zeros((3, 0), np.int64),
        "turned": np.arange(6, dtype=np.int32).reshape(2, 3).T,
        "half": np.asarray([1.5, -2], jnp.bfloat16),
        "mask": np.asarray([True, False]),
    }
    fields = {"rows": [1, 2], "batch_layout": (2, 1), "phase": "ÿ"}
    message = read_back(packed(Message("step", fields, arrays)))
    assert message.kind == "step"
    assert message.fields == {"rows": [1, 2], "batch_layout": [2, 1], "phase": "ÿ"}
    assert list(message.arrays) == list(arrays)
    for name, array in arrays.items():
        result = message.arrays[name]
        assert (result.dtype, result.shape) == (array.dtype, np.shape(array))
        assert (result == array).all()


@pytest.mark.parametrize(
    "head",
    [
        b"not JSON",
        b"\xff",
        [],
        {"kind": "x", "fields": {}},
        {"kind": "x", "fields": {}, "arrays": {"a": ["object", [1]]}},
        {"kind": "x", "fields": {}, "arrays": {"a": ["str", [1]]}},
        {"kind": "x", "fields": {}, "arrays": {"a": ["no type", [1]]}},
        {"kind": "x", "fields": {}, "arrays": {"a": ["int32", [-1]]}},
        {"kind": "x", "fields": {}, "arrays": {"a": ["int32", [1.0]]}},
    ],
)
def test_invalid_message_is_rejected(head: Any) -> None:
    with pytest.raises(BadMessage):
        read_back(with_head(head, bytes(8)))


def test_too_long_message_header_is_not_read() -> None:
    with pytest.raises(BadMessage, match="head"):
        read_back(struct.pack("!I", MAX_HEAD_BYTES + 1))
