"""Pages for people: the playground, as it lies in the source, and the API's description."""

from __future__ import annotations

import base64
import hashlib
import re
from functools import cache
from pathlib import Path

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, JSONResponse

from service.playground import reference_page

router = APIRouter()

NO_FRAMES = "frame-ancestors 'none'"
PLAYGROUND = Path(reference_page.__file__).with_name("index.html")
OPERATOR = PLAYGROUND.with_name("operator.html")


@router.get("/", include_in_schema=False)
async def playground() -> HTMLResponse:
    """The playground."""
    return _answer(PLAYGROUND)


@router.get("/operator", include_in_schema=False)
async def operator() -> HTMLResponse:
    """The operators' page, which asks for one of their keys."""
    return _answer(OPERATOR)


@router.get("/docs", include_in_schema=False)
async def reference(request: Request) -> HTMLResponse:
    """The API's description as a page."""
    page = reference_page.page(request.app.openapi())
    return HTMLResponse(page, headers={"Content-Security-Policy": _reference_policy(page)})


@router.get("/openapi.json", include_in_schema=False)
async def description(request: Request) -> JSONResponse:
    """The API's description as a file."""
    return JSONResponse(request.app.openapi())


def _reference_policy(page: str) -> str:
    """No script at all, and the page's own style."""
    style = f"style-src {_hash(page, 'style')}"
    return f"default-src 'none'; {style}; base-uri 'none'; form-action 'none'; {NO_FRAMES}"


def _answer(file: Path) -> HTMLResponse:
    page, policy = _page(file)
    headers = {"Cache-Control": "no-cache", "Content-Security-Policy": policy}
    return HTMLResponse(page, headers=headers)


@cache
def _page(file: Path) -> tuple[str, str]:
    """The page, and the policy under which it runs."""
    page = file.read_text("utf-8")
    return page, content_security_policy(page)


def content_security_policy(page: str) -> str:
    """Return what a browser allows the playground, and the operators' page.

    Its own script and style, its own server, and images and videos that it made itself or that the
    server redirects to.

    With a key the page asks for images itself, so that a store which is redirected to has to
    be reached by `connect-src`, and to allow this page by CORS.
    """
    return "; ".join(
        (
            "default-src 'none'",
            f"script-src {_hash(page, 'script')}",
            f"style-src {_hash(page, 'style')}",
            "img-src 'self' data: blob: https:",
            "media-src 'self' data: blob: https:",
            "connect-src 'self' https:",
            "base-uri 'none'",
            "form-action 'none'",
            NO_FRAMES,
        )
    )


def _hash(page: str, tag: str) -> str:
    """Hash of the page's one inline element of that kind, as the policy writes it."""
    (text,) = re.findall(f"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
