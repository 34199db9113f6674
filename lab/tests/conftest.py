"""Fixtures of the project's tests that the lab's tests use."""

from __future__ import annotations

__all__ = (
    *("coarse", "empty_redis", "forget_programs", "pytest_configure", "queue", "redis_url"),
    *("same_environment", "tiny"),
)
