"""MCP server of the SDK with this server's tools; stateless, with a session manager per request."""

from __future__ import annotations

import asyncio
import base64
import json
import sys
from collections.abc import Coroutine, Mapping
from functools import cache, partial
from typing import Any, TypeVar

from mcp import types
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel.server import Server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from starlette.types import Scope, Send

from service.admission.parse import parse_as
from service.admission.refusals import counting_refusals
from service.errors.problems import Problem
from service.recipes.recipe import generator
from service.responses.json_content import in_thread_if_large
from service.routes.compat.call import Call
from service.routes.compat.mcp import tools
from service.routes.compat.mcp.arguments import Arguments
from service.routes.compat.mcp.message import Message

CALL, TEXTS = "atelier.call", "atelier.texts"
"""Keys of the ASGI scope: the request's `Call`, and the long texts of its message."""
INSTRUCTIONS = (
    "Generate images and videos. Call list_models first if several models may be available. Refer"
    " to an image of an earlier result by its job's id."
)
UNBOUNDED = sys.maxsize
"""Body limit for the SDK, disabled since `Message` enforces the limit."""
Context = ServerRequestContext[Any, Any]
T = TypeVar("T")


async def serve(call: Call, scope: Scope, message: Message, send: Send) -> None:
    """Handle one MCP request of an agent. Raises: Problem: the body is invalid."""
    scope[CALL], scope[TEXTS] = call, message.texts
    problems: list[Problem] = []

    async def receive() -> Any:
        try:
            return await message()
        except Problem as problem:
            problems.append(problem)
            raise

    manager = StreamableHTTPSessionManager(
        _server(),
        stateless=True,
        max_request_body_size=UNBOUNDED,
    )
    try:
        async with manager.run():
            await manager.handle_request(scope, receive, send)
    except BaseExceptionGroup:
        if not problems:
            raise
    if problems:
        raise problems[0]


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
    return types.ListToolsResult(tools=[_tool_description(tool) for tool in tools.TOOLS])


def _tool_description(tool: tools.Tool) -> types.Tool:
    return types.Tool(
        name=tool.name,
        title=tool.title,
        description=tool.description,
        input_schema=tool.arguments.model_json_schema(),
        annotations=types.ToolAnnotations(read_only_hint=not tool.task, open_world_hint=False),
    )


async def _call_tool(context: Context, params: types.CallToolRequestParams) -> types.CallToolResult:
    """Run an MCP tool; a problem becomes its result, so that the agent can correct arguments."""
    assert context.request is not None
    call: Call = context.request.scope[CALL]
    try:
        return await _result(context, call, params)
    except Problem as problem:
        return types.CallToolResult(content=[_text(problem.detail)], is_error=True)


async def _result(
    context: Context, call: Call, params: types.CallToolRequestParams
) -> types.CallToolResult:
    """Parse an MCP tool's arguments and run it. Raises: Problem."""
    tool = tools.BY_NAME.get(params.name)
    if tool is None:
        message = f"there is no tool {params.name[:80]!r}; available: {', '.join(tools.BY_NAME)}"
        return types.CallToolResult(content=[_text(message)], is_error=True)
    assert context.request is not None
    texts: Mapping[str, str] = context.request.scope[TEXTS]
    arguments = {
        name: texts.get(value, value) if isinstance(value, str) else value
        for name, value in (params.arguments or {}).items()
    }
    if not issubclass(tool.arguments, Arguments):
        parse_as(tool.arguments, arguments)
        models = {"models": await tools.list_models(call)}
        return types.CallToolResult(content=[_text(json.dumps(models))], structured_content=models)
    async with counting_refusals(call.front, call.tenant) as attempt:
        attempt.record_model(arguments.get("model"))
        parsed = parse_as(tool.arguments, arguments)

    async def report(step: int, steps: int, stage: str) -> None:
        await context.session.report_progress(step, steps, f"{stage}: step {step} of {steps}")

    async def run_tool() -> types.CallToolResult:
        with call.front.bodies.holding(call.client) as hold:
            result = await tools.run_tool(call, tool, parsed, report, hold)
            size = sum(map(len, result.files))
            return await in_thread_if_large(partial(_tool_result, result), size)

    return await _run_shielded(run_tool())


_TASKS: set[asyncio.Task[Any]] = set()
"""References to the tools' tasks; the event loop holds only weak references."""


async def _run_shielded(work: Coroutine[Any, Any, T]) -> T:
    """Run the coroutine in a separate task, so that a cancellation reaches it once.

    A cancellation reaches the task once. The SDK's cancel scopes would cancel it again at each
    await of its cleanup.
    """
    task = asyncio.create_task(work)
    _TASKS.add(task)
    task.add_done_callback(_TASKS.discard)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        task.cancel()
        raise


def _tool_result(result: tools.ToolOutputs) -> types.CallToolResult:
    """Build an MCP tool's result: the images, a link to each file, and JSON metadata."""
    outputs = result.job.outputs
    images = [
        types.ImageContent(data=base64.b64encode(data).decode(), mime_type=output.content_type)
        for output, data in zip(outputs, result.files, strict=False)
    ]
    links = [
        types.ResourceLink(
            uri=link,
            name=f"{result.job.id}/{output.index}",
            mime_type=output.content_type,
            size=output.bytes,
        )
        for output, link in zip(outputs, result.links, strict=True)
    ]
    metadata = {
        "job": result.job.id,
        "model": result.job.model,
        "outputs": [
            {
                "url": link,
                "content_type": output.content_type,
                "width": output.width,
                "height": output.height,
                "seed": output.seed,
            }
            for output, link in zip(outputs, result.links, strict=True)
        ],
        "warnings": [warning.model_dump() for warning in result.job.warnings],
    }
    return types.CallToolResult(
        content=[*images, *links, _text(json.dumps(metadata))], structured_content=metadata
    )


def _text(text: str) -> types.TextContent:
    return types.TextContent(text=text)
