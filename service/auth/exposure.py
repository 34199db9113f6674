"""Exposure of the server: which machines can reach it, and whether keys are required."""

from __future__ import annotations

import socket

from service.settings.loopback import is_local
from service.settings.section import ConfigError
from service.settings.server import ANY_ORIGIN, ServerSettings
from service.settings.settings import Settings


def wants_keys(server: ServerSettings, address: str) -> bool:
    """Decide whether a server that listens at that address requires API keys."""
    return not is_local(address) if server.keys == "auto" else server.keys


def operators_need_keys(server: ServerSettings) -> bool:
    """Decide whether /v1/admin requires a key: always, if other machines can reach it."""
    return server.keys is True or not is_local(server.published_at or server.host)


def reached_at(server: ServerSettings, listener: socket.socket | None) -> str:
    """Return the address by which clients reach a server with that listener or these settings."""
    if server.published_at:
        return server.published_at
    return address_of(listener) if listener else server.host


def listening_at(settings: Settings, address: str) -> Settings:
    """Resolve `server.keys = "auto"` by the address.

    Raises: ConfigError: every web page could use this server without a key.
    """
    server = settings.server
    decided = server.model_copy(update={"keys": wants_keys(server, address)})
    if ANY_ORIGIN in server.cors_origins and not decided.keys:
        raise ConfigError(
            "server.cors_origins has '*', which lets any web page opened on this machine use this"
            " server; list the origins, or set server.keys = true"
        )
    return settings.model_copy(update={"server": decided})


def local_url(host: str, port: int) -> str:
    """Return the URL by which this machine reaches a server that listens at that address."""
    shown = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{shown}]:{port}" if ":" in shown else f"http://{shown}:{port}"


def address_of(listener: socket.socket) -> str:
    """Return the address of an already open socket; a Unix socket counts as localhost."""
    if listener.family == socket.AF_UNIX:
        return "localhost"
    return str(listener.getsockname()[0])
