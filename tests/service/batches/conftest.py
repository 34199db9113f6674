"""What holds after every test of an endpoint."""

from __future__ import annotations

from tests.service.stored import stored_bytes_are_counted

__all__ = ["stored_bytes_are_counted"]
