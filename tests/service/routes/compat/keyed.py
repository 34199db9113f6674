"""Base class for tests with a server that requires API keys."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from redis.asyncio import Redis

from service.auth.api_keys import ApiKeys
from service.settings.settings import Settings
from tests.service.test_keys import with_keys


class Keyed:
    """Overrides the settings so that the app requires keys."""

    @pytest.fixture
    async def keys(self, redis_url: str, empty_redis: Redis) -> AsyncIterator[ApiKeys]:
        keys = ApiKeys(Redis.from_url(redis_url, decode_responses=True))
        yield keys
        await keys.close()

    @pytest.fixture
    def settings(self, settings: Settings, redis_url: str) -> Settings:
        return with_keys(settings, redis_url)
