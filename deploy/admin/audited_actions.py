"""Execution of admin commands in Redis; commands that change something are audited."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import TypeVar

from redis.asyncio import Redis
from redis.exceptions import RedisError

from deploy.exit_codes import NotFound, say
from deploy.local.embedded_redis import reached
from service.jobs.redis import connection
from service.operators.audit import AuditRecorder
from service.operators.commands import CommandActs, operator_of_process
from service.schemas.audit import AuditRecord
from service.settings.redis import RedisSettings
from service.settings.settings import Settings

T = TypeVar("T")


def at_redis(settings: Settings, act: Callable[[Redis], Awaitable[T]]) -> T:
    """Run an action on the Redis of the settings. Raises: ConfigError: unreachable."""
    with ExitStack() as stack:
        redis = settings.redis
        if redis.url is None:
            url = stack.enter_context(reached(settings.state_dir))
            redis = redis.model_copy(update={"url": url})
        return asyncio.run(_act(redis, act))


async def _act(settings: RedisSettings, act: Callable[[Redis], Awaitable[T]]) -> T:
    redis = await connection.connect(settings)
    try:
        return await act(redis)
    finally:
        await redis.aclose()


@dataclass(frozen=True)
class Act:
    """Admin action, as recorded in the audit log."""

    name: str
    target: str
    reason: str = ""
    details: Mapping[str, str] = field(default_factory=dict)


class _CommandRecorder(AuditRecorder):
    """Audit recorder of commands; if the log cannot be written, it prints the record instead."""

    def __init__(self, redis: Redis) -> None:
        self._acts = CommandActs(redis)

    async def _write(self, record: AuditRecord) -> None:
        try:
            await self._acts.add(record)
        except (RedisError, OSError) as error:
            text = f"the audit log lacks this action ({error}); keep the line"
            say(f"atelier: {text}: {record.model_dump_json()}")

    def _error_text(self, error: BaseException) -> str:
        is_reported = isinstance(error, ValueError | NotFound)
        return str(error) if is_reported else super()._error_text(error)


@asynccontextmanager
async def recorded(redis: Redis, act: Act) -> AsyncIterator[AuditRecord]:
    """Record the action inside the context in the audit log; `details` may be extended inside."""
    operator = operator_of_process()
    recording = _CommandRecorder(redis).recording(
        operator, act.name, act.target, act.reason, act.details
    )
    async with recording as record:
        yield record


def change_at_redis(settings: Settings, act: Act, change: Callable[[Redis], Awaitable[T]]) -> T:
    """Run an audited action as `at_redis`. Raises: ConfigError, and the action's errors."""

    async def run(redis: Redis) -> T:
        async with recorded(redis, act):
            return await change(redis)

    return at_redis(settings, run)
