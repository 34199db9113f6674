"""The front end's shared state: requests run on the event loop."""

from __future__ import annotations

import threading

import httpx

from tests.service.standin import MODEL, StandIn


def threads() -> set[threading.Thread]:
    return set(threading.enumerate())


async def test_no_request_is_taken_to_a_thread(http: httpx.AsyncClient, pool: StandIn) -> None:
    """FastAPI runs functions that are not coroutines in threads, which costs more than their
    work."""
    before = threads()
    answer = await http.post("/v1/generate", json={"model": MODEL, "prompt": "a star"})
    assert answer.status_code == 202
    for path in ("/v1/models", "/v1/jobs", answer.headers["location"]):
        assert (await http.get(path)).status_code == 200
    assert [thread.name for thread in threads() - before] == []
