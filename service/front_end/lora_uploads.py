"""Upload and deletion of adapters, ordered so that recorded adapters always have files."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from tempfile import TemporaryFile
from uuid import uuid4

from redis.exceptions import RedisError

from models.media.image_files import ImageFileError
from models.spec.lora import PAGE_RANK, Lora, without_ending
from models.spec.model_spec import ModelSpec
from service.errors.problems import Busy, Conflict, FieldError, Forbidden, Invalid, Unavailable
from service.front_end.front_end import FrontEnd
from service.front_end.loras import no_such_lora
from service.http.form_parts import FilePart, MemoryPart
from service.http.lora_checks import LoraFileError, ModelLayers, check_lora
from service.jobs.loras import LoraOutcome
from service.jobs.queue import LoraBusy
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
class ReceivedUpload:
    """Upload of a LoRA adapter, completely received but not checked."""

    tenant: str
    client: str
    """Client whose image check limit applies to the preview."""
    form: LoraUpload
    file: FilePart
    preview: MemoryPart


@contextlib.asynccontextmanager
async def parts_of(front: FrontEnd) -> AsyncIterator[tuple[FilePart, MemoryPart]]:
    """Create the file parts of an upload.

    The large one is an unnamed file, so crashes leave none.
    """
    state = front.settings.state_dir  # on a disk, because /tmp is memory on many machines
    folder = state if state.is_dir() else None
    file = TemporaryFile(dir=folder)  # noqa: SIM115 - closed in a thread, because it takes time
    try:
        adapter = FilePart(front.settings.limits.max_lora_bytes, "an adapter's file", file)
        yield adapter, MemoryPart(MAX_PREVIEW_BYTES, "a preview")
    finally:
        await asyncio.to_thread(file.close)


async def upload(front: FrontEnd, received: ReceivedUpload) -> tuple[Lora, bool]:
    """Check and store an adapter; return it, and whether it is new.

    Raises:
        Problem: rejected, and nothing is stored.
        QuotaExceeded: the tenant's byte quota is exceeded, and nothing is stored.
        StoreError: as the store.
    """
    specs = await front.models.versions(received.form.model)
    spec = min(specs, key=lambda version: version.lora_pages)
    if not ((spec.lora_pages and spec.lora_layers) or spec.embedding_sizes):
        raise Invalid([FieldError("model", takes_no_loras(spec))])
    model = _served_by(specs)
    await _check_name(front, received.tenant, received.form.name)
    if existing := await _existing(front, received, model):
        return existing, False
    lora = await _check(front, received, spec, model)
    with _busy():
        async with front.queue.lora_lock(received.tenant, lora.digest):
            if existing := await _existing(front, received, model):
                return existing, False
            return await _store(front, received, lora), True


def _served_by(specs: Sequence[ModelSpec]) -> str:
    """Return the model name to record for an adapter: for an alias, its versions' common name.

    Raises: Invalid: the versions have no common name, or different layers.
    """
    if len(specs) == 1:
        return specs[0].queue
    if len({(spec.line, spec.lora_layers) for spec in specs}) == 1:
        return specs[0].line
    names = ", ".join(sorted(spec.name for spec in specs))
    message = (
        f"its versions have different names or layers; upload the adapter for one of them: {names}"
    )
    raise Invalid([FieldError("model", message)])


async def _check_name(front: FrontEnd, tenant: str, name: str) -> None:
    """Check that no operator's adapter has this name. Raises: Conflict."""
    if any(lora.name == name for lora in await front.loras.configured(tenant)):
        message = f"{name!r} belongs to the operator; use another name"
        raise Conflict(message, code="lora_exists", errors=[FieldError("name", message)])


async def _existing(front: FrontEnd, received: ReceivedUpload, model: str) -> Lora | None:
    """Return the recorded adapter of that name, if it has the same contents.

    Raises: Conflict: its contents differ, or the tenant has reached its limit.
    """
    limits, records = (
        await front.tenants.of(received.tenant),
        await front.queue.loras(received.tenant),
    )
    existing = records.get(received.form.name)
    if existing is None and len(records) >= limits.max_loras:
        raise _too_many(received.tenant, limits)
    if existing is None or (existing.digest, existing.model) == (received.file.digest, model):
        return existing
    raise _name_conflict(existing)


def _name_conflict(existing: Lora) -> Conflict:
    message = (
        f"there is another adapter {existing.name!r}, for the model {existing.model!r}; delete it"
        f" first (DELETE /v1/loras/{existing.name}), or use another name"
    )
    return Conflict(message, code="lora_exists", errors=[FieldError("name", message)])


async def _check(front: FrontEnd, received: ReceivedUpload, spec: ModelSpec, model: str) -> Lora:
    """Check the uploaded files and build the adapter's record. Raises: Invalid."""
    preview = await _check_preview(front, received)
    try:
        max_rank = min(front.settings.limits.max_lora_rank, PAGE_RANK * spec.lora_pages)
        layers = ModelLayers(spec.lora_layers, spec.embedding_sizes)
        facts = await check_lora(received.file.file, layers, received.form.expert, max_rank)
    except LoraFileError as error:
        message = str(error) if spec.lora_pages else f"{error}; {takes_no_loras(spec)}"
        raise Invalid([FieldError(error.field, message)], code="bad_lora") from None
    for warning in facts.warnings:
        log.warning("the adapter %r of %s: %s", received.form.name, model, warning)
    return Lora(
        name=received.form.name,
        model=model,
        digest=received.file.digest,
        bytes=received.file.bytes,
        **facts._asdict(),
        trigger=received.form.trigger,
        preview=preview,
        origin="upload",
        tenants=(received.tenant,),
    )


