"""Headers of every answer, errors that are sent before any middleware among them."""

from __future__ import annotations

POLICY = "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
"""Content-Security-Policy of answers that set none: nothing is loaded or run."""

SAFE_HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}
