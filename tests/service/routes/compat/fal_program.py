"""Program that uses fal's unmodified client: `python fal_program.py CALL APP ARGUMENTS`.

The client supports HTTPS only, and reads the host from the environment when it is imported.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import fal_client


def subscribe(app: str, arguments: dict[str, Any]) -> Any:
    statuses: list[str] = []

    def update(status: Any) -> None:
        statuses.append(type(status).__name__)

    result = fal_client.subscribe(app, arguments, with_logs=True, on_queue_update=update)
    return {"result": result, "seen": sorted({*statuses})}


def run(app: str, arguments: dict[str, Any]) -> Any:
    return fal_client.run(app, arguments)


def cancel(app: str, arguments: dict[str, Any]) -> Any:
    handle = fal_client.submit(app, arguments, priority="low")
    again = fal_client.SyncClient().get_handle(app, handle.request_id)
    before = again.status(with_logs=True)
    fal_client.cancel(app, handle.request_id)
    after = handle.status()
    return {
        "id": handle.request_id,
        "before": type(before).__name__,
        "after": type(after).__name__,
        "error_type": getattr(after, "error_type", None),
        "result": failure(lambda: handle.get()),
        "again": failure(handle.cancel),
    }


def failure(call: Any) -> Any:
    """Result of a call, or status, message and type of its error."""
    try:
        return call()
    except fal_client.FalClientHTTPError as error:
        return [error.status_code, error.message, error.error_type]


def refused(app: str, arguments: dict[str, Any]) -> Any:
    return failure(lambda: fal_client.submit(app, arguments))


if __name__ == "__main__":
    _, call, app, text = sys.argv
    print(json.dumps(globals()[call](app, json.loads(text))))
