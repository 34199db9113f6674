"""HTML pages: the playground, the operators' page, and the API reference."""

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
    """Serve the playground."""
    return _answer(PLAYGROUND)


@router.get("/operator", include_in_schema=False)
async def operator() -> HTMLResponse:
    """Serve the operators' page, which requires an operator's key."""
    return _answer(OPERATOR)


@router.get("/docs", include_in_schema=False)
async def reference(request: Request) -> HTMLResponse:
    """Serve the API reference as HTML."""
    page = reference_page.page(request.app.state.native_openapi())
    return HTMLResponse(page, headers={"Content-Security-Policy": _reference_policy(page)})


@router.get("/openapi.json", include_in_schema=False)
async def description(request: Request) -> JSONResponse:
    """Serve the OpenAPI document as JSON."""
    return JSONResponse(request.app.state.native_openapi())


def _reference_policy(page: str) -> str:
    """Build the reference page's Content-Security-Policy: no scripts, and only its own style."""
    style = f"style-src {_hash(page, 'style')}"
    return f"default-src 'none'; {style}; base-uri 'none'; form-action 'none'; {NO_FRAMES}"


def _answer(file: Path) -> HTMLResponse:
    page, policy = _page(file)
    headers = {"Cache-Control": "no-cache", "Content-Security-Policy": policy}
    return HTMLResponse(page, headers=headers)


@cache
def _page(file: Path) -> tuple[str, str]:
    """Read a page and compute its Content-Security-Policy."""
    page = file.read_text("utf-8")
    return page, content_security_policy(page)


def content_security_policy(page: str) -> str:
    """Build the Content-Security-Policy of the playground and the operators' page.

    It allows the page's own script and style, requests to its own server, and images and videos
    that the page created or the server redirects to.

    With an API key the page fetches images by script. A store that the server redirects to must
    then match `connect-src`, and allow this page by CORS.
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
    """Hash the page's only inline element of this tag, in the policy's format."""
    (text,) = re.findall(f"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
