"""Errors of the object store."""

from __future__ import annotations


class StoreError(Exception):
    """Failed operation of the file store; the message says what happened and what to do."""


class NotStored(StoreError):
    """Error for a key without a file."""

    def __init__(self, key: str) -> None:
        super().__init__(f"the store has no {key!r}: it has expired, or never existed")
        self.key = key
