"""URLs of collectors that accept OTLP over HTTP."""

from __future__ import annotations

from urllib.parse import urlsplit


def check_endpoint(name: str, endpoint: str | None) -> None:
    """Raise ValueError for a value that is no http(s) URL. None is valid."""
    parts = urlsplit(endpoint or "")
    is_url = parts.scheme in ("http", "https") and parts.hostname
    if endpoint is not None and not is_url:
        raise ValueError(f"{name} must be an absolute http or https URL")


def address_of(endpoint: str | None, path: str) -> str:
    """Add a path to a collector's URL, unless the URL has one."""
    parts = urlsplit(endpoint or "")
    return parts._replace(path=parts.path.rstrip("/") or path).geturl()
