"""HTTP response with the preview image of an adapter."""

from __future__ import annotations

import hashlib

from fastapi import Response
from starlette.datastructures import Headers

from service.errors.problems import NotFound
from service.front_end.front_end import FrontEnd
from service.http import ranges
from service.http.inflight_limits import HeldResponse
from service.jobs.storage.errors import NotStored

MAGIC_BYTES = {b"\x89PNG": "image/png", b"\xff\xd8\xff": "image/jpeg", b"RIFF": "image/webp"}
"""Media types by the first bytes of a file."""
MEDIA_TYPES = tuple(MAGIC_BYTES.values())
MAX_AGE_S = 60


async def preview_answer(front: FrontEnd, key: str, headers: Headers, client: str) -> Response:
    """Build the response with an adapter's preview image, from its key in the store.

    Raises: NotFound, Busy, Unavailable, StoreError.
    """
    hold = front.bodies.hold(client)
    try:
        hold.add((await front.store.stat(key)).bytes)
        data = await front.store.get(key)
    except NotStored:
        raise NotFound("the preview is no longer stored") from None
    response_headers = {
        "ETag": f'"{hashlib.sha256(data).hexdigest()}"',
        "Cache-Control": f"private, max-age={MAX_AGE_S}",
    }
    if front.callers:  # a cached copy is valid for one key only
        response_headers["Vary"] = "Authorization"
    if ranges.etag_matches(headers.get("if-none-match"), response_headers["ETag"]):
        return Response(status_code=304, headers=response_headers)
    kind = next((kind for head, kind in MAGIC_BYTES.items() if data.startswith(head)), None)
    return HeldResponse(
        data, hold, headers=response_headers, media_type=kind or "application/octet-stream"
    )
