"""Small images of a video, which lie beside its file."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress

from service.jobs.storage.errors import NotStored
from service.jobs.storage.object_store import beside_key

CONTENT_TYPE = "image/webp"
NAMES = ("thumbnail", "spritesheet")


async def of(get: Callable[[str], Awaitable[bytes]], key: str) -> dict[str, bytes]:
    """Return those of a video that are there, by name.

    Args:
        get: reads a key of the store.
        key: the video's.

    Raises: StoreError: whether they are there cannot be told.
    """
    found = {}
    for name in NAMES:
        with suppress(NotStored):
            found[name] = await get(beside_key(key, name))
    return found
