"""Wire format between the processes of a slice: a JSON header, then raw array bytes.

Without pickles, received bytes cannot execute code.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

HEAD = struct.Struct("!I")
MAX_HEAD_BYTES = 1 << 20
KINDS = "biufV"
"""NumPy `dtype.kind` letters accepted: no objects, no strings. (V is NumPy's letter for bfloat16.)
"""

Read = Callable[[int], bytearray]
"""Reader that returns exactly the given number of bytes."""


@dataclass(frozen=True)
class Message:
    """Message between processes of a slice: its kind, JSON values and arrays."""

    kind: str
    fields: Mapping[str, Any] = field(default_factory=dict)
    """JSON values of the message, by name."""
    arrays: Mapping[str, np.ndarray] = field(default_factory=dict)


class BadMessage(ValueError):
    """Error of bytes that are not a valid message."""


def packed(message: Message) -> bytes:
    """Serialize a message between processes; `received` is the inverse."""
    arrays = {name: np.ascontiguousarray(array) for name, array in message.arrays.items()}
    kinds = {name: [array.dtype.name, message.arrays[name].shape] for name, array in arrays.items()}
    head = json.dumps({"kind": message.kind, "fields": message.fields, "arrays": kinds}).encode()
    if len(head) > MAX_HEAD_BYTES:
        raise BadMessage(f"a header of {len(head)} bytes is too long: {message.kind}")
    return b"".join([HEAD.pack(len(head)), head, *(array.tobytes() for array in arrays.values())])


def received(read: Read) -> Message:
    """Read and parse the next message of a process. Raises: BadMessage; errors of `read`."""
    (size,) = HEAD.unpack(read(HEAD.size))
    if size > MAX_HEAD_BYTES:
        raise BadMessage(f"invalid header size of {size} bytes")
    try:
        head = json.loads(bytes(read(size)))
        kinds = {
            name: (element_type(dtype), tuple(map(length, shape)))
            for name, (dtype, shape) in head["arrays"].items()
        }
        kind, fields = str(head["kind"]), dict(head["fields"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadMessage(f"a head that cannot be read: {error}") from error
    arrays = {
        name: np.frombuffer(read(math.prod(shape) * dtype.itemsize), dtype).reshape(shape)
        for name, (dtype, shape) in kinds.items()
    }
    return Message(kind, fields, arrays)


def element_type(name: str) -> np.dtype:
    """Return the NumPy dtype of a name in a message.

    Raises: BadMessage: not a plain number type.
    """
    try:
        dtype = np.dtype(name)
    except TypeError as error:
        raise BadMessage(f"elements of type {name!r}") from error
    if dtype.kind not in KINDS or not dtype.itemsize or dtype.hasobject:
        raise BadMessage(f"elements of type {name!r}")
    return dtype


def length(value: Any) -> int:
    """Validate the length of an array axis in a message. Raises: BadMessage."""
    if type(value) is not int or value < 0:
        raise BadMessage(f"an axis of length {value!r}")
    return value
