"""Connections to a primary that Sentinels watch: each new connection asks for its address."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any

from redis.asyncio import ConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel, SentinelConnectionPool
from redis.backoff import NoBackoff
from redis.credentials import CredentialProvider

from service.jobs.redis.connection_pool import (
    CommandPool,
    PrimaryConnection,
    PrimaryTlsConnection,
    TcpConnection,
    TlsConnection,
)
from service.jobs.redis.tasks import cancel
from service.settings.redis import SentinelAddress

SENTINEL_TIMEOUT_S = 1.0
"""Timeout of one Sentinel, after which the next one is asked."""


class Sentinels(Sentinel):
    """Client of a primary's Sentinels that merges concurrent lookups into one.

    A Sentinel that answers is moved to the front of the list. redis-py's own lookup swaps items of
    a list that concurrent lookups change meanwhile. A Sentinel could then be in the list twice, and
    another be lost, never asked again and never closed.
    """

    def __init__(self, clients: Iterable[Redis]) -> None:
        super().__init__([])
        self.sentinels = list(clients)
        self._lookup: asyncio.Task[tuple[str, int]] | None = None

    async def discover_master(self, service_name: str) -> tuple[str, int]:
        """Return host and port of the Redis primary. Raises: MasterNotFoundError."""
        if self._lookup is None or self._lookup.done():
            self._lookup = asyncio.create_task(super().discover_master(service_name))
            self._lookup.add_done_callback(_retrieve_exception)
        return await asyncio.shield(self._lookup)

    async def aclose(self) -> None:
        """Close the connections to the Sentinels."""
        if self._lookup:
            await cancel(self._lookup)
        await super().aclose()


def _retrieve_exception(asking: asyncio.Task[tuple[str, int]]) -> None:
    """Retrieve the exception of a Sentinel lookup, in case all its callers were canceled before."""
    if not asking.cancelled():
        asking.exception()


class PrimaryPool(SentinelConnectionPool, CommandPool):
    """Pool of connections to the Redis primary, which owns the connections to the Sentinels."""

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
    """Create a pool of connections to the Redis primary that Sentinels report.

    Args:
        tls: TLS options.
        credentials: for the Sentinels; None: they require none.
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
    connection_class = PrimaryTlsConnection if address.tls else PrimaryConnection
    return PrimaryPool(
        address.primary, manager, connection_class=connection_class, db=address.db, **tls, **options
    )
