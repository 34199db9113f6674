"""JSON of responses that contain files."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

LARGE_BYTES = 2**20
"""Size of files from which a thread encodes them: about a millisecond of base64 and JSON."""

T = TypeVar("T")


async def in_thread_if_large(work: Callable[[], T], size: int) -> T:
    """Run work that encodes or serializes files; in a thread if they are large.

    Args:
        size: bytes of the files.
    """
    return await asyncio.to_thread(work) if size >= LARGE_BYTES else work()
