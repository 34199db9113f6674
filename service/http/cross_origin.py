"""Cross-origin calls from browsers (CORS). Source: Fetch standard, section 3.2."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp

METHODS = ("GET", "HEAD", "POST", "PUT", "DELETE")
EXPOSED = (
    "Accept-Ranges",
    "Content-Disposition",
    "Content-Range",
    "ETag",
    "Location",
    "OpenAI-Poll-After-Ms",
    "Preference-Applied",
    "RateLimit",
    "RateLimit-Policy",
    "Retry-After",
    "Retry-After-Ms",
    "WWW-Authenticate",
    "X-Atelier-Cache",
    "X-Atelier-Warnings",
    "X-Fal-Error-Type",
    "X-Job-Id",
    "X-Request-Id",
    "X-Should-Retry",
)
"""Response headers that scripts of such a page may read, in addition to the CORS-safelisted
ones."""
PREFLIGHT_S = 3600


class AllowOrigins(CORSMiddleware):
    """ASGI middleware that permits cross-origin calls from these origins, without cookies.

    All request headers are allowed, because clients send their own, such as the API key. Public
    pages may also call a server on a private network, for which some browsers send a preflight.
    """

    def __init__(self, app: ASGIApp, origins: Sequence[str]) -> None:
        super().__init__(
            app,
            allow_origins=origins,
            allow_methods=METHODS,
            allow_headers=("*",),
            allow_private_network=True,
            expose_headers=EXPOSED,
            max_age=PREFLIGHT_S,
        )
