"""Sender of a request: tenant, client, and how long its work is wanted."""

from __future__ import annotations

from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

T = TypeVar("T")


class WhileConnected(Protocol):
    """Run work for as long as its client is connected. Raises: ClientDisconnect."""

    def __call__(self, work: Coroutine[Any, Any, T], /) -> Coroutine[Any, Any, T]:
        """Run the work to its end; cancel it when the client leaves."""


@dataclass(frozen=True)
class Caller:
    """Sender of one request.

    Args:
        tenant: whose job it will be.
        client: with whom it shares what is bounded by client: its tenant, or without keys its
            address.
        connected: runs work that nobody needs once the client has left.
        traceparent: of the span that the job belongs to.
        previews: number of previews that the client has asked for.
        key_id: of the API key that it was sent with; None: no keys are required.
        request_id: of the request, for the log.
    """

    tenant: str
    client: str
    connected: WhileConnected
    traceparent: str | None = None
    previews: int = 0
    key_id: str | None = None
    request_id: str | None = None
