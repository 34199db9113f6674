"""A running system verifies outputs by generating them again, in a batch and after a fresh
start."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from service.client import Client
from tests.e2e.conftest import Start
from tests.e2e.system import System


def drawn(system: System, **body: object) -> tuple[str, list[bytes]]:
    """Generate with `tiny`; returns the job's id and output files."""
    with Client(system.url) as client:
        client.submit({"model": "tiny", "prompt": "a star"} | body)
        list(client.follow())
        job = client.job()
        assert job["state"] == "succeeded"
        return job["id"], [client.output(output["url"]) for output in job["outputs"]]


def test_outputs_are_drawn_again(start: Start) -> None:
    system = start()
    job, files = drawn(system, num_images=4, seed=3)
    with Client(system.url) as client, ThreadPoolExecutor(4) as threads:
        verify = partial(client.verify, content_type="image/png")
        assert {verdict["verdict"] for verdict in threads.map(verify, files)} == {"identical"}
        reference = json.dumps({"job": job, "output": 2}).encode()
        before = client.verify(reference, "application/json")
        assert before["made_by"] == before["drawn_by"] is not None
        assert before["sha256"]["file"] == before["sha256"]["drawn"]
    system.close()
    with Client(start().url) as client:
        after = client.verify(files[1], "image/png")
        assert (after["verdict"], after["drawn_by"]) == ("identical", before["made_by"])
