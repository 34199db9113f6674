"""Files on their way to a child process: one after the other, behind a line about them."""

from __future__ import annotations

import json
from typing import Any


def packed(about: dict[str, Any], *files: bytes) -> bytes:
    """Return files behind a line that says how long they are, and more."""
    head = json.dumps({**about, "lengths": [len(file) for file in files]}).encode()
    return b"\n".join((head, b"".join(files)))


def unpacked(data: bytes) -> tuple[dict[str, Any], list[bytes]]:
    """Return what `packed` was given."""
    head, _, rest = data.partition(b"\n")
    about, files = json.loads(head), []
    for length in about.pop("lengths"):
        files.append(rest[:length])
        rest = rest[length:]
    return about, files
