"""`atelier backup`: backups of Redis in the object store, and their restoration."""

from __future__ import annotations

import asyncio
import hashlib
import re
import secrets
import sys
import tempfile
from collections.abc import Awaitable
from datetime import UTC, datetime
from importlib.metadata import version

from pydantic import BaseModel, ValidationError
from redis.asyncio import Redis

from deploy.admin.api_keys import print_table, where
from deploy.admin.audited_actions import Act, at_redis, recorded
from service.jobs import backup
from service.jobs.backup import BackupError
from service.jobs.storage.errors import NotStored, StoreError
from service.jobs.storage.object_store import Store
from service.settings.settings import Settings

FOLDER = "backups/"
FORMAT = 1
COLUMNS = ("NAME", "KEYS", "BYTES", "SERVER")
NAME = re.compile(r"\d{8}T\d{6}Z(-[0-9a-f]{6})?", re.ASCII)
"""Name of a backup: its time. The random suffix distinguishes backups of one second; older names
lack it."""


class Manifest(BaseModel):
    """Metadata of a backup; stored after its commands, so an incomplete backup has none."""

    format: int = FORMAT
    atelier: str
    server: str
    keys: int
    bytes: int
    sha256: str


def create(settings: Settings, reason: str) -> None:
    """Create a backup; print its name on standard output, and details on standard error.

    Raises: ConfigError: Redis or the store is unreachable.
    """
    name = f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{secrets.token_hex(3)}"
    act = Act("create backup", name, reason)
    manifest = at_redis(settings, lambda redis: _then(redis, act, _create(redis, settings, name)))
    print(name)
    message = f"{manifest.keys} keys of {where(settings)}, {manifest.bytes} bytes, are in"
    print(f"{message} {settings.store_url}", file=sys.stderr)


def show(settings: Settings) -> None:
    """Print all backups as a table, oldest first. Raises: ConfigError: the store is unreachable."""
    backups = asyncio.run(_all(Store(settings.store_url)))
    rows = (
        (name, str(manifest.keys), str(manifest.bytes), manifest.server)
        for name, manifest in backups.items()
    )
    print_table(COLUMNS, *rows)


def restore(settings: Settings, name: str, reason: str) -> None:
    """Restore a backup into an empty Redis. Raises: ConfigError: unreachable or not empty."""
    act = Act("restore backup", name, reason)
    manifest = at_redis(settings, lambda redis: _then(redis, act, _restore(redis, settings, name)))
    print(f"{manifest.keys} keys are in {where(settings)}", file=sys.stderr)


async def _then(redis: Redis, act: Act, done: Awaitable[Manifest]) -> Manifest:
    """Create or restore a backup, then record it in the audit log; backups omit their record."""
    manifest = await done
    async with recorded(redis, act) as record:
        record.details["keys"] = str(manifest.keys)
    return manifest


async def _create(redis: Redis, settings: Settings, name: str) -> Manifest:
    commands = await backup.read(redis)
    info = await redis.info("server")
    server = "valkey" if "valkey_version" in info else "redis"
    digest, length = hashlib.sha256(), 0
    store = Store(settings.store_url)
    with tempfile.TemporaryFile() as file:
        for text in backup.packed(commands):
            digest.update(text)
            length += file.write(text)
        manifest = Manifest(
            atelier=version("atelier"),
            server=f"{server} {info[f'{server}_version']}",
            keys=len(commands),
            bytes=length,
            sha256=digest.hexdigest(),
        )
        try:
            await store.put_file(_data(name), file, "application/octet-stream")
            await store.put(_facts(name), manifest.model_dump_json().encode(), "application/json")
        except StoreError as error:
            raise BackupError(f"store.url: {error}") from error
    await backup.record(redis)
    return manifest


async def _restore(redis: Redis, settings: Settings, name: str) -> Manifest:
    store = Store(settings.store_url)
    manifest = await _manifest(store, name)
    if manifest is None:
        raise BackupError(f"there is no backup {name!r}; `atelier backup list` shows all")
    try:
        data = await store.get(_data(name))
    except (NotStored, StoreError) as error:
        raise BackupError(f"store.url: cannot read the backup {name!r} ({error})") from error
    if hashlib.sha256(data).hexdigest() != manifest.sha256:
        raise BackupError(
            f"the backup {name!r} is damaged: its digest differs; restore another one"
        )
    await backup.restore(redis, [*backup.unpacked(data)])
    return manifest


async def _all(store: Store) -> dict[str, Manifest]:
    try:
        names = sorted(
            key.removeprefix(FOLDER).removesuffix(".json")
            for key in await store.below(FOLDER)
            if key.endswith(".json")
        )
    except StoreError as error:
        raise BackupError(f"store.url: {error}") from error
    manifests = [(name, await _manifest(store, name)) for name in names]
    return {name: manifest for name, manifest in manifests if manifest}


async def _manifest(store: Store, name: str) -> Manifest | None:
    """Return a backup's manifest; None: no such backup. Raises: BackupError."""
    if not NAME.fullmatch(name):
        return None
    try:
        manifest = Manifest.model_validate_json(await store.get(_facts(name)))
    except NotStored:
        return None
    except StoreError as error:
        raise BackupError(f"store.url: {error}") from error
    except ValidationError as error:
        raise BackupError(f"{_facts(name)!r} in the store is not a backup's manifest") from error
    if manifest.format > FORMAT:
        raise BackupError(
            f"the backup {name!r} was made by Atelier {manifest.atelier}; restore it with that"
            " version"
        )
    return manifest


def _data(name: str) -> str:
    return f"{FOLDER}{name}.resp"


def _facts(name: str) -> str:
    return f"{FOLDER}{name}.json"
