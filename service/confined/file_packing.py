"""Serialization of files for a child process: concatenated, after a line of JSON."""

from __future__ import annotations

import json
from typing import Any


def packed(about: dict[str, Any], *files: bytes) -> bytes:
    """Concatenate files after a line with their lengths and further data."""
    head = json.dumps({**about, "lengths": [len(file) for file in files]}).encode()
    return b"\n".join((head, b"".join(files)))


def unpacked(data: bytes) -> tuple[dict[str, Any], list[bytes]]:
    """Split the result of `packed` into the further data and the files."""
    head, _, rest = data.partition(b"\n")
    about, files = json.loads(head), []
    for length in about.pop("lengths"):
        files.append(rest[:length])
        rest = rest[length:]
    return about, files
