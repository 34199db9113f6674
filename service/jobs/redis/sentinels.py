"""Connections to a server that Sentinels watch: each begins with the question which one it is."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any

from redis.asyncio import ConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel, SentinelConnectionPool
from redis.backoff import NoBackoff
from redis.credentials import CredentialProvider

from service.jobs.redis.connections import (
    CommandPool,
    PrimaryConnection,
    PrimaryTlsConnection,
    TcpConnection,
    TlsConnection,
)
from service.jobs.redis.tasks import cancel
from service.settings.redis import SentinelAddress

SENTINEL_TIMEOUT_S = 1.0
"""Time that one Sentinel has to answer until the next one is asked."""


class Sentinels(Sentinel):
    """Sentinels of a primary, asked once for all connections that want to know at a time.

    Whichever answers is moved to the front. redis-py's own swaps places of a list that others have
    changed while it waited: a Sentinel could stand there twice and another one no more, never asked
    again and never closed.
    """

    def __init__(self, clients: Iterable[Redis]) -> None:
        super().__init__([])
        self.sentinels = list(clients)
        self._asking: asyncio.Task[tuple[str, int]] | None = None

    async def discover_master(self, service_name: str) -> tuple[str, int]:
        """Return host and port of the primary. Raises: MasterNotFoundError."""
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(super().discover_master(service_name))
            self._asking.add_done_callback(_hear)
        return await asyncio.shield(self._asking)

    async def aclose(self) -> None:
        """Close the connections."""
        if self._asking:
            await cancel(self._asking)
        await super().aclose()


def _hear(asking: asyncio.Task[tuple[str, int]]) -> None:
    """Take note of a failure that all who have asked may have left before."""
    if not asking.cancelled():
        asking.exception()


class PrimaryPool(SentinelConnectionPool, CommandPool):
    """Pool of connections to the primary, which owns the connections to the Sentinels."""

    async def disconnect(self, inuse_connections: bool = True) -> None:
        """Close the idle connections, or all of them and those to the Sentinels."""
        await super().disconnect(inuse_connections)
        if inuse_connections:
            await self.sentinel_manager.aclose()


def primary_pool(
    address: SentinelAddress,
    tls: Mapping[str, Any],
    credentials: CredentialProvider | None,
    **options: Any,
) -> PrimaryPool:
    """Return a pool of connections to the primary.

    Args:
        tls: options of TLS.
        credentials: the Sentinels'; None: they want none.
        options: of the pool and of connections to the primary.
    """
    manager = Sentinels(
        Redis.from_pool(
            ConnectionPool(
                TlsConnection if address.tls else TcpConnection,
                host=host,
                port=port,
                decode_responses=True,
                protocol=2,
                socket_timeout=SENTINEL_TIMEOUT_S,
                socket_connect_timeout=SENTINEL_TIMEOUT_S,
                retry=Retry(NoBackoff(), 0),
                credential_provider=credentials,
                **tls,
            )
        )
        for host, port in address.sentinels
    )
    kind = PrimaryTlsConnection if address.tls else PrimaryConnection
    return PrimaryPool(
        address.primary, manager, connection_class=kind, db=address.db, **tls, **options
    )
