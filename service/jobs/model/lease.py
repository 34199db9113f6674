"""Leases of claims: how often a worker renews them."""

from __future__ import annotations

RENEWALS = 3
"""Times that a worker renews a lease before it lapses."""
