"""Security headers of every response, including errors sent before any middleware runs."""

from __future__ import annotations

POLICY = "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
"""Default Content-Security-Policy of responses: no content may be loaded or run."""

SAFE_HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}
