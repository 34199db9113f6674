"""`[redis]`: the server of the queue, and how to reach it."""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit

from pydantic import FilePath, SecretStr, model_validator

from service.settings.section import Section

SENTINEL_SCHEMES = ("redis+sentinel", "rediss+sentinel")
SENTINEL_PORT = 26379


class SentinelAddress(NamedTuple):
    """Parts of a URL that names Redis Sentinels."""

    sentinels: list[tuple[str, int]]
    primary: str
    """Name of the monitored primary."""
    db: int
    username: str | None
    password: str | None
    tls: bool


def sentinel_address(url: str) -> SentinelAddress | None:
    """Parse `redis+sentinel://HOST:PORT,HOST:PORT/NAME?db=N`; None: not a Sentinel URL.

    Raises: ValueError: a Sentinel scheme, but not this form.
    """
    scheme, _, rest = url.partition("://")
    if scheme not in SENTINEL_SCHEMES:
        return None
    address, _, query = rest.partition("?")
    hosts, _, name = address.rpartition("/")
    secret, _, hosts = hosts.rpartition("@")
    username, _, password = secret.partition(":")
    parts = [urlsplit(f"//{host}") for host in hosts.split(",")]
    sentinels = [(part.hostname, part.port or SENTINEL_PORT) for part in parts if part.hostname]
    options = parse_qs(query, strict_parsing=True) if query else {}
    db = options.pop("db", ["0"])
    if not name or len(sentinels) < len(parts) or options or not db[0].isdecimal():
        raise ValueError("url of Sentinels is not redis+sentinel://HOST:PORT,HOST:PORT/NAME?db=0")
    return SentinelAddress(
        sentinels,
        unquote(name),
        int(db[0]),
        unquote(username) or None,
        unquote(password) or None,
        scheme == "rediss+sentinel",
    )


class RedisSettings(Section):
    """Redis server of the queue, keys and events."""

    url: str | None = None
    """Address of the server: `redis://…`, `rediss://…` (TLS) or `unix://…`. For Sentinels, which
    locate the primary: `redis+sentinel://HOST:26379,HOST:26379/NAME`, or `rediss+sentinel://…` with
    TLS to both. Default: `atelier up` embeds a server; `serve` and `worker` refuse to start."""
    username: str | None = None
    """User of the server's ACL. Default: its default user."""
    password: SecretStr | None = None
    """Password of that user."""
    next_password: SecretStr | None = None
    """Password that is tried if `password` is rejected, for rotation."""
    password_file: FilePath | None = None
    """File with one password, or several, one per line, tried in order. Each connection reads it
    again."""
    sentinel_username: str | None = None
    """User of the Sentinels' ACL. Default: their default user."""
    sentinel_password: SecretStr | None = None
    """Password of that user."""
    sentinel_password_file: FilePath | None = None
    """File with the Sentinels' passwords, in the format of `password_file`."""
    ca_file: FilePath | None = None
    """CA certificates for the server. Default: the system's."""
    cert_file: FilePath | None = None
    """Client certificate, if the server requires one."""
    key_file: FilePath | None = None
    """Key of `cert_file`."""
    check_name: bool = True
    """Whether the server's certificate must match the host of `url`. Use false only with a
    `ca_file` whose authority certifies only that server, as Memorystore's does."""

    @model_validator(mode="after")
    def _fits(self) -> RedisSettings:
        try:
            parts = urlsplit(self.url or "")
        except ValueError:  # the message may quote a part of the password
            raise ValueError("url is not an address such as redis://HOST:PORT") from None
        secret = self.password or self.password_file
        of_sentinels = (
            self.sentinel_username or self.sentinel_password or self.sentinel_password_file
        )
        if self.url is None and (self.username or secret):
            raise ValueError("username and password require url: the embedded server has none")
        if self.password and self.password_file:
            raise ValueError("password and password_file exclude each other")
        if self.next_password and not self.password:
            raise ValueError(
                "next_password requires password; in a password_file, add a line instead"
            )
        if self.sentinel_password and self.sentinel_password_file:
            raise ValueError("sentinel_password and sentinel_password_file exclude each other")
        if of_sentinels and parts.scheme not in SENTINEL_SCHEMES:
            raise ValueError("settings that begin with sentinel_ require a url redis+sentinel://…")
        if secret and parts.password:
            raise ValueError("url also contains a password; keep one of them")
        if (self.cert_file is None) != (self.key_file is None):
            raise ValueError("cert_file and key_file go together; set both or none")
        if (self.ca_file or self.cert_file) and not parts.scheme.startswith("rediss"):
            raise ValueError(
                "ca_file and cert_file require a url rediss://… or rediss+sentinel://…"
            )
        if not self.check_name and not self.ca_file:
            raise ValueError(
                "check_name = false requires ca_file: otherwise any certificate would be accepted"
            )
        try:
            sentinel_address(self.url or "")
        except ValueError:  # the message may quote a part of the password
            raise ValueError(
                "url of Sentinels must be like redis+sentinel://HOST:PORT,HOST:PORT/NAME?db=0"
            ) from None
        return self
