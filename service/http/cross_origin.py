"""Pages of other origins that may call this server (CORS). Source: Fetch standard, section 3.2."""

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
    "X-Fal-Error-Type",
    "X-Job-Id",
    "X-Request-Id",
    "X-Should-Retry",
)
"""Headers of answers that scripts of such a page may read, besides those that any may."""
PREFLIGHT_S = 3600


class AllowOrigins(CORSMiddleware):
    """ASGI middleware that lets pages of these origins call, by keys alone and never by cookies.

    Any request header is allowed: clients send some of their own, and a key is one of them. So is a
    page of the internet where this server is on a private network, which some browsers ask about.
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
