"""`[server]`: the front end's HTTP server."""

from __future__ import annotations

from ipaddress import IPv4Network, IPv6Network
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field

from service.settings.section import Section

ANY_ORIGIN = "*"


def _origin(text: str) -> str:
    """Return an origin as browsers write it. Raises: ValueError: it is none; says why."""
    parts = urlsplit(text)
    if text != ANY_ORIGIN and text != f"{parts.scheme}://{parts.netloc}".lower():
        raise ValueError(
            f"{text!r} is no origin: write scheme, host and port alone, such as"
            " 'https://studio.example', or '*'"
        )
    return text


Origin = Annotated[str, AfterValidator(_origin)]


def _url(text: str) -> str:
    """Return the address of a server. Raises: ValueError: it is none; says why."""
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise ValueError(f"{text!r} is no address; write it as 'https://atelier.example'")
    return text


Url = Annotated[str, AfterValidator(_url)]


class ServerSettings(Section):
    """The front end's HTTP server."""

    host: str = "127.0.0.1"
    """Address to listen on."""
    port: int = Field(8000, ge=0, le=65535)
    """Port to listen on; 0 takes a free one."""
    published_at: str | None = None
    """Address at which this machine lets others in, where that is not `host`: of a container's
    port. It decides about `keys`."""
    keys: Literal["auto"] | bool = "auto"
    """Whether /v1 requires API keys. "auto": unless only this machine can reach the address. Set it
    to true where a proxy on this machine lets others in."""
    keys_age_s: float = Field(1, ge=0)
    """Longest time that a revoked key is still accepted."""
    allow_image_urls: bool = False
    """Whether input images may be http(s) addresses."""
    allow_networks: tuple[IPv4Network | IPv6Network, ...] = ()
    """Networks that image addresses and webhooks may reach besides the public internet."""
    fetch_timeout_s: float = Field(20, gt=0)
    """Timeout for fetching one image, from the lookup of its host's name to the last byte."""
    hosts: tuple[str, ...] = ()
    """Names by which clients may call this server, such as `atelier.example`; `*.example` is all
    below it. Addresses and `localhost` need no entry. Without keys other names are refused, since a
    foreign page may point a name of its own here; with keys only where names are listed."""
    trusted_proxies: tuple[IPv4Network | IPv6Network, ...] = ()
    """Networks of the proxies before this server, such as `["10.0.0.0/24", "203.0.113.7"]`, whose
    `X-Forwarded-For` and `X-Forwarded-Proto` are believed: a request's address is the last one in
    the former that is not of these networks. List proxies only, and each that adds an address.
    Left out: nobody is believed, and the address is that of whoever has connected."""
    cors_origins: tuple[Origin, ...] = ()
    """Origins whose pages may call this server from a browser, such as `https://studio.example`
    (CORS); `*` is every page, and wants keys. Left out: only the server's own pages; without keys
    others are refused. Cookies are never part of it."""
    public_url: Url | None = None
    """Address by which clients reach this server, such as `https://atelier.example`, for links in
    answers. Left out: as the request has called it."""
    link_s: float = Field(3600, gt=0)
    """Lifetime of links to outputs that need no key."""
    max_connections: int = Field(4096, gt=0)
    """Maximum number of client connections, and at most three quarters of the process's file
    descriptors. Beyond it the connection that has kept the server waiting longest is closed."""
    max_waiting: int | None = Field(None, gt=0)
    """Maximum number of requests of one client (a tenant, or without keys an address) that wait for
    a job or follow its events. Left out: a quarter of the connections."""
    header_s: float = Field(10, gt=0)
    """Time for a request's headers to arrive, from the connection or the first byte."""
    body_s: float = Field(30, gt=0)
    """Time for a request's body to arrive, besides what it takes at `min_bytes_per_s`, and for a
    client to read some of its answer."""
    min_bytes_per_s: float = Field(16_384, gt=0)
    """Lowest rate of a body; slower connections are closed."""
    cancel_when_left: bool = True
    """Canceling of a job when the client leaves that waits for it, where another API or
    `POST /v1/verify` gives it no way to come back: not with an Idempotency-Key, and never a job of
    `POST /v1/generate`."""
    keep_alive_s: float = Field(15, gt=0)
    """Interval of keep-alive comments in event streams."""
    models_age_s: float = Field(1, ge=0)
    """Maximum age of the front end's copy of the registered models, of uploaded adapters, and of
    tenants' settings."""
    image_processes: int = Field(2, gt=0)
    """Number of processes that check input images. With keys, one tenant gets all but one of
    them."""
    shutdown_grace_s: float = Field(10, ge=0)
    """Time for open requests to end when the server stops."""
    idle_s: float = Field(5, gt=0)
    """Time that a connection stays open between two requests. It must be longer than a load
    balancer keeps its own, or requests arrive on connections that were just closed."""
