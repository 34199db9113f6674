"""An image that shows an adapter, as an HTTP answer."""

from __future__ import annotations

import hashlib

from fastapi import Response
from starlette.datastructures import Headers

from service.errors.problems import NotFound
from service.front_end.front_end import FrontEnd
from service.http import ranges
from service.http.inflight_limits import HeldResponse
from service.jobs.storage.errors import NotStored

BEGINNINGS = {b"\x89PNG": "image/png", b"\xff\xd8\xff": "image/jpeg", b"RIFF": "image/webp"}
"""Media types by what files begin with."""
MEDIA_TYPES = tuple(BEGINNINGS.values())
MAX_AGE_S = 60


async def preview_answer(front: FrontEnd, key: str, headers: Headers, client: str) -> Response:
    """Answer with the image under a key of the store.

    Raises: NotFound, Busy, Unavailable, StoreError.
    """
    hold = front.bodies.hold(client)
    try:
        hold.add((await front.store.stat(key)).bytes)
        data = await front.store.get(key)
    except NotStored:
        raise NotFound("the preview is no longer stored") from None
    about = {
        "ETag": f'"{hashlib.sha256(data).hexdigest()}"',
        "Cache-Control": f"private, max-age={MAX_AGE_S}",
    }
    if front.callers:  # a browser's copy is of its key alone
        about["Vary"] = "Authorization"
    if ranges.is_known(headers.get("if-none-match"), about["ETag"]):
        return Response(status_code=304, headers=about)
    kind = next((kind for head, kind in BEGINNINGS.items() if data.startswith(head)), None)
    return HeldResponse(data, hold, headers=about, media_type=kind or "application/octet-stream")