async def _check_preview(front: FrontEnd, received: ReceivedUpload) -> str | None:
    """Check the preview and return its new key; None: no preview. Raises: Invalid."""
    if not received.preview.is_present:
        return None
    try:
        await front.images.check(bytes(received.preview.data), received.client)
    except ImageFileError as error:
        raise Invalid([FieldError("preview", str(error))]) from None
    return preview_key(received.tenant, uuid4().hex)


@contextlib.contextmanager
def _busy() -> Iterator[None]:
    """Convert errors of acquiring an upload's lock to Busy and Unavailable."""
    try:
        yield
    except LoraBusy as error:
        message = f"{error}; try again"
        raise Busy(message, code="lora_busy", retry_after_s=RETRY_AFTER_S) from None
    except TimeoutError:
        message = "the store takes too long for this file; try again"
        raise Unavailable(message, code="store_unreachable", retry_after_s=RETRY_AFTER_S) from None


async def _store(front: FrontEnd, received: ReceivedUpload, lora: Lora) -> Lora:
    """Store the files, then record the adapter. The caller holds its lock.

    Raises: Conflict, QuotaExceeded, StoreError.
    """
    limits = await front.tenants.of(received.tenant)
    async with _cleaning_up(front, received.tenant, lora):
        await front.store.put_file(
            lora_key(received.tenant, lora.digest), received.file.file, MEDIA_TYPE
        )
        if lora.preview:
            await front.store.put(lora.preview, bytes(received.preview.data), MEDIA_TYPE)
        preview_bytes = len(received.preview.data) if lora.preview else 0
        recorded = await front.queue.record_lora(received.tenant, lora, limits, preview_bytes)
    await front.loras.forget(received.tenant)
    match recorded:
        case LoraOutcome("full", _):
            raise _too_many(received.tenant, limits)
        case LoraOutcome("taken", Lora() as existing):
            raise _name_conflict(existing)
    log.info("the adapter %r of %s was uploaded", lora.name, lora.model)
    return lora


@contextlib.asynccontextmanager
async def _cleaning_up(front: FrontEnd, tenant: str, lora: Lora) -> AsyncIterator[None]:
    """Delete files without a record at the end, after a failure or rejection."""
    try:
        yield
    finally:
        try:
            records = (await front.queue.loras(tenant)).values()
            files = {lora.preview} - {record.preview for record in records}
            if lora.digest not in {record.digest for record in records}:
                files.add(lora_key(tenant, lora.digest))
            await front.store.delete([file for file in files if file])
        except (RedisError, OSError, StoreError) as error:
            log.warning("files of an adapter that was not recorded may remain: %s", error)


def _too_many(tenant: str, limits: TenantSettings) -> Conflict:
    return Conflict(
        f"the tenant {tenant!r} has reached its limit of {limits.max_loras} adapters; delete one"
        f" (DELETE /v1/loras/NAME), or ask the operator for more (tenants.{tenant}.max_loras)",
        code="too_many_loras",
    )


async def delete(front: FrontEnd, tenant: str, name: str) -> None:
    """Remove a tenant's adapter, then delete its files. If deletion fails, the record is restored.

    Raises:
        NotFound: no such adapter.
        Forbidden: it is the operator's.
        StoreError: as the store.
    """
    loras = await front.queue.loras(tenant)
    lora = loras.get(name) or loras.get(without_ending(name))
    if lora is None:
        raise await _deletion_error(front, tenant, name)
    with _busy():
        async with front.queue.lora_lock(tenant, lora.digest):
            await _remove(front, tenant, lora)
    await front.loras.forget(tenant)
    log.info("the adapter %r of %s was deleted", lora.name, lora.model)


async def _remove(front: FrontEnd, tenant: str, lora: Lora) -> None:
    """Remove an adapter's record and files. Raises: StoreError: the record was restored."""
    is_shared, preview_bytes = await front.queue.remove_lora(tenant, lora)
    files = [lora.preview, None if is_shared else lora_key(tenant, lora.digest)]
    try:
        await front.store.delete([file for file in files if file])
    except StoreError:
        limits = front.tenants.cached(tenant).model_copy(update={"stored_bytes": None})
        await front.queue.record_lora(tenant, lora, limits, preview_bytes)
        raise


async def _deletion_error(front: FrontEnd, tenant: str, name: str) -> Exception:
    """Create the error for deleting an adapter that the tenant has not uploaded."""
    if all(lora.name != name for lora in await front.loras.configured(tenant)):
        return no_such_lora(name)
    return Forbidden(
        f"the adapter {name!r} belongs to the operator, who can remove it from the settings"
        f" (loras.{name})"
    )
