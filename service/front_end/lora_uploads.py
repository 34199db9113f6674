"""Adapters come and go: checked wholly, stored, recorded last; removed, then deleted."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from tempfile import TemporaryFile
from uuid import uuid4

from redis.exceptions import RedisError

from models.spec.image_files import ImageFileError
from models.spec.lora import PAGE_RANK, Lora
from models.spec.model_spec import ModelSpec
from service.errors.problems import Busy, Conflict, FieldError, Forbidden, Invalid, Unavailable
from service.front_end.front_end import FrontEnd
from service.front_end.loras import no_such_lora
from service.http.form_parts import FilePart, MemoryPart
from service.http.lora_checks import LoraFileError, check_lora
from service.jobs.queue import LoraBusy
from service.jobs.scripts.loras import LoraOutcome
from service.jobs.storage.errors import StoreError
from service.jobs.storage.object_store import lora_key, preview_key
from service.schemas.limits import takes_no_loras
from service.schemas.request import LoraUpload
from service.settings.tenants import TenantSettings

log = logging.getLogger("atelier")

MEDIA_TYPE = "application/octet-stream"
MAX_PREVIEW_BYTES = 4 * 2**20
RETRY_AFTER_S = 2.0


@dataclass(frozen=True)
class Received:
    """Upload of a client, read wholly."""

    tenant: str
    client: str
    """Client whose turn the check of its preview takes."""
    form: LoraUpload
    file: FilePart
    preview: MemoryPart


@contextlib.asynccontextmanager
async def parts_of(front: FrontEnd) -> AsyncIterator[tuple[FilePart, MemoryPart]]:
    """Hold the files of an upload; the large one has no name, and is gone whatever dies."""
    state = front.settings.state_dir  # a disk; /tmp is memory on many machines
    folder = state if state.is_dir() else None
    file = TemporaryFile(dir=folder)  # noqa: SIM115 - closed beside the event loop: it takes time
    try:
        adapter = FilePart(front.settings.limits.max_lora_bytes, "an adapter's file", file)
        yield adapter, MemoryPart(MAX_PREVIEW_BYTES, "a preview")
    finally:
        await asyncio.to_thread(file.close)


async def upload(front: FrontEnd, got: Received) -> tuple[Lora, bool]:
    """Check an adapter and keep it; return it, and whether it is new.

    Raises:
        Problem: it is refused, and nothing was kept.
        QuotaExceeded: likewise, since the tenant may not have so many bytes.
        StoreError: as the store.
    """
    specs = await front.models.versions(got.form.model)
    spec = min(specs, key=lambda one: one.lora_pages)
    if not (spec.lora_pages and spec.lora_layers):
        raise Invalid([FieldError("model", takes_no_loras(spec))])
    model = _served_by(specs)
    await _check_name(front, got.tenant, got.form.name)
    if there := await _already(front, got, model):
        return there, False
    lora = await _checked(front, got, spec, model)
    with _busy():
        async with front.queue.lora_lock(got.tenant, lora.digest):
            if there := await _already(front, got, model):
                return there, False
            return await _kept(front, got, lora), True


def _served_by(specs: Sequence[ModelSpec]) -> str:
    """Return the model that an adapter is for: of an alias, the name that its versions share.

    Raises: Invalid: they share none, or have other layers.
    """
    if len(specs) == 1:
        return specs[0].queue
    if len({(one.line, one.lora_layers) for one in specs}) == 1:
        return specs[0].line
    names = ", ".join(sorted(one.name for one in specs))
    said = f"its versions are not made alike; upload the adapter for one of them: {names}"
    raise Invalid([FieldError("model", said)])


async def _check_name(front: FrontEnd, tenant: str, name: str) -> None:
    """Raises: Conflict: the operator has given it to an adapter that the tenant sees."""
    if any(lora.name == name for lora in await front.loras.configured(tenant)):
        said = f"{name!r} is the operator's: take another name"
        raise Conflict(said, code="lora_exists", errors=[FieldError("name", said)])


async def _already(front: FrontEnd, got: Received, model: str) -> Lora | None:
    """Return the adapter of that name, where it is this very one.

    Raises: Conflict: it is another one, or the tenant has as many as it may have.
    """
    limits, records = await front.tenants.of(got.tenant), await front.queue.loras(got.tenant)
    there = records.get(got.form.name)
    if there is None and len(records) >= limits.max_loras:
        raise _full(got.tenant, limits)
    if there is None or (there.digest, there.model) == (got.file.digest, model):
        return there
    raise _taken(there)


def _taken(there: Lora) -> Conflict:
    said = (
        f"there is another adapter {there.name!r}, for the model {there.model!r}; delete it first"
        f" (DELETE /v1/loras/{there.name}), or take another name"
    )
    return Conflict(said, code="lora_exists", errors=[FieldError("name", said)])


async def _checked(front: FrontEnd, got: Received, spec: ModelSpec, model: str) -> Lora:
    """Return the adapter that the file is. Raises: Invalid."""
    preview = await _check_preview(front, got)
    try:
        facts = await check_lora(got.file.file, spec.lora_layers, got.form.expert)
    except LoraFileError as error:
        raise Invalid([FieldError(error.field, str(error))], code="bad_lora") from None
    _check_rank(facts.rank, spec, front.settings.limits.max_lora_rank)
    return Lora(
        name=got.form.name,
        model=model,
        digest=got.file.digest,
        bytes=got.file.bytes,
        rank=facts.rank,
        networks=facts.networks,
        trigger=got.form.trigger,
        preview=preview,
        origin="upload",
        tenants=(got.tenant,),
    )


async def _check_preview(front: FrontEnd, got: Received) -> str | None:
    """Return the key that the preview will have; None: there is none. Raises: Invalid."""
    if not got.preview.is_there:
        return None
    try:
        await front.images.check(bytes(got.preview.data), got.client)
    except ImageFileError as error:
        raise Invalid([FieldError("preview", str(error))]) from None
    return preview_key(got.tenant, uuid4().hex)


def _check_rank(rank: int, spec: ModelSpec, max_rank: int) -> None:
    """Raises: Invalid: no request could ever name it."""
    most = min(max_rank, PAGE_RANK * spec.lora_pages)
    if rank <= most:
        return
    whose = f"the model {spec.name!r}" if most < max_rank else "this server (limits.max_lora_rank)"
    said = f"has rank {rank}, and {whose} takes {most}; resize it to a lower rank"
    raise Invalid([FieldError("file", said)])


@contextlib.contextmanager
def _busy() -> Iterator[None]:
    """Raises: Busy, Unavailable: in place of what a lock raises."""
    try:
        yield
    except LoraBusy as error:
        said = f"{error}; try again"
        raise Busy(said, code="lora_busy", retry_after_s=RETRY_AFTER_S) from None
    except TimeoutError:
        said = "the store takes too long for this file; try again"
        raise Unavailable(said, code="store_unreachable", retry_after_s=RETRY_AFTER_S) from None


async def _kept(front: FrontEnd, got: Received, lora: Lora) -> Lora:
    """Store the file, then record it; the caller holds its lock.

    Raises: Conflict, QuotaExceeded, StoreError.
    """
    limits = await front.tenants.of(got.tenant)
    async with _cleaned(front, got.tenant, lora):
        await front.store.put_file(lora_key(got.tenant, lora.digest), got.file.file, MEDIA_TYPE)
        if lora.preview:
            await front.store.put(lora.preview, bytes(got.preview.data), MEDIA_TYPE)
        preview_bytes = len(got.preview.data) if lora.preview else 0
        recorded = await front.queue.record_lora(got.tenant, lora, limits, preview_bytes)
    await front.loras.forget(got.tenant)
    match recorded:
        case LoraOutcome("full", _):
            raise _full(got.tenant, limits)
        case LoraOutcome("taken", Lora() as there):
            raise _taken(there)
    log.info("the adapter %r of %s was uploaded", lora.name, lora.model)
    return lora


@contextlib.asynccontextmanager
async def _cleaned(front: FrontEnd, tenant: str, lora: Lora) -> AsyncIterator[None]:
    """Delete, at the end, the files that no record has: something failed, or was refused."""
    try:
        yield
    finally:
        try:
            records = (await front.queue.loras(tenant)).values()
            files = {lora.preview} - {one.preview for one in records}
            if lora.digest not in {one.digest for one in records}:
                files.add(lora_key(tenant, lora.digest))
            await front.store.delete([file for file in files if file])
        except (RedisError, OSError, StoreError) as error:
            log.warning("files of an adapter that was not kept may be left: %s", error)


def _full(tenant: str, limits: TenantSettings) -> Conflict:
    return Conflict(
        f"the tenant {tenant!r} may have {limits.max_loras} adapters, and has as many; delete one"
        f" (DELETE /v1/loras/NAME), or ask the operator for more (tenants.{tenant}.max_loras)",
        code="too_many_loras",
    )


async def delete(front: FrontEnd, tenant: str, name: str) -> None:
    """Remove a tenant's adapter, then delete its files; where that fails, it is there again.

    Raises:
        NotFound: there is none.
        Forbidden: it is the operator's.
        StoreError: as the store.
    """
    lora = (await front.queue.loras(tenant)).get(name)
    if lora is None:
        raise await _not_theirs(front, tenant, name)
    with _busy():
        async with front.queue.lora_lock(tenant, lora.digest):
            await _remove(front, tenant, lora)
    await front.loras.forget(tenant)
    log.info("the adapter %r of %s was deleted", name, lora.model)


async def _remove(front: FrontEnd, tenant: str, lora: Lora) -> None:
    """Raises: StoreError: the record is there again."""
    is_shared, preview_bytes = await front.queue.remove_lora(tenant, lora)
    files = [lora.preview, None if is_shared else lora_key(tenant, lora.digest)]
    try:
        await front.store.delete([file for file in files if file])
    except StoreError:
        limits = front.tenants.known(tenant).model_copy(update={"stored_bytes": None})
        await front.queue.record_lora(tenant, lora, limits, preview_bytes)
        raise


async def _not_theirs(front: FrontEnd, tenant: str, name: str) -> Exception:
    """Return why a tenant cannot delete an adapter that it has not uploaded."""
    if all(lora.name != name for lora in await front.loras.configured(tenant)):
        return no_such_lora(name)
    return Forbidden(
        f"the adapter {name!r} is the operator's, who removes it from the settings (loras.{name})"
    )
