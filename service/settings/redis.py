"""`[redis]`: the server of the queue, and how to reach it."""

from __future__ import annotations

from urllib.parse import urlsplit

from pydantic import FilePath, SecretStr, model_validator

from service.settings.section import Section


class RedisSettings(Section):
    """The Redis server of queue, keys and events."""

    url: str | None = None
    """Address of the server: `redis://…`, `rediss://…` (TLS) or `unix://…`. Left out: `atelier up`
    embeds a server, and `serve` and `worker` refuse to start."""
    username: str | None = None
    """User of the server's ACL. Left out: its default user."""
    password: SecretStr | None = None
    """Password of that user."""
    password_file: FilePath | None = None
    """File with the password, read again for each connection."""
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
        if self.url is None and (self.username or secret):
            raise ValueError("username and password need url: the embedded server has none")
        if self.password and self.password_file:
            raise ValueError("password and password_file exclude each other")
        if secret and parts.password:
            raise ValueError("there is a password in url, too; keep one of them")
        if (self.cert_file is None) != (self.key_file is None):
            raise ValueError("cert_file and key_file belong together")
        if (self.ca_file or self.cert_file) and parts.scheme != "rediss":
            raise ValueError("ca_file and cert_file need a url that begins with rediss://")
        if not self.check_name and not self.ca_file:
            raise ValueError("check_name = false needs ca_file: else any certificate would do")
        return self
