"""Links: addresses of outputs that need no key, signed and valid for a while.

Each is signed by HMAC-SHA256 with one secret of all front ends, which Redis keeps; it is drawn when
the first link is made. Nobody but a front end can sign, so that no tenant can make a link to
another's output. Without the secret (`DEL {atelier-front}:linksecret`) no link is valid anymore.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import math
import secrets
import time
from typing import cast

from redis.asyncio import Redis

from service.errors.problems import Forbidden
from service.jobs.redis.keys import LINK_SECRET

SECRET_BYTES = 32


class Links:
    """Signer of links, valid for `link_s` seconds each."""

    def __init__(self, redis: Redis, link_s: float) -> None:
        self._redis = redis
        self._link_s = link_s

    async def path(self, job_id: str, index: int) -> str:
        """Return the path of a new link to an output."""
        expires = math.ceil(time.time() + self._link_s)
        signature = _signature(await self._secret(), job_id, index, expires)
        return f"/links/{job_id}/{index}?expires={expires}&signature={signature}"

    async def check(self, job_id: str, index: int, expires: int, signature: str) -> None:
        """Check what a link says. Raises: Forbidden: it is not ours, or has expired."""
        expected = _signature(await self._secret(), job_id, index, expires)
        if not hmac.compare_digest(expected.encode(), signature.encode("utf-8", "replace")):
            raise Forbidden("this link was not made here, or was changed", code="link_invalid")
        if expires < time.time():
            raise Forbidden(
                "this link has expired; ask for the job again with a key", code="link_expired"
            )

    async def _secret(self) -> str:
        """Return the secret; the first that is drawn by any front end is everybody's."""
        if found := await self._redis.get(LINK_SECRET):
            return cast(str, found)
        await self._redis.set(LINK_SECRET, secrets.token_hex(SECRET_BYTES), nx=True)
        return cast(str, await self._redis.get(LINK_SECRET))


def _signature(secret: str, job_id: str, index: int, expires: int) -> str:
    said = f"{job_id}/{index}/{expires}".encode()
    digest = hmac.digest(secret.encode(), said, hashlib.sha256)
    return base64.urlsafe_b64encode(digest).decode().rstrip("=")
