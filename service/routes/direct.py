"""Route class that calls its function without FastAPI's dependency resolution."""

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
    """Route of a function that takes `PARAMETERS` and returns its response.

    FastAPI resolves a function's dependencies for each request, which took as much CPU time as
    queueing a job. They stay in the signature for the OpenAPI document. This class computes their
    values and checks the query parameters.

    Raises: TypeError: the function has other parameters.
    """

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        if (parameters := set(inspect.signature(endpoint).parameters)) != PARAMETERS:
            raise TypeError(
                f"{endpoint.__name__} takes {sorted(parameters)}, not {sorted(PARAMETERS)}"
            )
        super().__init__(path, endpoint, **options)

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Call the route's function for a request, or respond 405 to other methods."""
        if scope["method"] not in (self.methods or ()):
            return await super().handle(scope, receive, send)
        request = Request(scope, receive, send)
        front: FrontEnd = request.app.state.front
        await check_query(request)
        credentials = await bearer(request)
        key = credentials.credentials if credentials else None
        tenant = await tenant_of_key(front, key)
        answer = await self.endpoint(
            request=request, front=front, tenant=tenant, key_id=key_id_of(front, key)
        )
        await answer(scope, receive, send)
