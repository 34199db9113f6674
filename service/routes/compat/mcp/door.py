"""The route of MCP, by streamable HTTP without sessions: any front end answers any request."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from importlib.util import find_spec
from typing import Any, Literal

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, ConfigDict
from starlette.types import Receive, Scope, Send

from service.auth.foreign_pages import check_origin
from service.errors.problems import NotFound, Problem, UnsupportedMedia
from service.http.negotiation import EVENTS, JSON
from service.routes.compat import documents
from service.routes.compat.call import ByBearer, Call, documented
from service.routes.compat.door import Door
from service.routes.compat.mcp.message import Message
from service.schemas.examples import shown

PREFIX = "/mcp"
INVALID_REQUEST = -32600
"""Source: JSON-RPC 2.0, section 5.1."""
CALLED = {"name": "generate_image", "arguments": {"prompt": "a cat", "seed": 7}}
TEXT = {"type": "text", "text": "…"}


class McpMessage(BaseModel):
    """Message of MCP: JSON-RPC 2.0."""

    model_config = ConfigDict(
        use_attribute_docstrings=True,
        json_schema_extra=shown(
            {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": CALLED}
        ),
    )

    jsonrpc: Literal["2.0"]
    """Version of JSON-RPC."""
    id: Any = None
    """Number or name of the request, which its answer repeats; without one it has no answer."""
    method: str
    """Name of what is asked: `tools/list`, `tools/call`, …"""
    params: dict[str, Any] | None = None
    """Arguments of that."""


class McpAnswer(BaseModel):
    """Answer of MCP; in a stream it is the last message, behind those of progress."""

    model_config = ConfigDict(
        use_attribute_docstrings=True,
        json_schema_extra=shown({"jsonrpc": "2.0", "id": 1, "result": {"content": [TEXT]}}),
    )

    jsonrpc: Literal["2.0"]
    """Version of JSON-RPC."""
    id: int | str | None
    """Number or name of the request."""
    result: dict[str, Any] | None = None
    """Result; of a tool its `content`."""
    error: dict[str, Any] | None = None
    """Error, where there is no result."""


class McpError(BaseModel):
    """Error of a request that reached no tool."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    jsonrpc: Literal["2.0"]
    """Version of JSON-RPC."""
    id: None = None
    """Null: the request was not read."""
    error: dict[str, Any]
    """Number (`code`), `message`, and in `data` our own `code`."""


def error_form(problem: Problem) -> Response:
    """Return a problem as an error of JSON-RPC."""
    error = {"code": INVALID_REQUEST, "message": problem.detail, "data": {"code": problem.code}}
    content = json.dumps({"jsonrpc": "2.0", "id": None, "error": error})
    return Response(content, problem.status, headers=problem.headers, media_type=JSON)


class Served(Response):
    """Answer that the SDK writes."""

    def __init__(self, call: Call) -> None:
        super().__init__()
        self._call = call

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let the SDK answer. Raises: Problem: while the body is read."""
        serve, call = await asyncio.to_thread(_of_sdk), self._call
        most = call.front.settings.limits.max_body_bytes
        with call.waiting(), call.front.bodies.holding(call.client) as hold:
            await serve(call, scope, Message(receive, most, hold), send)


def _of_sdk() -> Callable[[Call, Scope, Message, Send], Awaitable[None]]:
    """Import the SDK: at the first message, which takes half a second."""
    from service.routes.compat.mcp.server import serve

    return serve


router = APIRouter(tags=["mcp"], dependencies=documented("bearer"))


STREAM = {
    "schema": {
        "type": "object",
        "description": "One event; `data` is a message of JSON-RPC, that of the last a McpAnswer.",
        "properties": {"event": {"const": "message"}, "data": {"type": "string"}},
    },
    "example": "event: message\ndata: {…}\n\n",
}
MESSAGE = documents.operation(
    {JSON: documents.schema_of(McpMessage)},
    {JSON: documents.schema_of(McpAnswer), EVENTS: STREAM},
    McpError,
)
MESSAGE["responses"][202] = {"description": "A notification was taken, which has no answer."}


@router.post(PREFIX, **MESSAGE)
async def mcp_message(request: Request, call: ByBearer) -> Response:
    """Answer a message of an agent: its tools are `generate_image`, `edit_image` and more."""
    if find_spec("mcp") is None:
        said = "MCP is not installed here; its operator installs Atelier with the extra `mcp`"
        raise NotFound(said, code="mcp_not_installed")
    check_origin(request.headers, call.front.settings.server)
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != JSON:
        raise UnsupportedMedia("send the message as JSON, with Content-Type: application/json")
    return Served(call)


DOOR = Door(router, bodies=(McpMessage, McpAnswer, McpError), error_forms={PREFIX: error_form})
