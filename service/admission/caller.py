"""Sender of a request: tenant, client address, connection, and identifiers for the log."""

from __future__ import annotations

from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

T = TypeVar("T")


class WhileConnected(Protocol):
    """Runner of a coroutine that is cancelled when the client disconnects.

    Raises: ClientDisconnect.
    """

    def __call__(self, work: Coroutine[Any, Any, T], /) -> Coroutine[Any, Any, T]:
        """Run the coroutine to its end, or cancel it when the client disconnects."""


@dataclass(frozen=True)
class Caller:
    """Sender of one request.

    Args:
        tenant: owner of the job.
        client: key of the per-client limits: the tenant, or the client's address if keys are not
            required.
        connected: runs a coroutine and cancels it when the client disconnects.
        traceparent: W3C trace context of the job's parent span.
        previews: number of previews that the client requested.
        key_id: id of the API key of the request; None if keys are not required.
        request_id: id of the request, for the log.
    """

    tenant: str
    client: str
    while_connected: WhileConnected
    traceparent: str | None = None
    previews: int = 0
    key_id: str | None = None
    request_id: str | None = None
