"""Checks after every test: stored bytes match the quotas."""

from __future__ import annotations

from tests.service.stored import stored_bytes_are_counted

__all__ = ["stored_bytes_are_counted"]
