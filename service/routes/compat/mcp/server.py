"""The SDK's server with our tools: one for each request, since nothing is kept between two."""

from __future__ import annotations

import asyncio
import base64
import json
import sys
from collections.abc import Coroutine, Mapping
from functools import cache
from typing import Any, TypeVar

from mcp import types
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel.server import Server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from starlette.types import Scope, Send

from service.admission.parse import parse_as
from service.errors.problems import Problem
from service.recipes.recipe import generator
from service.routes.compat.call import Call
from service.routes.compat.mcp import tools
from service.routes.compat.mcp.arguments import Arguments
from service.routes.compat.mcp.message import Message

CALL, TEXTS = "atelier.call", "atelier.texts"
"""Names in a request's scope of its `Call`, and of the long texts of its message."""
INSTRUCTIONS = (
    "Make images and videos. Ask list_models first where several models may be served. An image"
    " of an earlier result is named by its job's id."
)
UNBOUNDED = sys.maxsize
"""Limit of the SDK's, which is not needed: `Message` raises where a body is too large."""
Context = ServerRequestContext[Any, Any]
T = TypeVar("T")


async def serve(call: Call, scope: Scope, message: Message, send: Send) -> None:
    """Answer one request of an agent. Raises: Problem: while its body is read."""
    scope[CALL], scope[TEXTS] = call, message.texts
    refused: list[Problem] = []

    async def reading() -> Any:
        try:
            return await message()
        except Problem as problem:
            refused.append(problem)
            raise

    manager = StreamableHTTPSessionManager(
        _server(),
        stateless=True,
        max_request_body_size=UNBOUNDED,
    )
    try:
        async with manager.run():
            await manager.handle_request(scope, reading, send)
    except BaseExceptionGroup:
        if not refused:
            raise
    if refused:
        raise refused[0]


@cache
def _server() -> Server[Any]:
    return Server(
        "atelier",
        version=generator().rpartition(" ")[2],
        title="Atelier",
        instructions=INSTRUCTIONS,
        on_list_tools=_list_tools,
        on_call_tool=_call_tool,
    )


async def _list_tools(
    context: Context, params: types.PaginatedRequestParams | None
) -> types.ListToolsResult:
    return types.ListToolsResult(tools=[_described(tool) for tool in tools.TOOLS])


def _described(tool: tools.Tool) -> types.Tool:
    return types.Tool(
        name=tool.name,
        title=tool.title,
        description=tool.description,
        input_schema=tool.arguments.model_json_schema(),
        annotations=types.ToolAnnotations(read_only_hint=not tool.task, open_world_hint=False),
    )


async def _call_tool(context: Context, params: types.CallToolRequestParams) -> types.CallToolResult:
    """Run a tool; what is wrong is told as its result, from which agents learn."""
    assert context.request is not None
    call: Call = context.request.scope[CALL]
    try:
        return await _result(context, call, params)
    except Problem as problem:
        return types.CallToolResult(content=[_text(problem.detail)], is_error=True)


async def _result(
    context: Context, call: Call, params: types.CallToolRequestParams
) -> types.CallToolResult:
    """Raises: Problem."""
    tool = tools.BY_NAME.get(params.name)
    if tool is None:
        said = f"there is no tool {params.name[:80]!r}; there is {', '.join(tools.BY_NAME)}"
        return types.CallToolResult(content=[_text(said)], is_error=True)
    assert context.request is not None
    texts: Mapping[str, str] = context.request.scope[TEXTS]
    arguments = params.arguments or {}
    given = parse_as(
        tool.arguments,
        {
            name: texts.get(value, value) if isinstance(value, str) else value
            for name, value in arguments.items()
        },
    )
    if not isinstance(given, Arguments):
        models = {"models": await tools.list_models(call)}
        return types.CallToolResult(content=[_text(json.dumps(models))], structured_content=models)

    async def report(step: int, steps: int, stage: str) -> None:
        await context.session.report_progress(step, steps, f"{stage}: step {step} of {steps}")

    async def made() -> types.CallToolResult:
        with call.front.bodies.holding(call.client) as hold:
            return _shown(await tools.make(call, tool, given, report, hold))

    return await _apart(made())


_AT_WORK: set[asyncio.Task[Any]] = set()
"""Tasks of tools; the event loop itself keeps no task."""


async def _apart(work: Coroutine[Any, Any, T]) -> T:
    """Return the result of work in a task of its own.

    A cancellation reaches it once. The SDK's scopes would cancel it again at each step of what it
    has to clean up.
    """
    task = asyncio.create_task(work)
    _AT_WORK.add(task)
    task.add_done_callback(_AT_WORK.discard)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        task.cancel()
        raise


def _shown(made: tools.Made) -> types.CallToolResult:
    """Return images themselves, and a link to each file."""
    outputs = made.job.outputs
    images = [
        types.ImageContent(data=base64.b64encode(data).decode(), mime_type=output.content_type)
        for output, data in zip(outputs, made.files, strict=False)
    ]
    links = [
        types.ResourceLink(
            uri=link,
            name=f"{made.job.id}/{output.index}",
            mime_type=output.content_type,
            size=output.bytes,
        )
        for output, link in zip(outputs, made.links, strict=True)
    ]
    about = {
        "job": made.job.id,
        "model": made.job.model,
        "outputs": [
            {
                "url": link,
                "content_type": output.content_type,
                "width": output.width,
                "height": output.height,
                "seed": output.seed,
            }
            for output, link in zip(outputs, made.links, strict=True)
        ],
        "warnings": [warned.model_dump() for warned in made.job.warnings],
    }
    return types.CallToolResult(
        content=[*images, *links, _text(json.dumps(about))], structured_content=about
    )


def _text(text: str) -> types.TextContent:
    return types.TextContent(text=text)
