"""Redis keys and their lifetimes.

All keys share one hash tag: a cluster keeps them in one slot, so that a script may touch any.

| key                          | type   | holds                                | leaves            |
|------------------------------|--------|--------------------------------------|-------------------|
| `job:ID`                     | hash   | the job, a field each (`wire.py`)    | retention, delete |
| `events:ID`                  | stream | its events, the last `max_events`    | with the job      |
| `previews:ID`                | stream | its last few previews                | when it ends      |
| `queue:N:MODEL:TENANT`       | zset   | a tenant's queued jobs, by place     | when claimed      |
| `lane:N:MODEL:N:BUCKET:TENANT` | zset | the same, of one bucket              | when claimed      |
| `tenants:MODEL`              | zset   | tenants with queued jobs, by order   | with their last   |
| `line:N:MODEL:BUCKET`        | set    | those of them with jobs in a bucket  | with their last   |
| `tags:MODEL`                 | hash   | those tenants' virtual start tags    | with their last   |
| `idle:MODEL`                 | zset   | tenants without jobs, by tag         | in virtual time   |
| `virtual:MODEL`              | string | virtual time                         | with its last     |
| `busy:MODEL`                 | string | since when any have been queued      | with its last     |
| `backlog:MODEL`              | hash   | a tenant's predicted device-seconds  | with their last   |
| `weights:MODEL`              | hash   | those tenants' weights               | with their last   |
| `queued:MODEL`               | string | how many jobs are queued             | with its last     |
| `waiting:MODEL`              | zset   | queued jobs, by when they came       | when claimed      |
| `latest:MODEL`               | zset   | queued jobs by their latest start    | when claimed      |
| `kept:MODEL`                 | set    | jobs that went back and go on        | when they end     |
| `jobs`                       | zset   | all jobs, by acceptance              | with the job      |
| `jobs:STATE:TENANT`          | zset   | a tenant's jobs of a state, likewise | with the job      |
| `promised:TENANT`            | string | what its unended jobs shall take     | with the last one |
| `used:TENANT`                | hash   | minute: what its jobs took           | after an hour     |
| `compiling:TENANT`           | hash   | jobs that are compiled for           | after an hour     |
| `left:ID`                    | hash   | of a deleted job, its account        | after an hour     |
| `stored:TENANT`              | string | bytes of its files in the store      | with the last one |
| `storedfiles:TENANT`         | hash   | file that is of no job: its bytes    | with the last one |
| `leases`                     | zset   | running jobs, by end of lease        | when it ends      |
| `deadlines`                  | zset   | unended jobs, by deadline            | when it ends      |
| `ended`                      | zset   | ended jobs, by their end             | with the job      |
| `idempotency:TENANT:DIGEST`  | string | digest of the body, id of the job    | `idempotency_s`   |
| `call:CALL`                  | string | a claim's or deletion's answer       | a minute          |
| `deposits`                   | zset   | jobs whose files are stored, not put | when put          |
| `ledger`                     | stream | records that are in no file yet      | with their file   |
| `ledgerfile`                 | string | ids of those that go into the next   | when it is stored |
| `ledgerlease`                | string | front end that writes it             | with its lease    |
| `totals`                     | hash   | sums of the ledger, by name (JSON)   | never             |
| `reaped`                     | string | when it was last, heard since when   | never             |
| `notes`                      | list   | ends and lapses that nobody counted  | the next reap     |
| `confirmed`                  | string | nothing: written for WAIT to wait for | never            |
| `history`                    | string | the server's replication id; fences' base | never        |
| `trash`                      | set    | store keys to delete                 | the reap after    |
| `models`                     | hash   | model: its spec                      | model_retention_s |
| `seen`                       | zset   | models, by a pool's last heartbeat   | with the model    |
| `pools:MODEL`                | hash   | pool: ready or not, end of heartbeat | `lease_s`         |
| `webhooks`                   | zset   | tenants with messages, by last turn  | with their last   |
| `webhooks:TENANT`            | zset   | its ended jobs to tell of, by when   | when told         |
| `apikeys`                    | hash   | id: an API key and its digest (JSON) | when revoked      |
| `tenantrecords`              | hash   | tenant: its settings (JSON)          | when removed      |
| `tenantchanges`              | string | how often those were changed         | never             |
| `loras:TENANT`               | hash   | name: an uploaded adapter (JSON)     | when deleted      |
| `loralock:TENANT:DIGEST`     | string | call that stores or deletes its file | with the call     |
| `file:ID`                    | hash   | an uploaded file or results (JSON)   | its time, delete  |
| `files:TENANT`               | zset   | a tenant's files, by when they came  | with the file     |
| `files`                      | zset   | all files, by when they leave        | with the file     |
| `batch:ID`                   | hash   | a batch, a field each                | retention         |
| `batchlines:ID`              | hash   | line: its job, or how it ended       | when it ends      |
| `batches:TENANT`             | zset   | a tenant's batches, by when they came | with the batch   |
| `openbatches:TENANT`         | set    | those of them that have not ended    | when it ends      |
| `openbatches`                | zset   | all of these, by end of lease        | when it ends      |
| `endedbatches`               | zset   | ended batches, by their end          | with the batch    |
| `layouts:MODEL`              | hash   | pool: its layout and slots           | with the pool     |
| `costs:MODEL`                | hash   | bucket, layout, batch: what it costs | with the model    |
| `tried:N:MODEL:BUCKET`       | string | a doubtful cost is being tried       | in a while        |
| `pauses`                     | hash   | model or pool: who holds it back     | when resumed      |
| `sleeps`                     | hash   | pool: who has put it to sleep        | when woken so     |
| `profile:POOL`               | string | a profile that is wanted of it       | when answered     |
| `profiled:ID`                | string | what became of that profile          | ten minutes       |

Beside them lie keys of the front ends alone, which no script touches:
`{atelier-front}:webhooksecrets`, `{atelier-front}:audit` (hash, what commands and front ends by
themselves have done and no front end has stored yet; leaves when one has), and of AUTOMATIC1111's
door `{atelier-front}:door:model:SENDER` (the model that a sender chose, for 90 days) and
`{atelier-front}:door:jobs:SENDER` (the jobs that it waits for; leaves with the last, or a day
later).

Of requests that may be answered again: `{atelier-front}:drawn:TENANT:DIGEST` (string, the job that
drew it last; leaves with that job's retention).

Of aliases: `{atelier-front}:aliases` (hash, name: its versions, JSON), how often these were changed
(`…:aliaschanges`), `…:aliasjobs:ALIAS` (sorted set, the newest jobs of an alias that is watched, by
acceptance; leaves after its window), `…:aliaswatch:ALIAS` (a front end has just judged its
versions) and `…:shadows` (sorted set, `JOB SHADOW` by when both were queued; leaves when they are
compared).

Of `costs:MODEL` the oldest rows leave, too, beyond 4,096.

Channels: `wake` (id of a job with a new event), `stopped` (id of a running job that was canceled or
has expired), `queued` (name of a model with a new job).

Fields of a job that only the scripts use lie beside those of `wire.py`. Of them, `room` names a
pool that makes room for it, by putting another aside or by taking no others beside it, and until
when other pools do not; `yields` says until when a running one may be put aside, and for a job of
how many seconds; `served_as` is the model's name in the request, where workers of another serve it;
`draft_bytes` is what its drafts take of the store until it ends;
what `origin`, `resumes` and `billed` are, `scripts/ledger.lua` says.

What is *promised* and *used* counts against a quota, and is kept for tenants that have one alone.

N is the length of the name behind it. *Place* orders a tenant's jobs: acceptance, moved by what the
priority is worth. *Acceptance* is the microsecond by Redis's clock, raised where needed so that no
two jobs share one. What *order*, *tag* and *virtual time* are, `scripts/order.lua` says.
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
"""Hash, tenant: its valid secrets (JSON). Under a prefix that pools need no right to."""
LINK_SECRET = FRONT_PREFIX + "linksecret"
"""Secret that signs links to outputs, likewise."""
AUDIT = FRONT_PREFIX + "audit"
"""Hash, `ID OUTCOME`: an act on its way to the audit log, of a command or automatic (JSON)."""
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


def drawn(tenant: str, digest: str) -> str:
    """Job that drew what a request of this digest asks for."""
    return f"{FRONT_PREFIX}drawn:{tenant}:{digest}"


def job(job_id: str) -> str:
    """Hash of one job."""
    return f"{PREFIX}job:{job_id}"


def events(job_id: str) -> str:
    """Stream of a job's events."""
    return f"{PREFIX}events:{job_id}"


