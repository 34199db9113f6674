"""Background task for the versions of aliases, run every few seconds.

It moves queued jobs away from versions that cannot serve them, withdraws versions that perform
worse than the baseline, and compares shadows.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Mapping
from typing import Any

from redis.exceptions import RedisError

from models.spec.model_spec import ModelSpec
from service.front_end.front_end import FrontEnd
from service.front_end.models import ModelsByName, serving_versions
from service.front_end.shadows import compare_ended, job_of
from service.jobs.aliases import AliasJobs, AliasRecords
from service.jobs.model.alias import Alias
from service.jobs.model.job import Job
from service.jobs.model.version_health import step_back_reason
from service.jobs.redis import keys
from service.jobs.storage.errors import StoreError
from service.schemas.audit import automatic_act

log = logging.getLogger("atelier")

EVERY_S = 2.0


async def watch_forever(front: FrontEnd) -> None:
    """Watch the versions of all aliases until cancelled. A later round retries failures."""
    while True:
        for act in (switch_jobs, withdraw_bad_versions, compare_ended):
            try:
                await act(front)
            except (RedisError, OSError, StoreError) as error:
                log.warning("could not watch the versions of models: %s", error)
        await asyncio.sleep(EVERY_S)


async def switch_jobs(front: FrontEnd) -> None:
    """Move queued jobs to another version if theirs has no pools left, or was withdrawn.

    Jobs wait for their own version if no other one would interpret the request equally.
    """
    aliases = await front.models.aliases.all()
    if not aliases:
        return
    registered = await front.models.registered()
    stepped_back = {name for alias in aliases.values() for name in alias.stepped_back}
    queues = {
        status.spec.queue
        for name, status in registered.items()
        if not status.pools or name in stepped_back
    }
    for queue in queues:
        for job_id in await front.queue.waiting(queue):
            job = await job_of(front, job_id)
            target = _other(aliases, job, registered) if job else None
            if job and target and await front.queue.switch_model(job, target):
                log.info("job %s waits for %s, no longer for %s", job.id, target.name, queue)


def _other(aliases: Mapping[str, Alias], job: Job, registered: ModelsByName) -> ModelSpec | None:
    """Choose the version that should serve a queued job instead of its own; None: none."""
    alias, version = aliases.get(str(job.request.get("model"))), job.served_by or job.model
    if (
        alias is None
        or version not in registered
        or (registered[version].pools and version not in alias.stepped_back)
    ):
        return None
    ready = [
        name
        for name in serving_versions(alias, registered)
        if name != version and registered[name].ready
    ]
    if not ready:
        return None
    spec = registered[alias.draw(ready, random.random())].spec
    return spec if has_equal_interpretation(job, registered[version].spec, spec) else None


def has_equal_interpretation(job: Job, current: ModelSpec, other: ModelSpec) -> bool:
    """Check whether another model interprets a job's request like its own model."""
    operators = {lora.digest for lora in current.loras.values()}
    others = {lora.digest for lora in other.loras.values()}
    has_loras = all(lora.digest in others or lora.digest not in operators for lora in job.loras)
    return has_loras and current.interprets_requests_like(other)


async def withdraw_bad_versions(front: FrontEnd) -> None:
    """Withdraw versions that perform worse than their alias's baseline."""
    jobs = AliasJobs(front.queue.redis)
    aliases = {name: entry for name, entry in front.models.aliases.cached.items() if entry.baseline}
    registered = await front.models.registered() if aliases else {}
    for name, alias in aliases.items():
        base = alias.baseline
        watched = [entry for entry, weight in alias.weights.items() if weight and entry != base]
        if not (base and watched and base in registered and registered[base].ready):
            continue
        if not await jobs.acquire_check(name, EVERY_S / 2):
            continue
        samples = await jobs.samples(name, alias.window_s, alias.since)
        for version in watched:
            if reason := step_back_reason(alias, version, samples):
                await _step_back(front, name, version, reason)


async def _step_back(front: FrontEnd, name: str, version: str, reason: str) -> None:
    """Withdraw a version, unless its weights have been changed meanwhile.

    The audit record is written in the same transaction.
    """
    judged, at = front.models.aliases.cached[name], await AliasJobs(front.queue.redis).now()
    changed = False

    def act(records: dict[str, Alias]) -> dict[str, Alias]:
        nonlocal changed
        current = records.get(name)
        changed = bool(current and current.since == judged.since and current.weights.get(version))
        return (
            records | {name: current.without(version, at, reason)}
            if current and changed
            else records
        )

    def note(pipe: Any) -> None:
        if changed:
            details = {"alias": name, "weight": f"{judged.weights[version]:g}"}
            record = automatic_act("step back version", version, reason, details)
            pipe.hset(keys.AUDIT, record.field, record.model_dump_json())

    await AliasRecords(front.queue.redis).change(act, note)
    if changed:
        log.warning("%s of %s stepped back: %s", version, name, reason)
        front.telemetry.versions.step_backs.labels(name, version).inc()
