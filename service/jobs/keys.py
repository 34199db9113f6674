"""Every Redis key and its lifetime.

All keys share one hash tag: a cluster keeps them in one slot, so that a script may touch any.

| key                          | type   | holds                                | leaves            |
|------------------------------|--------|--------------------------------------|-------------------|
| `job:ID`                     | hash   | the job, a field each (`wire.py`)    | retention, delete |
| `events:ID`                  | stream | its events, the last `max_events`    | with the job      |
| `previews:ID`                | stream | its last few previews                | when it ends      |
| `queue:MODEL`                | zset   | queued jobs, by place                | when claimed      |
| `bucket:LENGTH:MODEL:BUCKET` | zset   | the same, of one bucket              | when claimed      |
| `jobs`                       | zset   | all jobs, by acceptance              | with the job      |
| `jobs:STATE`                 | zset   | the jobs of a state, by acceptance   | with the job      |
| `leases`                     | zset   | running jobs, by end of lease        | when it ends      |
| `deadlines`                  | zset   | unended jobs, by deadline            | when it ends      |
| `ended`                      | zset   | ended jobs, by their end             | with the job      |
| `idempotency:TENANT:DIGEST`  | string | digest of the body, id of the job    | `idempotency_s`   |
| `call:CALL`                  | string | a claim's or deletion's answer       | a minute          |
| `trash`                      | set    | store keys to delete                 | the reap after    |
| `models`                     | hash   | model: its spec                      | never             |
| `pools:MODEL`                | hash   | pool: ready or not, end of heartbeat | `lease_s`         |

Channels: `wake` (id of a job with a new event), `stopped` (id of a running job that was canceled or
has expired), `queued` (name of a model with a new job).

*Place* orders a model's queue: priority first, then acceptance. *Acceptance* is the microsecond by
Redis's clock, raised where needed so that no two jobs share one.
"""

from __future__ import annotations

PREFIX = "{atelier}:"

WAKE = PREFIX + "wake"
STOPPED = PREFIX + "stopped"
QUEUED = PREFIX + "queued"


def job(job_id: str) -> str:
    return f"{PREFIX}job:{job_id}"


def events(job_id: str) -> str:
    return f"{PREFIX}events:{job_id}"


def previews(job_id: str) -> str:
    return f"{PREFIX}previews:{job_id}"


def queue(model: str) -> str:
    return f"{PREFIX}queue:{model}"