def previews(job_id: str) -> str:
    """Stream of a job's newest previews."""
    return f"{PREFIX}previews:{job_id}"


def profile(pool: str) -> str:
    """Profile that is wanted of a pool."""
    return f"{PREFIX}profile:{pool}"


def profiled(request_id: str) -> str:
    """Key of a profile's result."""
    return f"{PREFIX}profiled:{request_id}"


def tried(model: str, bucket: str) -> str:
    """Mark of a doubtful cost that is being tried."""
    return f"{PREFIX}tried:{len(model)}:{model}:{bucket}"


def queue(model: str, tenant: str) -> str:
    """Sorted set of a tenant's queued jobs."""
    return f"{PREFIX}queue:{len(model)}:{model}:{tenant}"


def pools(model: str) -> str:
    """Hash of a model's pools: ready or not, end of heartbeat."""
    return f"{PREFIX}pools:{model}"


def layouts(model: str) -> str:
    """Hash of those pools' layouts and slots."""
    return f"{PREFIX}layouts:{model}"


def tenants(model: str) -> str:
    """Sorted set of the tenants with jobs that wait for a model."""
    return f"{PREFIX}tenants:{model}"


def backlog(model: str) -> str:
    """Hash of those tenants' predicted device-seconds."""
    return f"{PREFIX}backlog:{model}"


