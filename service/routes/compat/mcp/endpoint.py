"""Route of MCP by stateless streamable HTTP: any front end can answer any request."""

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
from service.routes.compat.endpoint import CompatibleEndpoint
from service.routes.compat.mcp.message import Message
from service.schemas.examples import schema_example

PREFIX = "/mcp"
INVALID_REQUEST = -32600
"""JSON-RPC error code of an invalid request. Source: JSON-RPC 2.0, section 5.1."""
EXAMPLE_CALL = {"name": "generate_image", "arguments": {"prompt": "a cat", "seed": 7}}
TEXT = {"type": "text", "text": "…"}


class McpMessage(BaseModel):
    """MCP message: a JSON-RPC 2.0 request or notification."""

    model_config = ConfigDict(
        use_attribute_docstrings=True,
        json_schema_extra=schema_example(
            {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": EXAMPLE_CALL}
        ),
    )

    jsonrpc: Literal["2.0"]
    """Version of JSON-RPC."""
    id: Any = None
    """Number or name of the request, repeated by its response; notifications have none."""
    method: str
    """Name of the method: `tools/list`, `tools/call`, …"""
    params: dict[str, Any] | None = None
    """Arguments of the method."""


class McpAnswer(BaseModel):
    """MCP response; in a stream the last message, after progress notifications."""

    model_config = ConfigDict(
        use_attribute_docstrings=True,
        json_schema_extra=schema_example(
            {"jsonrpc": "2.0", "id": 1, "result": {"content": [TEXT]}}
        ),
    )

    jsonrpc: Literal["2.0"]
    """Version of JSON-RPC."""
    id: int | str | None
    """Number or name of the request."""
    result: dict[str, Any] | None = None
    """Result; the `content` of a tool."""
    error: dict[str, Any] | None = None
    """Error, if there is no result."""


class McpError(BaseModel):
    """JSON-RPC error of an MCP request that reached no tool."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    jsonrpc: Literal["2.0"]
    """Version of JSON-RPC."""
    id: None = None
    """Always null: the request could not be read."""
    error: dict[str, Any]
    """Number (`code`), `message`, and `data` with this API's `code`."""


def error_form(problem: Problem) -> Response:
    """Convert a problem to a JSON-RPC error."""
    error = {"code": INVALID_REQUEST, "message": problem.detail, "data": {"code": problem.code}}
    content = json.dumps({"jsonrpc": "2.0", "id": None, "error": error})
    return Response(content, problem.status, headers=problem.headers, media_type=JSON)


class SdkResponse(Response):
    """Response that the MCP SDK writes for one message."""

    def __init__(self, call: Call) -> None:
        super().__init__()
        self._call = call

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request to the MCP SDK. Raises: Problem: the body is invalid."""
        serve, call = await asyncio.to_thread(_import_serve), self._call
        max_bytes = call.front.settings.limits.max_body_bytes
        with call.waiting(), call.front.bodies.holding(call.client) as hold:
            await serve(call, scope, Message(receive, max_bytes, hold), send)


def _import_serve() -> Callable[[Call, Scope, Message, Send], Awaitable[None]]:
    """Import the MCP SDK lazily, since this takes half a second."""
    from service.routes.compat.mcp.server import serve

    return serve


router = APIRouter(tags=["mcp"], dependencies=documented("bearer"))


STREAM = {
    "schema": {
        "type": "object",
        "description": "One event; `data` is a JSON-RPC message, in the last event a McpAnswer.",
        "properties": {"event": {"const": "message"}, "data": {"type": "string"}},
    },
    "example": "event: message\ndata: {…}\n\n",
}
MESSAGE = documents.operation(
    {JSON: documents.schema_of(McpMessage)},
    {JSON: documents.schema_of(McpAnswer), EVENTS: STREAM},
    McpError,
)
MESSAGE["responses"][202] = {"description": "A notification was accepted; it has no response."}


@router.post(PREFIX, **MESSAGE)
async def mcp_message(request: Request, call: ByBearer) -> Response:
    """Handle an agent's MCP message; the tools are `generate_image`, `edit_image` and others."""
    if find_spec("mcp") is None:
        message = "MCP is not installed here; its operator installs Atelier with the extra `mcp`"
        raise NotFound(message, code="mcp_not_installed")
    check_origin(request.headers, call.front.settings.server)
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != JSON:
        raise UnsupportedMedia("send the message as JSON, with Content-Type: application/json")
    return SdkResponse(call)


ENDPOINT = CompatibleEndpoint(
    router, bodies=(McpMessage, McpAnswer, McpError), error_forms={PREFIX: error_form}
)
