"""`[redis]`: the server of the queue, and how to reach it."""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit

from pydantic import FilePath, SecretStr, model_validator

from service.settings.section import Section

SENTINEL_SCHEMES = ("redis+sentinel", "rediss+sentinel")
SENTINEL_PORT = 26379


class SentinelAddress(NamedTuple):
    """Parts of a url that names Sentinels."""

    sentinels: list[tuple[str, int]]
    primary: str
    """Name by which the Sentinels know the server."""
    db: int
    username: str | None
    password: str | None
    tls: bool


def sentinel_address(url: str) -> SentinelAddress | None:
    """Parse `redis+sentinel://HOST:PORT,HOST:PORT/NAME?db=N`; None: no Sentinels are named.

    Raises: ValueError: it names Sentinels, and is none of these.
    """
    scheme, _, rest = url.partition("://")
    if scheme not in SENTINEL_SCHEMES:
        return None
    place, _, query = rest.partition("?")
    hosts, _, name = place.rpartition("/")
    secret, _, hosts = hosts.rpartition("@")
    username, _, password = secret.partition(":")
    parts = [urlsplit(f"//{host}") for host in hosts.split(",")]
    found = [(part.hostname, part.port or SENTINEL_PORT) for part in parts if part.hostname]
    options = parse_qs(query, strict_parsing=True) if query else {}
    db = options.pop("db", ["0"])
    if not name or len(found) < len(parts) or options or not db[0].isdecimal():
        raise ValueError("url of Sentinels is no redis+sentinel://HOST:PORT,HOST:PORT/NAME?db=0")
    return SentinelAddress(
        found,
        unquote(name),
        int(db[0]),
        unquote(username) or None,
        unquote(password) or None,
        scheme == "rediss+sentinel",
    )


class RedisSettings(Section):
    """The Redis server of queue, keys and events."""

    url: str | None = None
    """Address of the server: `redis://…`, `rediss://…` (TLS) or `unix://…`; or of Sentinels that
    know which server is the primary: `redis+sentinel://HOST:26379,HOST:26379/NAME`, or
    `rediss+sentinel://…`, which is TLS to both. Left out: `atelier up` embeds a server, and `serve`
    and `worker` refuse to start."""
    username: str | None = None
    """User of the server's ACL. Left out: its default user."""
    password: SecretStr | None = None
    """Password of that user."""
    next_password: SecretStr | None = None
    """Password that is tried where `password` is refused, while one takes the other's place."""
    password_file: FilePath | None = None
    """File with the password, or with several, one a line, which are tried in their order. Read
    again for each connection."""
    sentinel_username: str | None = None
    """User of the Sentinels' ACL. Left out: their default user."""
    sentinel_password: SecretStr | None = None
    """Password of that user."""
    sentinel_password_file: FilePath | None = None
    """File with the Sentinels' password, or with several, as `password_file`."""
    ca_file: FilePath | None = None
    """Certificates of the authorities that may vouch for the server. Left out: the system's."""
    cert_file: FilePath | None = None
    """Client certificate, where the server wants one."""
    key_file: FilePath | None = None
    """Key of `cert_file`."""
    check_name: bool = True
    """Whether the server's certificate must bear the host of `url`. False is for a `ca_file` whose
    authority vouches for that server alone, as a Memorystore's does."""

    @model_validator(mode="after")
    def _fits(self) -> RedisSettings:
        try:
            parts = urlsplit(self.url or "")
        except ValueError:  # which may quote a part of the password
            raise ValueError("url is no address, such as redis://HOST:PORT") from None
        secret = self.password or self.password_file
        of_sentinels = (
            self.sentinel_username or self.sentinel_password or self.sentinel_password_file
        )
        if self.url is None and (self.username or secret):
            raise ValueError("username and password need url: the embedded server has none")
        if self.password and self.password_file:
            raise ValueError("password and password_file exclude each other")
        if self.next_password and not self.password:
            raise ValueError("next_password needs password; of a file it is a further line")
        if self.sentinel_password and self.sentinel_password_file:
            raise ValueError("sentinel_password and sentinel_password_file exclude each other")
        if of_sentinels and parts.scheme not in SENTINEL_SCHEMES:
            raise ValueError("what begins with sentinel_ needs a url redis+sentinel://…")
        if secret and parts.password:
            raise ValueError("there is a password in url, too; keep one of them")
        if (self.cert_file is None) != (self.key_file is None):
            raise ValueError("cert_file and key_file belong together")
        if (self.ca_file or self.cert_file) and not parts.scheme.startswith("rediss"):
            raise ValueError("ca_file and cert_file need a url rediss://… or rediss+sentinel://…")
        if not self.check_name and not self.ca_file:
            raise ValueError("check_name = false needs ca_file: else any certificate would do")
        try:
            sentinel_address(self.url or "")
        except ValueError:  # as above
            raise ValueError(
                "url of Sentinels must be like redis+sentinel://HOST:PORT,HOST:PORT/NAME?db=0"
            ) from None
        return self
