"""Kinds of connections, and the pool of them.

Each tries several passwords, and leaves a server that is a replica now. What redis-py does anew for
every command is done here in the cheapest way that keeps its checks: a front end's requests spent
more processor time on that than on their jobs.
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
"""Packer of commands in C; redis-py's asynchronous connections have only one in Python."""
AT_ONCE_BYTES = 2**15
"""Size up to which a command is sent without waiting, half of what a transport takes at once."""


class Passwords(CredentialProvider):
    """Passwords of one user, read for each connection, so that they may change while we run.

    Args:
        read: returns them in the order in which they are tried.
    """

    def __init__(self, username: str | None, read: Callable[[], list[str]]) -> None:
        self._username = username
        self._read = read

    @classmethod
    def of(
        cls, username: str | None, file: Path | None, *secrets: SecretStr | None
    ) -> Passwords | None:
        """Return those of a file or of the settings; None: there are none."""
        if file:
            return cls(username, lambda: _lines(file))
        given = [secret.get_secret_value() for secret in secrets if secret]
        return cls(username, lambda: given) if given else None

    def each(self) -> Iterator[CredentialProvider]:
        """Yield a provider of each password. Raises: AuthenticationError: none can be read."""
        for password in self._read():
            yield UsernamePasswordCredentialProvider(self._username, password)

    def get_credentials(self) -> tuple[str] | tuple[str, str]:
        """Return user and first password. Raises: AuthenticationError: as `each`."""
        return next(self.each()).get_credentials()

    async def get_credentials_async(self) -> tuple[str] | tuple[str, str]:
        """redis-py's own does the same, with a warning each time."""
        return self.get_credentials()


def _lines(file: Path) -> list[str]:
    """Return the lines of a file that are not empty.

    Raises: AuthenticationError: nothing can be read there, for the moment or for good.
    """
    try:
        lines = [line.strip() for line in file.read_text().splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no UTF-8"
        raise AuthenticationError(f"cannot read {file}: {reason}") from None
    return [line for line in lines if line] or [""]


class _Lasting(AbstractConnection):
    """Base of all kinds."""

    async def on_connect_check_health(self, check_health: bool = True) -> None:
        """Log in with the first password that the server takes."""
        given = self.credential_provider
        *others, last = given.each() if isinstance(given, Passwords) else [given]
        try:
            for self.credential_provider in others:
                with suppress(AuthenticationError):
                    return await super().on_connect_check_health(check_health)
            self.credential_provider = last
            await super().on_connect_check_health(check_health)
        finally:
            self.credential_provider = given

    async def read_response(self, *args: Any, **options: Any) -> Any:
        """Read an answer; a replica's refusal to write counts as a lost connection.

        Nothing was done then, and whoever connects anew finds the primary.
        """
        try:
            return await super().read_response(*args, **options)
        except ReadOnlyError as error:
            await self.disconnect()
            raise ConnectionError("the server is a replica now") from error

    def pack_command(self, *args: Any) -> list[bytes]:
        """Pack a command. Raises: DataError."""
        return _PACKER.pack(*args)

    async def send_packed_command(self, command: Any, check_health: bool = True) -> None:
        """Send a command; one that nothing has to wait for needs no task and timer of its own."""
        writer = self._writer
        if writer and self._goes_at_once(command, writer.transport):
            writer.writelines(command)
        else:
            await super().send_packed_command(command, check_health)

    def _goes_at_once(self, command: Any, transport: asyncio.WriteTransport) -> bool:
        """Return whether the transport takes it now, on a connection that needs no check."""
        if not self.is_connected or self.health_check_interval or not isinstance(command, list):
            return False
        is_free = not transport.is_closing() and transport.get_write_buffer_size() == 0
        return is_free and sum(map(len, command)) <= AT_ONCE_BYTES


class CommandPool(BlockingConnectionPool):
    """Pool that hands out idle connections, and takes them back, without locks and timers.

    These are for those who have to wait, and for connections that have to be made.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._waiting = 0

    async def get_connection(self, *args: Any, **options: Any) -> Any:
        """Return a connection that is ready. Raises: redis.exceptions.RedisError, OSError."""
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
        """Take a connection back."""
        if self._waiting or connection.should_reconnect():
            return await super().release(connection)
        self._in_use_connections.remove(connection)
        self._available_connections.append(connection)


class TcpConnection(_Lasting, Connection):
    """Connection to a host and port."""


class TlsConnection(_Lasting, SSLConnection):
    """Connection to a host and port by TLS."""


class SocketConnection(_Lasting, UnixDomainSocketConnection):
    """Connection to a socket in a folder."""


class _Asking(_Lasting):
    """Base of connections that ask Sentinels whenever they begin."""

    async def send_packed_command(self, *args: Any, **options: Any) -> None:
        """Send a command; redis-py alone would repeat it at the address of before."""
        if not self.is_connected:
            await self.connect()
        await super().send_packed_command(*args, **options)


class PrimaryConnection(_Asking, SentinelManagedConnection):
    """Connection to the server that Sentinels call the primary."""


class PrimaryTlsConnection(_Asking, SentinelManagedSSLConnection):
    """The same by TLS."""


KINDS: dict[type[AbstractConnection], type[AbstractConnection]] = {
    Connection: TcpConnection,
    SSLConnection: TlsConnection,
    UnixDomainSocketConnection: SocketConnection,
}
"""Kinds by those of redis-py that an address stands for."""
