"""Renewal frequency of the leases of claims."""

from __future__ import annotations

RENEWALS = 3
"""Number of times that a worker renews a lease within its lifetime."""
