"""Status of requests that fail after their response has begun, for metrics and traces."""

from __future__ import annotations

from starlette.types import Scope

_STATUS = "atelier.late_status"


def record_late_status(scope: Scope, status: int) -> None:
    """Record the status that a request would have had if its response had not begun."""
    scope[_STATUS] = status


def final_status(scope: Scope, sent: int) -> int:
    """Return the recorded status of a late error, or else the status that was sent."""
    return int(scope.get(_STATUS, sent))
