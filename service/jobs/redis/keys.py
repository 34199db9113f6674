"""Names, contents and lifetimes of all Redis keys.

All keys have the same hash tag. A cluster keeps them in one slot, so a script may use any of them.

| key                          | type   | value                                | removed           |
|------------------------------|--------|--------------------------------------|-------------------|
| `job:ID`                     | hash   | the job (`model/serialization.py`)   | retention, delete |
| `events:ID`                  | stream | its last `max_events` events         | with the job      |
| `previews:ID`                | stream | its latest previews                  | when it ends      |
| `queue:N:MODEL:TENANT`       | zset   | a tenant's queued jobs, by place     | when claimed      |
| `lane:N:MODEL:N:BUCKET:TENANT` | zset   | the same for one bucket            | when claimed      |
| `tenants:MODEL`              | zset   | tenants with queued jobs, by order   | with their last   |
| `line:N:MODEL:BUCKET`        | set    | those of them with jobs in a bucket  | with their last   |
| `tags:MODEL`                 | hash   | those tenants' virtual start tags    | with their last   |
| `idle:MODEL`                 | zset   | tenants without queued jobs, by tag  | in virtual time   |
| `virtual:MODEL`              | string | virtual time                         | with its last     |
| `busy:MODEL`                 | string | start of the current backlog         | with its last     |
| `backlog:MODEL`              | hash   | tenant: predicted device-seconds     | with their last   |
| `weights:MODEL`              | hash   | tenant: its weight                   | with their last   |
| `queued:MODEL`               | string | number of queued jobs                | with its last     |
| `waiting:MODEL`              | zset   | queued jobs, by queueing time        | when claimed      |
| `latest:MODEL`               | zset   | queued jobs, by latest start         | when claimed      |
| `kept:MODEL`                 | set    | requeued jobs that have snapshots    | when they end     |
| `jobs`                       | zset   | all jobs, by acceptance              | with the job      |
| `jobs:STATE:TENANT`          | zset   | a tenant's jobs in a state, likewise | with the job      |
| `promised:TENANT`            | string | predicted cost of its unended jobs   | with its last     |
| `used:TENANT`                | hash   | minute: device-seconds of ended jobs | after an hour     |
| `compiling:TENANT`           | hash   | jobs that workers compile for        | after an hour     |
| `left:ID`                    | hash   | accounting fields of a deleted job   | after an hour     |
| `stored:TENANT`              | string | bytes of its files in the store      | with its last     |
| `storedfiles:TENANT`         | hash   | file outside of jobs: its bytes      | with its last     |
| `leases`                     | zset   | running jobs, by end of lease        | when it ends      |
| `deadlines`                  | zset   | unended jobs, by deadline            | when it ends      |
| `ended`                      | zset   | ended jobs, by end                   | with the job      |
| `drafts`                     | zset   | paused jobs, by expiry of drafts     | with the drafts   |
| `idempotency:TENANT:DIGEST`  | string | digest of the body, id of the job    | `idempotency_s`   |
| `call:CALL`                  | string | stored answer for a repeated call    | a minute          |
| `deposits`                   | zset   | jobs with files that are not put yet | when put          |
| `ledger`                     | stream | records that are in no file yet      | with their file   |
| `ledgerfile`                 | string | first and last id of the next file   | when it is stored |
| `ledgerlease`                | string | front end that writes this file      | with its lease    |
| `totals`                     | hash   | sums of the ledger, by name (JSON)   | never             |
| `reaped`                     | string | last reap; start of reachability     | never             |
| `notes`                      | list   | ends and lapses not counted yet      | the next reap     |
| `confirmed`                  | string | empty: written so that WAIT can wait | never             |
| `history`                    | string | replication id, base of the fences   | never             |
| `trash`                      | set    | store keys to delete                 | the reap after    |
| `models`                     | hash   | model: its spec                      | model_retention_s |
| `seen`                       | zset   | models, by latest heartbeat          | with the model    |
| `pools:MODEL`                | hash   | worker: readiness, end of heartbeat  | `lease_s`         |
| `webhooks`                   | zset   | tenants with messages, by last turn  | with their last   |
| `webhooks:TENANT`            | zset   | ended jobs to announce, by due time  | when delivered    |
| `apikeys`                    | hash   | id: an API key and its digest (JSON) | when revoked      |
| `tenantrecords`              | hash   | tenant: its settings (JSON)          | when removed      |
| `tenantchanges`              | string | number of changes of those           | never             |
| `loras:TENANT`               | hash   | name: an uploaded adapter (JSON)     | when deleted      |
| `loralock:TENANT:DIGEST`     | string | call that stores or deletes the file | with the call     |
| `file:ID`                    | hash   | uploaded or result file (JSON)       | expiry, delete    |
| `files:TENANT`               | zset   | a tenant's files, by creation        | with the file     |
| `files`                      | zset   | all files, by expiry                 | with the file     |
| `batch:ID`                   | hash   | a batch, one hash field per field    | retention         |
| `batchlines:ID`              | hash   | line: its job, or its outcome        | when it ends      |
| `batches:TENANT`             | zset   | a tenant's batches, by creation      | with the batch    |
| `openbatches:TENANT`         | set    | those that have not ended            | when it ends      |
| `openbatches`                | zset   | all unended batches, by end of lease | when it ends      |
| `endedbatches`               | zset   | ended batches, by end                | with the batch    |
| `layouts:MODEL`              | hash   | worker: its announced facts (JSON)   | with the worker   |
| `costs:MODEL`                | hash   | bucket, layout, batch size: cost     | with the model    |
| `tried:N:MODEL:BUCKET`       | string | mark: a doubtful cost is re-measured | after a while     |
| `pauses`                     | hash   | model or pool: its pause             | when resumed      |
| `sleeps`                     | hash   | pool or worker: its sleep request    | when woken        |
| `profile:POOL`               | string | profile request of a worker          | when answered     |
| `profiled:ID`                | string | answer to a profile request          | ten minutes       |

Front ends have keys of their own, which no script uses. `{atelier-front}:webhooksecrets` has its
note below. `{atelier-front}:audit` (hash) contains acts that are not in the stored audit log yet,
`{atelier-front}:backedup` the time of the last backup.
For the AUTOMATIC1111 endpoint there are the keys of `chosen_model` (the model that a sender chose,
for 90 days) and of `waiting_jobs` (the jobs that it waits for; removed with the last, or after a
day).

For requests that may be answered with earlier results: `{atelier-front}:drawn:TENANT:DIGEST`
(string, the latest job that generated the result; removed with that job's retention).

For aliases: `{atelier-front}:aliases` (hash, name: its versions, JSON), `…:aliaschanges` (number of
changes of these), `…:aliasjobs:ALIAS` (sorted set, recent jobs of a watched alias, by acceptance;
removed after its window), `…:aliaswatch:ALIAS` (mark: a front end has just judged the versions) and
`…:shadows` (sorted set, `JOB SHADOW` by the time at which both were queued; removed when they are
compared).

Of `costs:MODEL` the oldest rows beyond 4,096 are removed, too.

Channels: `wake` (id of a job with a new event), `stopped` (id of a running job that was canceled or
has expired), `queued` (name of a model with a new job).

A job's hash also has fields that only the scripts use. `room` contains the worker that makes room
for the job, by preempting another or by taking no others, and until when other workers do not.
`yields` contains until when a running job may be preempted, and the maximum duration of the
preempting job. `served_as` is the model's name in the request, if another model's workers serve it.
`draft_bytes` is the size of its drafts in the store until it ends. For `origin`, `resumes` and
`billed` see `scripts/ledger.lua`.

*promised* and *used* count against a quota, and exist only for tenants with a quota.

N is the length of the name after it. *Place* orders a tenant's jobs: acceptance, shifted by
priority. *Acceptance* is the microsecond by Redis's clock, increased if needed so that no two jobs
share one. For *order*, *tag* and *virtual time* see `scripts/order.lua`.
"""