def loras(tenant: str) -> str:
    """Hash of the adapters that a tenant has uploaded."""
    return f"{PREFIX}loras:{tenant}"


def file(file_id: str) -> str:
    """Hash of one file."""
    return f"{PREFIX}file:{file_id}"


def files(tenant: str) -> str:
    """Sorted set of a tenant's files."""
    return f"{PREFIX}files:{tenant}"


def batch(batch_id: str) -> str:
    """Hash of one batch."""
    return f"{PREFIX}batch:{batch_id}"


def batch_lines(batch_id: str) -> str:
    """Hash of the lines of an open batch."""
    return f"{PREFIX}batchlines:{batch_id}"


def batches(tenant: str) -> str:
    """Sorted set of a tenant's batches."""
    return f"{PREFIX}batches:{tenant}"


def lora_lock(tenant: str, digest: str) -> str:
    """Lock of an adapter's file in the store."""
    return f"{PREFIX}loralock:{tenant}:{digest}"


def alias_jobs(alias: str) -> str:
    """Sorted set of an alias's newest jobs."""
    return f"{FRONT_PREFIX}aliasjobs:{alias}"


def alias_watch(alias: str) -> str:
    """Mark that a front end has just judged an alias's versions."""
    return f"{FRONT_PREFIX}aliaswatch:{alias}"


def waiting(model: str) -> str:
    """Sorted set of a model's queued jobs."""
    return f"{PREFIX}waiting:{model}"


def chosen_model(sender: str) -> str:
    """Model that a sender chose at a door."""
    return f"{FRONT_PREFIX}door:model:{sender}"


def at_door(sender: str) -> str:
    """List of the jobs that a sender waits for at a door."""
    return f"{FRONT_PREFIX}door:jobs:{sender}"
