"""An installation in the middle of an upgrade, for tests that start processes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from redis.asyncio import Redis

from service.auth.api_keys import ApiKeys
from tests.skew import last_release
from tests.skew.installation import Installation, Version

DEFAULTS = {"width": 32, "height": 32, "num_inference_steps": 4, "max_sequence_length": 16}


@pytest.fixture(scope="module")
def new() -> Version:
    return Version("this-version", last_release.ROOT)


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Version:
    """The last release; tests are skipped with a reason if its code is missing."""
    try:
        folder = last_release.extract(tmp_path_factory.mktemp("last-release"))
    except last_release.NotHere as error:
        pytest.skip(str(error))
    return Version("last-release", folder)


@pytest.fixture(scope="module")
def installation(
    tmp_path_factory: pytest.TempPathFactory, old: Version, new: Version
) -> Iterator[Installation]:
    """Front ends of both versions; tests start the pools."""
    from tests.parity.tiny import make_flux  # imports torch

    folder = tmp_path_factory.mktemp("skew")
    checkpoint = make_flux(
        folder / "checkpoint", transformer={"num_layers": 1, "num_single_layers": 1}
    )
    (checkpoint / "atelier.json").write_text(json.dumps({"defaults": DEFAULTS}))
    with ExitStack() as started:
        running = Installation(folder, checkpoint, started)
        for version in (old, new):
            running.start_front(version)
        yield running


@pytest.fixture(scope="module")
def key(installation: Installation) -> str:
    """API key of a tenant."""
    return asyncio.run(_made(installation.redis_url, "acme"))


@pytest.fixture(scope="module")
def operators_key(installation: Installation) -> str:
    return asyncio.run(_made(installation.redis_url, None))


async def _made(url: str, tenant: str | None) -> str:
    async with Redis.from_url(url, decode_responses=True) as redis:
        keys = ApiKeys(redis)
        _, text = await (keys.create(tenant) if tenant else keys.create_operator("alice"))
        return text