from __future__ import annotations

PREFIX = "{atelier}:"

WAKE = PREFIX + "wake"
STOPPED = PREFIX + "stopped"
QUEUED = PREFIX + "queued"

API_KEYS = PREFIX + "apikeys"
TENANTS = PREFIX + "tenantrecords"
TENANT_CHANGES = PREFIX + "tenantchanges"
FRONT_PREFIX = "{atelier-front}:"
WEBHOOK_SECRETS = FRONT_PREFIX + "webhooksecrets"
"""Hash, tenant: its valid secrets (JSON). Workers need no permission for this prefix."""
LINK_SECRET = FRONT_PREFIX + "linksecret"
"""Secret that signs links to outputs, under the same prefix."""
AUDIT = FRONT_PREFIX + "audit"
"""Hash, `ID OUTCOME`: an action of a command or an automatic one, to be stored in the audit log
(JSON)."""
BACKED_UP = FRONT_PREFIX + "backedup"
"""String, time of the last backup in seconds since the epoch."""
ALIASES = FRONT_PREFIX + "aliases"
ALIAS_CHANGES = FRONT_PREFIX + "aliaschanges"
SHADOWS = FRONT_PREFIX + "shadows"
DEPOSITS = PREFIX + "deposits"
PAUSES = PREFIX + "pauses"
SLEEPS = PREFIX + "sleeps"
MODELS = PREFIX + "models"
JOBS = PREFIX + "jobs"
LEASES = PREFIX + "leases"
ENDED = PREFIX + "ended"
CONFIRMED = PREFIX + "confirmed"
HISTORY = PREFIX + "history"
LEDGER = PREFIX + "ledger"


