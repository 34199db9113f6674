"""Thumbnail and sprite sheet of a video, stored next to its file."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress

from service.jobs.storage.errors import NotStored
from service.jobs.storage.object_store import beside_key

CONTENT_TYPE = "image/webp"
NAMES = ("thumbnail", "spritesheet")


async def of(get: Callable[[str], Awaitable[bytes]], key: str) -> dict[str, bytes]:
    """Return the existing small images of a video by name.

    Args:
        get: reads a key of the store.
        key: the video's key.

    Raises: StoreError: the store cannot be read.
    """
    images = {}
    for name in NAMES:
        with suppress(NotStored):
            images[name] = await get(beside_key(key, name))
    return images
