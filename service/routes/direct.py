"""Route whose function is called without FastAPI's solving of dependencies."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from fastapi import Request
from fastapi.routing import APIRoute
from starlette.types import Receive, Scope, Send

from service.front_end.front_end import FrontEnd, bearer, key_id_of, tenant_of_key
from service.http.query_parameters import check_query

PARAMETERS = {"request", "front", "tenant", "key_id"}


class DirectRoute(APIRoute):
    """Route of a function that takes `PARAMETERS`, and returns its answer.

    FastAPI solves a function's dependencies anew with each request, which took as much processor
    time as a job's way into the queue. They stay in the function's signature, for the description
    of the API; what they do is done here, with the check of every route of ours.

    Raises: TypeError: the function takes something else.
    """

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        if (taken := set(inspect.signature(endpoint).parameters)) != PARAMETERS:
            raise TypeError(f"{endpoint.__name__} takes {sorted(taken)}, not {sorted(PARAMETERS)}")
        super().__init__(path, endpoint, **options)

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or say that there is no such method."""
        if scope["method"] not in (self.methods or ()):
            return await super().handle(scope, receive, send)
        request = Request(scope, receive, send)
        front: FrontEnd = request.app.state.front
        await check_query(request)
        given = await bearer(request)
        key = given.credentials if given else None
        tenant = await tenant_of_key(front, key)
        answer = await self.endpoint(
            request=request, front=front, tenant=tenant, key_id=key_id_of(front, key)
        )
        await answer(scope, receive, send)
