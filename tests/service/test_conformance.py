"""The running server against its OpenAPI document: schemathesis with all checks."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from fastapi import FastAPI
from fastapi.routing import APIRoute

from service.jobs.queue import Queue
from service.jobs.storage.object_store import Store
from service.routing import COMPATIBLE_ENDPOINTS, operation_id
from service.settings.settings import Settings
from service.settings.webhooks import WebhookSettings
from tests.service.adapters import INK, TAKING
from tests.service.conftest import served
from tests.service.standin import StandIn, picture

CONFIG = """
[phases.coverage]
# Values at the edges of their fields are most of all requests. The gate leaves them to the nightly
# case, and those of compatible endpoints to `test_endpoint_fuzz.py`.
enabled = {is_long}

[checks.positive_data_acceptance]
# 422 too: sizes, fields and tasks are the model's own; a schema for all models cannot tell them.
# 403: an adapter that the operator has configured is not a tenant's to delete.
# 304: it names what it has already, or anything (`If-None-Match: *`).
# 406: schemathesis asks for formats that the output cannot have.
# 416: how long the output is, the schema cannot tell either.
expected-statuses = ["2xx", "304", "403", "404", "406", "409", "416", "422"]

[checks.negative_data_rejection]
# 413 beside schemathesis' own: a text that is far too long is more than its body may have.
expected-statuses = [
  "400", "401", "403", "404", "405", "406", "409", "413", "415", "422", "428", "429", "5xx",
]

[[operations]]
# Clients of other APIs write numbers as texts, and true as 1, which those APIs read as well; what
# cannot be served is a 400 of some of them.
include-operation-id = {doors}
checks.negative_data_rejection.enabled = false
checks.positive_data_acceptance.expected-statuses = ["2xx", "304", "400", "404", "409", "422"]
"""
COMPATIBLE_ROUTES = [
    operation_id(route)
    for door in COMPATIBLE_ENDPOINTS
    for route in door.router.routes
    if isinstance(route, APIRoute)
]

GATE = 3
"""Examples of each operation when the gate runs the test."""


@pytest.fixture
def settings(settings: Settings) -> Settings:
    """Settings with every optional feature of the server allowed."""
    server = settings.server.model_copy(update={"allow_image_urls": True})
    webhooks = WebhookSettings(secret="whsec_" + "c2VjcmV0" * 4)
    return settings.model_copy(update={"server": server, "webhooks": webhooks})


@pytest.fixture
async def pool(queue: Queue, store: Store) -> AsyncIterator[StandIn]:
    """Stand-in worker whose model accepts adapters; the adapter `ink` has a preview."""
    key = "loras/previews/ink"
    await store.put(key, picture(), "image/png")
    ink = INK.model_copy(update={"preview": key})
    spec = TAKING.model_copy(update={"loras": TAKING.loras | {"ink": ink}})
    async with StandIn(queue, store, spec) as pool:
        yield pool


@pytest.mark.timeout(1800)  # 72 operations take four minutes on two busy cores
@pytest.mark.parametrize("examples", [GATE, 20])
async def test_server_matches_its_openapi_document(
    app: FastAPI, settings: Settings, pool: StandIn, tmp_path: Path, examples: int
) -> None:
    config = CONFIG.replace("{doors}", json.dumps(COMPATIBLE_ROUTES))
    config = config.replace("{is_long}", json.dumps(examples > GATE))
    (tmp_path / "schemathesis.toml").write_text(config)
    (tmp_path / "openapi.json").write_text(json.dumps(app.openapi()))
    async with served(app, settings) as address:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "schemathesis.cli"),
            *("--config-file", str(tmp_path / "schemathesis.toml")),
            *("run", "openapi.json", "--url", address, "--seed", "1"),
            *("--max-examples", str(examples), "--no-color", "--generation-database", "none"),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            cwd=tmp_path,
        )
        output, _ = await process.communicate()
    assert process.returncode == 0, output.decode()
