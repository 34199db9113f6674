"""Files of the playground and the operators' page; the OpenAPI document."""

from __future__ import annotations

import asyncio
import hashlib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from service import playground as page_package
from service.errors.problems import NotFound
from service.http.ranges import etag_matches

router = APIRouter()

MEDIA_TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript"}
PAGE_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        # The page creates images and videos, or the server redirects to its store. With an API key
        # the page fetches them by script: the store must then allow this page by CORS.
        "img-src 'self' data: blob: https:",
        "media-src 'self' data: blob: https:",
        "connect-src 'self' https:",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)


@dataclass(frozen=True)
class PageFile:
    """File of the playground's or operators' pages, as it is served."""

    content: bytes
    media_type: str
    headers: dict[str, str]
    """Headers with which browsers reuse their copy as long as the server's is the same."""


@cache
def page_files() -> dict[str, PageFile]:
    """Read the files of all HTML pages, by name."""
    paths = files(page_package).iterdir()
    return {path.name: _read(path) for path in paths if _suffix(path) in MEDIA_TYPES}


def _read(path: Traversable) -> PageFile:
    content = path.read_bytes()
    tag = hashlib.sha256(content).hexdigest()[:32]
    headers = {"Cache-Control": "no-cache", "ETag": f'"{tag}"'}
    return PageFile(content, MEDIA_TYPES[_suffix(path)], headers)


def _suffix(path: Traversable) -> str:
    return path.name.rpartition(".")[2]


@router.get("/", include_in_schema=False)
async def playground(request: Request) -> Response:
    """Serve the playground page."""
    return _page(request, "index.html")


@router.get("/operator", include_in_schema=False)
async def operator(request: Request) -> Response:
    """Serve the operators' page, which requires an operator's key."""
    return _page(request, "operator.html")


@router.get("/playground/{name}", include_in_schema=False)
async def page_file(request: Request, name: str) -> Response:
    """Serve a script or a style sheet of the HTML pages. Raises: NotFound."""
    file = page_files().get(name)
    if file is None or file.media_type == "text/html":
        raise NotFound(f"the playground has no file {name!r}")
    return _answer(request, file)


@router.get("/openapi.json", include_in_schema=False)
async def description(request: Request) -> JSONResponse:
    """Serve the OpenAPI document as JSON. Building it for the first time takes a second."""
    return JSONResponse(await asyncio.to_thread(request.app.state.native_openapi))


def _page(request: Request, name: str) -> Response:
    answer = _answer(request, page_files()[name])
    answer.headers["Content-Security-Policy"] = PAGE_POLICY
    return answer


def _answer(request: Request, file: PageFile) -> Response:
    """Serve a page's file, or 304 if the client has the same version."""
    if etag_matches(request.headers.get("if-none-match"), file.headers["ETag"]):
        return Response(status_code=304, headers=file.headers)
    return Response(file.content, headers=file.headers, media_type=file.media_type)
