"""Signed links to outputs, which need no key and expire.

All front ends sign with HMAC-SHA256 and one secret, stored in Redis and generated at the first
link. Tenants cannot sign, so they cannot create links to others' outputs. Deleting the secret (`DEL
{atelier-front}:linksecret`) invalidates all links.
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
    """Signer of output links, valid for `link_s` seconds each."""

    def __init__(self, redis: Redis, link_s: float) -> None:
        self._redis = redis
        self._link_s = link_s

    async def path(self, job_id: str, index: int) -> str:
        """Create a link to an output, and return its path."""
        expires = math.ceil(time.time() + self._link_s)
        signature = _signature(await self._secret(), job_id, index, expires)
        return f"/links/{job_id}/{index}?expires={expires}&signature={signature}"

    async def check(self, job_id: str, index: int, expires: int, signature: str) -> None:
        """Verify the signature and expiry of a link. Raises: Forbidden."""
        expected = _signature(await self._secret(), job_id, index, expires)
        if not hmac.compare_digest(expected.encode(), signature.encode("utf-8", "replace")):
            raise Forbidden(
                "this link was not created by this server, or was modified", code="link_invalid"
            )
        if expires < time.time():
            raise Forbidden(
                "this link has expired; request the job with an API key", code="link_expired"
            )

    async def _secret(self) -> str:
        """Return the secret that signs links, generating it if missing; all front ends share it."""
        if stored := await self._redis.get(LINK_SECRET):
            return cast(str, stored)
        await self._redis.set(LINK_SECRET, secrets.token_hex(SECRET_BYTES), nx=True)
        return cast(str, await self._redis.get(LINK_SECRET))


def _signature(secret: str, job_id: str, index: int, expires: int) -> str:
    content = f"{job_id}/{index}/{expires}".encode()
    digest = hmac.digest(secret.encode(), content, hashlib.sha256)
    return base64.urlsafe_b64encode(digest).decode().rstrip("=")
