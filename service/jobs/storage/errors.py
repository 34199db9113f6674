"""Errors of the object store."""

from __future__ import annotations


class StoreError(Exception):
    """The store did not do what was asked; the message says what happened and what to do."""


class NotStored(StoreError):
    """Error of a key that holds nothing."""

    def __init__(self, key: str) -> None:
        super().__init__(f"the store holds nothing under {key!r}: it has left or never was")
        self.key = key