def reusable_job(tenant: str, digest: str) -> str:
    """Key of the latest job that generated the result of a request with this digest."""
    return f"{FRONT_PREFIX}drawn:{tenant}:{digest}"


def of_tenant(tenant: str) -> list[str]:
    """Return patterns of a tenant's keys that otherwise expire by themselves."""
    names = [f"{PREFIX}used:{tenant}", f"{PREFIX}compiling:{tenant}"]
    names += [f"{PREFIX}idempotency:{tenant}:*", reusable_job(tenant, "*")]
    return [*names, chosen_model(tenant), waiting_jobs(tenant)]


def job(job_id: str) -> str:
    """Key of the hash of one job."""
    return f"{PREFIX}job:{job_id}"


def events(job_id: str) -> str:
    """Key of the stream of a job's events."""
    return f"{PREFIX}events:{job_id}"


def previews(job_id: str) -> str:
    """Key of the stream of a job's latest previews."""
    return f"{PREFIX}previews:{job_id}"


def profile(pool: str) -> str:
    """Key of the profile request of a worker."""
    return f"{PREFIX}profile:{pool}"


def profiled(request_id: str) -> str:
    """Key of the answer to a profile request."""
    return f"{PREFIX}profiled:{request_id}"


def cost_trial(model: str, bucket: str) -> str:
    """Key of the mark of a doubtful cost that is being re-measured."""
    return f"{PREFIX}tried:{len(model)}:{model}:{bucket}"


def queue(model: str, tenant: str) -> str:
    """Key of the sorted set of a tenant's queued jobs of a model."""
    return f"{PREFIX}queue:{len(model)}:{model}:{tenant}"


def pools(model: str) -> str:
    """Key of the hash of a model's workers: readiness and end of heartbeat."""
    return f"{PREFIX}pools:{model}"


def layouts(model: str) -> str:
    """Key of the hash of the facts that a model's workers announced."""
    return f"{PREFIX}layouts:{model}"


def tenants(model: str) -> str:
    """Key of the sorted set of tenants with queued jobs of a model."""
    return f"{PREFIX}tenants:{model}"


def backlog(model: str) -> str:
    """Key of the hash of tenants' predicted device-seconds of queued jobs of a model."""
    return f"{PREFIX}backlog:{model}"


def loras(tenant: str) -> str:
    """Key of the hash of a tenant's uploaded adapters."""
    return f"{PREFIX}loras:{tenant}"


def file(file_id: str) -> str:
    """Key of the hash of one uploaded file."""
    return f"{PREFIX}file:{file_id}"


def files(tenant: str) -> str:
    """Key of the sorted set of a tenant's files."""
    return f"{PREFIX}files:{tenant}"


def batch(batch_id: str) -> str:
    """Key of the hash of one batch."""
    return f"{PREFIX}batch:{batch_id}"


def batch_lines(batch_id: str) -> str:
    """Key of the hash of the lines of an open batch."""
    return f"{PREFIX}batchlines:{batch_id}"


def batches(tenant: str) -> str:
    """Key of the sorted set of a tenant's batches."""
    return f"{PREFIX}batches:{tenant}"


def lora_lock(tenant: str, digest: str) -> str:
    """Key of the lock of an adapter's file in the store."""
    return f"{PREFIX}loralock:{tenant}:{digest}"


def alias_jobs(alias: str) -> str:
    """Key of the sorted set of an alias's recent jobs."""
    return f"{FRONT_PREFIX}aliasjobs:{alias}"


def alias_watch(alias: str) -> str:
    """Key of the mark that a front end has just judged an alias's versions."""
    return f"{FRONT_PREFIX}aliaswatch:{alias}"


def waiting(model: str) -> str:
    """Key of the sorted set of a model's queued jobs."""
    return f"{PREFIX}waiting:{model}"


def chosen_model(sender: str) -> str:
    """Key of the model that a sender of a compatible endpoint chose."""
    return f"{FRONT_PREFIX}door:model:{sender}"


def waiting_jobs(sender: str) -> str:
    """Key of the list of jobs that a sender of a compatible endpoint waits for."""
    return f"{FRONT_PREFIX}door:jobs:{sender}"
