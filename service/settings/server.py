"""`[server]`: the front end's HTTP server."""

from __future__ import annotations

from ipaddress import IPv4Network, IPv6Network
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field

from service.settings.section import Section

ANY_ORIGIN = "*"


def _origin(text: str) -> str:
    """Validate a CORS origin in the form that browsers send.

    Raises: ValueError: not an origin; the message states the form.
    """
    parts = urlsplit(text)
    if text != ANY_ORIGIN and text != f"{parts.scheme}://{parts.netloc}".lower():
        raise ValueError(
            f"{text!r} is not an origin: write scheme, host and port alone, such as"
            " 'https://studio.example', or '*'"
        )
    return text


Origin = Annotated[str, AfterValidator(_origin)]


def _url(text: str) -> str:
    """Validate the public URL of a server.

    Raises: ValueError: not a URL; the message states the form.
    """
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise ValueError(f"{text!r} is not a URL; write it as 'https://atelier.example'")
    return text


Url = Annotated[str, AfterValidator(_url)]


class ServerSettings(Section):
    """Front end's HTTP server: addresses, trust in proxies, limits and timeouts."""

    host: str = "127.0.0.1"
    """Address to listen on."""
    port: int = Field(8000, ge=0, le=65535)
    """Port to listen on; 0: any free port."""
    published_at: str | None = None
    """Address at which this machine publishes the server if it differs from `host`, such as a
    container's port. It affects `keys`."""
    keys: Literal["auto"] | bool = "auto"
    """Whether /v1 requires API keys. "auto": unless only this machine can reach the address. Set it
    to true if a proxy on this machine forwards external requests."""
    keys_age_s: float = Field(1, ge=0)
    """Longest time that a revoked key is still accepted."""
    allow_image_urls: bool = False
    """Whether input images may be http(s) URLs."""
    allow_networks: tuple[IPv4Network | IPv6Network, ...] = ()
    """Networks that image URLs and webhooks may reach in addition to the public internet."""
    fetch_timeout_s: float = Field(20, gt=0)
    """Timeout for fetching one image, including DNS resolution."""
    hosts: tuple[str, ...] = ()
    """Host names that clients may use for this server, such as `atelier.example`; `*.example`
    includes its subdomains. IP addresses and `localhost` need no entry. Without keys other names
    are always rejected, because a foreign page could resolve its own name to this server. With keys
    they are rejected only if this list is set."""
    trusted_proxies: tuple[IPv4Network | IPv6Network, ...] = ()
    """Networks of the proxies in front of this server, such as `["10.0.0.0/24", "203.0.113.7"]`,
    whose `X-Forwarded-For` and `X-Forwarded-Proto` are trusted. The client is the last address in
    `X-Forwarded-For` outside these networks. List all proxies that append an address, and nothing
    else. Default: no proxy is trusted, and the client is the connection's peer."""
    cors_origins: tuple[Origin, ...] = ()
    """Origins whose pages may call this server from a browser (CORS), such as
    `https://studio.example`. `*` is every page, and requires keys. Default: only the server's own
    pages; without keys others are rejected. Cookies are never accepted."""
    public_url: Url | None = None
    """URL by which clients reach this server, such as `https://atelier.example`, for links in
    responses. Default: according to the request."""
    link_s: float = Field(3600, gt=0)
    """Lifetime of signed links to outputs, which need no key."""
    max_connections: int = Field(4096, gt=0)
    """Maximum number of client connections, and at most three quarters of the process's file
    descriptors. Above it, the server closes the connection that has stalled longest."""
    max_waiting: int | None = Field(None, gt=0)
    """Maximum number of requests of one client (a tenant, or without keys an address) that wait for
    a job or stream its events. Default: a quarter of the connections."""
    header_s: float = Field(10, gt=0)
    """Time for a request's headers to arrive, from the connection or the first byte."""
    body_s: float = Field(30, gt=0)
    """Time for a request's body to arrive, in addition to its size divided by `min_bytes_per_s`.
    Also the time for a client to read some of a response."""
    min_bytes_per_s: float = Field(16_384, gt=0)
    """Lowest rate of a request's body; slower connections are closed."""
    cancel_when_left: bool = True
    """Whether a job is canceled when its waiting client disconnects. Only for compatible endpoints
    and `POST /v1/verify`, which give clients no way to return; never with an Idempotency-Key, and
    never for `POST /v1/generate`."""
    keep_alive_s: float = Field(15, gt=0)
    """Interval of keep-alive comments in event streams."""
    json_keep_alive_s: float = Field(15, ge=0)
    """Interval of white space before the JSON of a compatible endpoint that waits for its job, so
    that proxies keep the connection open. An error after the first interval has the usual body, but
    the status of success, which is sent by then. 0: no white space, and every error has its
    status."""
    models_age_s: float = Field(1, ge=0)
    """Maximum age of the front end's cache of registered models, uploaded adapters and tenants'
    settings."""
    image_processes: int = Field(2, gt=0)
    """Number of processes that check input images. With keys, one tenant may use all but one of
    them."""
    shutdown_grace_s: float = Field(10, ge=0)
    """Time for open requests to finish when the server stops; those that have not get 503."""
    idle_s: float = Field(620, gt=0)
    """Time that an idle connection stays open between two requests. It must exceed the load
    balancer's idle timeout, otherwise requests arrive on connections that were just closed.
    Google's load balancers have the longest, 600 s. If there are too many connections, idle ones
    are closed earlier."""
