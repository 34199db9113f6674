"""Connection types and connection pool for redis-py.

The connections try several passwords, and disconnect from a server that has become a replica. Some
work that redis-py repeats for every command is done here more cheaply, with the same checks. It had
cost front ends more processor time than their jobs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from pydantic import SecretStr
from redis.asyncio.connection import (
    AbstractConnection,
    BlockingConnectionPool,
    Connection,
    SSLConnection,
    UnixDomainSocketConnection,
)
from redis.asyncio.sentinel import SentinelManagedConnection, SentinelManagedSSLConnection
from redis.connection import HiredisRespSerializer
from redis.credentials import CredentialProvider, UsernamePasswordCredentialProvider
from redis.exceptions import AuthenticationError, ConnectionError, ReadOnlyError

_PACKER = HiredisRespSerializer()
"""Command packer in C; redis-py's asynchronous connections use one in Python."""
AT_ONCE_BYTES = 2**15
"""Maximum size of a command that is sent without waiting: half of a transport's buffer limit."""


class Passwords(CredentialProvider):
    """Credentials of one user, read for each connection so that passwords may change at run time.

    Args:
        read: returns the passwords in the order in which they are tried.
    """

    def __init__(self, username: str | None, read: Callable[[], list[str]]) -> None:
        self._username = username
        self._read = read

    @classmethod
    def of(
        cls, username: str | None, file: Path | None, *secrets: SecretStr | None
    ) -> Passwords | None:
        """Create a provider from a file or from settings; None: no password is configured."""
        if file:
            return cls(username, lambda: _lines(file))
        passwords = [secret.get_secret_value() for secret in secrets if secret]
        return cls(username, lambda: passwords) if passwords else None

    def each(self) -> Iterator[CredentialProvider]:
        """Yield a credential provider for each password.

        Raises: AuthenticationError: none is readable.
        """
        for password in self._read():
            yield UsernamePasswordCredentialProvider(self._username, password)

    def get_credentials(self) -> tuple[str] | tuple[str, str]:
        """Return the Redis user and first password. Raises: AuthenticationError: as `each`."""
        return next(self.each()).get_credentials()

    async def get_credentials_async(self) -> tuple[str] | tuple[str, str]:
        """Return the Redis user and first password, without redis-py's warning about this."""
        return self.get_credentials()


def _lines(file: Path) -> list[str]:
    """Return the nonempty lines of a password file.

    Raises: AuthenticationError: the file cannot be read, temporarily or permanently.
    """
    try:
        lines = [line.strip() for line in file.read_text().splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise AuthenticationError(f"cannot read {file}: {reason}") from None
    return [line for line in lines if line] or [""]


class _BaseConnection(AbstractConnection):
    """Base of all Redis connections: several passwords, replica detection, fast sending."""

    async def on_connect_check_health(self, check_health: bool = True) -> None:
        """Log in with the first password that the server accepts."""
        provider = self.credential_provider
        *others, last = provider.each() if isinstance(provider, Passwords) else [provider]
        try:
            for self.credential_provider in others:
                with suppress(AuthenticationError):
                    return await super().on_connect_check_health(check_health)
            self.credential_provider = last
            await super().on_connect_check_health(check_health)
        finally:
            self.credential_provider = provider

    async def read_response(self, *args: Any, **options: Any) -> Any:
        """Read Redis's answer; treat a replica's rejection of a write as a lost connection.

        Nothing was executed then, and a new connection reaches the primary.
        """
        try:
            return await super().read_response(*args, **options)
        except ReadOnlyError as error:
            await self.disconnect()
            raise ConnectionError("the server is a replica now") from error

    def pack_command(self, *args: Any) -> list[bytes]:
        """Serialize a command to Redis. Raises: DataError."""
        packed: list[bytes] = _PACKER.pack(*args)
        return packed

    async def send_packed_command(self, command: Any, check_health: bool = True) -> None:
        """Send a command to Redis, without a task and timer if the transport accepts it at once.

        Raises:
            ConnectionError: the connection is lost.
            TimeoutError: the server does not read.
        """
        writer = self._writer
        if writer and self._goes_at_once(command, writer.transport):
            writer.writelines(command)
            return
        try:
            await super().send_packed_command(command, check_health)
        except RuntimeError as error:  # uvloop's, where the server has closed the connection
            raise ConnectionError(f"the connection is closed: {error}") from error

    def _goes_at_once(self, command: Any, transport: asyncio.WriteTransport) -> bool:
        """Return whether the transport accepts a command now and the connection needs no check."""
        if not self.is_connected or self.health_check_interval or not isinstance(command, list):
            return False
        is_free = not transport.is_closing() and transport.get_write_buffer_size() == 0
        return is_free and sum(map(len, command)) <= AT_ONCE_BYTES


class CommandPool(BlockingConnectionPool):
    """Connection pool that hands out and takes back idle connections without locks and timers.

    Locks and timers are only used if a caller must wait or a connection must be opened.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._waiting = 0

    async def get_connection(self, *args: Any, **options: Any) -> Any:
        """Return a Redis connection that is ready. Raises: redis.exceptions.RedisError, OSError."""
        if not self._available_connections:
            return await self._get_later()
        connection = self.get_available_connection()
        try:
            await self.ensure_connection(connection)
        except BaseException:
            await self.release(connection)
            raise
        return connection

    async def _get_later(self) -> Any:
        self._waiting += 1
        try:
            return await super().get_connection()
        finally:
            self._waiting -= 1

    async def release(self, connection: AbstractConnection) -> None:
        """Take a Redis connection back into the pool."""
        if self._waiting or connection.should_reconnect():
            await super().release(connection)
            return
        self._in_use_connections.remove(connection)
        self._available_connections.append(connection)


class TcpConnection(_BaseConnection, Connection):
    """Redis connection to a host and port."""


class TlsConnection(_BaseConnection, SSLConnection):
    """Redis connection to a host and port by TLS."""


class SocketConnection(_BaseConnection, UnixDomainSocketConnection):
    """Redis connection to a Unix domain socket."""


class _SentinelConnection(_BaseConnection):
    """Base of Redis connections that ask Sentinels for the primary whenever they connect."""

    async def send_packed_command(self, *args: Any, **options: Any) -> None:
        """Send a command, reconnecting if needed; redis-py would reuse the old address."""
        if not self.is_connected:
            await self.connect()
        await super().send_packed_command(*args, **options)


class PrimaryConnection(_SentinelConnection, SentinelManagedConnection):
    """Redis connection to the primary that Sentinels report."""


class PrimaryTlsConnection(_SentinelConnection, SentinelManagedSSLConnection):
    """Redis connection by TLS to the primary that Sentinels report."""


KINDS: dict[type[AbstractConnection], type[AbstractConnection]] = {
    Connection: TcpConnection,
    SSLConnection: TlsConnection,
    UnixDomainSocketConnection: SocketConnection,
}
"""Connection types by the redis-py types that an address selects."""
