"""The front end's chore for versions: what it does every few seconds, beside requests.

Queued jobs leave a version that cannot serve them, one that does worse than the baseline steps
back, and shadows are compared.
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
from service.front_end.models import Known, serving
from service.front_end.shadows import compare_ended, job_of
from service.jobs.alias_jobs import AliasJobs
from service.jobs.aliases import AliasRecords
from service.jobs.model.alias import Alias
from service.jobs.model.job import Job
from service.jobs.model.version_health import complaint
from service.jobs.redis import keys
from service.jobs.storage.errors import StoreError
from service.schemas.audit import automatic_act

log = logging.getLogger("atelier")

EVERY_S = 2.0


async def watch_forever(front: FrontEnd) -> None:
    """Watch the versions of all aliases until cancelled; what fails, a later round does."""
    while True:
        for act in (switch_jobs, judge_versions, compare_ended):
            try:
                await act(front)
            except (RedisError, OSError, StoreError) as error:
                log.warning("could not watch the versions of models: %s", error)
        await asyncio.sleep(EVERY_S)


async def switch_jobs(front: FrontEnd) -> None:
    """Let another version serve queued jobs whose own has no pools left, or stepped back.

    One that would not read the request alike never does: those jobs wait for their own.
    """
    aliases = await front.models.aliases.all()
    if not aliases:
        return
    own = await front.models.own()
    stepped_back = {name for alias in aliases.values() for name in alias.stepped_back}
    queues = {
        status.spec.queue
        for name, status in own.items()
        if not status.pools or name in stepped_back
    }
    for queue in queues:
        for job_id in await front.queue.waiting(queue):
            job = await job_of(front, job_id)
            to = _other(aliases, job, own) if job else None
            if job and to and await front.queue.switch_model(job, to):
                log.info("job %s waits for %s, no longer for %s", job.id, to.name, queue)


def _other(aliases: Mapping[str, Alias], job: Job, own: Known) -> ModelSpec | None:
    """Return the version that should serve a queued job instead of its own; None: none."""
    alias, mine = aliases.get(str(job.request.get("model"))), job.served_by or job.model
    if alias is None or mine not in own or (own[mine].pools and mine not in alias.stepped_back):
        return None
    ready = [name for name in serving(alias, own) if name != mine and own[name].ready]
    if not ready:
        return None
    spec = own[alias.draw(ready, random.random())].spec
    return spec if is_alike(job, own[mine].spec, spec) else None


def is_alike(job: Job, one: ModelSpec, other: ModelSpec) -> bool:
    """Return whether another model reads the request of a job as its own one does."""
    operators = {lora.digest for lora in one.loras.values()}
    theirs = {lora.digest for lora in other.loras.values()}
    has_loras = all(lora.digest in theirs or lora.digest not in operators for lora in job.loras)
    return has_loras and one.reads_alike(other)


async def judge_versions(front: FrontEnd) -> None:
    """Let versions step back that do worse than their alias's baseline."""
    jobs = AliasJobs(front.queue.redis)
    aliases = {name: one for name, one in front.models.aliases.known.items() if one.baseline}
    own = await front.models.own() if aliases else {}
    for name, alias in aliases.items():
        base = alias.baseline
        watched = [one for one, weight in alias.weights.items() if weight and one != base]
        if not (base and watched and base in own and own[base].ready):
            continue
        if not await jobs.is_first(name, EVERY_S / 2):
            continue
        samples = await jobs.samples(name, alias.window_s, alias.since)
        for version in watched:
            if reason := complaint(alias, version, samples):
                await _step_back(front, name, version, reason)


async def _step_back(front: FrontEnd, name: str, version: str, reason: str) -> None:
    """Step back, unless somebody else has changed the weights meanwhile.

    The record for the audit log is written in the same transaction.
    """
    judged, at = front.models.aliases.known[name], await AliasJobs(front.queue.redis).now()
    changed = False

    def act(records: dict[str, Alias]) -> dict[str, Alias]:
        nonlocal changed
        now = records.get(name)
        changed = bool(now and now.since == judged.since and now.weights.get(version))
        return records | {name: now.without(version, at, reason)} if now and changed else records

    def note(pipe: Any) -> None:
        if changed:
            details = {"alias": name, "weight": f"{judged.weights[version]:g}"}
            record = automatic_act("step back version", version, reason, details)
            pipe.hset(keys.AUDIT, record.field, record.model_dump_json())

    await AliasRecords(front.queue.redis).change(act, note)
    if changed:
        log.warning("%s of %s stepped back: %s", version, name, reason)
        front.telemetry.versions.step_backs.labels(name, version).inc()
