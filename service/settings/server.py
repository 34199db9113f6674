"""`[server]`: the front end's HTTP server."""

from __future__ import annotations

from ipaddress import IPv4Network, IPv6Network
from typing import Literal

from pydantic import Field

from service.settings.section import Section


class ServerSettings(Section):
    host: str = "127.0.0.1"
    port: int = Field(8000, ge=0, le=65535)
    """0 takes a free port."""
    published_at: str | None = None
    """The address at which this machine lets others in, where that is not `host`: of a container's
    port. It decides about `keys`."""
    keys: Literal["auto"] | bool = "auto"
    """Whether /v1 wants an API key; "auto": unless the address can be reached from this machine
    alone. Set it to true where a proxy on this machine lets others in."""
    keys_age_s: float = Field(1, ge=0)
    """How long a revoked key may still be taken."""
    allow_image_urls: bool = False
    """Whether `image` may be an http(s) address."""
    allow_networks: tuple[IPv4Network | IPv6Network, ...] = ()
    """Networks that image addresses and webhooks may reach besides the public internet."""
    fetch_timeout_s: float = Field(20, gt=0)
    """For fetching one image address, from the name's resolution to the last byte."""
    hosts: tuple[str, ...] = ()
    """Names by which clients may call this server, such as `atelier.example`; `*.example` is all
    below it. Addresses and `localhost` need no entry. Without keys other names are refused, since
    a foreign page may point a name of its own here; with keys only where names are listed."""
    max_connections: int = Field(4096, gt=0)
    """Of clients at the same time, and no more than three quarters of the file descriptors that
    the process may have; beyond that the one that keeps us waiting for the longest time is
    closed."""
    max_waiting: int | None = Field(None, gt=0)
    """Requests of one client (a tenant, or without keys an address) that wait for a job or follow
    its events; left out: a quarter of the connections."""
    header_s: float = Field(10, gt=0)
    """For a request's headers to arrive, from the connection or the first byte on."""
    body_s: float = Field(30, gt=0)
    """For a request's body to arrive, besides what it takes at `min_bytes_per_s`; and for a client
    to take something of its answer."""
    min_bytes_per_s: float = Field(16_384, gt=0)
    """Slower clients are closed."""
    keep_alive_s: float = Field(15, gt=0)
    """An event stream without news says so this often."""
    models_age_s: float = Field(1, ge=0)
    """How old the front end's copy of the registered models may get."""
    image_processes: int = Field(2, gt=0)
    """Request pictures that are checked at the same time, each in a process of its own; where there
    are keys, one tenant gets all but one of them."""
    shutdown_grace_s: float = Field(10, ge=0)
    idle_s: float = Field(5, gt=0)
    """How long a connection stays open between two requests. It has to be longer than a load
    balancer keeps its own, or that sends requests into connections which have just been closed."""
