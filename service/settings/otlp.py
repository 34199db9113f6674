"""Addresses of collectors that take OTLP over HTTP."""

from __future__ import annotations

from urllib.parse import urlsplit


def check_endpoint(name: str, endpoint: str | None) -> None:
    """Raise ValueError for an address that cannot be one; None: there is none."""
    parts = urlsplit(endpoint or "")
    is_url = parts.scheme in ("http", "https") and parts.hostname
    if endpoint is not None and not is_url:
        raise ValueError(f"{name} must be a whole http or https URL")


def address_of(endpoint: str | None, path: str) -> str:
    """Return an address with this path where it has none."""
    parts = urlsplit(endpoint or "")
    return parts._replace(path=parts.path.rstrip("/") or path).geturl()
