"""LoRA adapters of an engine: read requested adapter files into pages of the device banks."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from functools import cached_property, partial
from pathlib import Path

from models.adapters.adaptable_layers import names_of
from models.adapters.files.adapter import AdapterError
from models.adapters.files.embedding import read_embedding
from models.adapters.files.formats import read
from models.adapters.files.name_table import Names
from models.interface.adapters import requested_adapters, with_bank_pages
from models.interface.pipeline import Fields, Pipeline, PreparedRow
from models.spec.embeddings import path_of
from models.spec.lora import RequestedLora
from service.jobs.model.job import JobError
from workers import metrics
from workers.engine.adapter_slots import AdapterSlots
from workers.engine.errors import GenerationFailed
from workers.programs.adapter_banks import AdapterBanks
from workers.programs.device_weights import Weights
from workers.programs.launcher import Launcher
from workers.programs.step_latency import Recent

log = logging.getLogger(__name__)

LOADERS = 2
"""Number of adapters read concurrently, so that a large one does not delay the others."""


LoraFiles = Callable[[RequestedLora, str], Awaitable[Path]]
"""Resolver of the local file of an adapter that a tenant's request names. Raises: LoraGone,
StoreError."""


class LoraGone(Exception):
    """Error of an adapter that no longer exists, with the reason."""


async def no_files(lora: RequestedLora, tenant: str) -> Path:
    """Raise LoraGone: resolver of an engine without adapters."""
    raise LoraGone("this pool has no adapters")


@contextmanager
def adapter_errors() -> Iterator[None]:
    """Convert errors of an adapter's file to GenerationFailed."""
    try:
        yield
    except (LoraGone, AdapterError, ValueError) as error:
        raise GenerationFailed(JobError(code="lora_gone", message=str(error))) from error


class Adapters:
    """Adapter loader of one engine. Use it from the engine's event loop.

    Args:
        launcher: forwards writes to the other processes of the slice.
        files: resolves the adapters' files.
    """

    def __init__(
        self, pipeline: Pipeline, weights: Weights, launcher: Launcher, files: LoraFiles
    ) -> None:
        self._pipeline = pipeline
        self._files = files
        self._banks = AdapterBanks(pipeline, weights)
        self._write = launcher.write(self._banks.write)
        self._slots = AdapterSlots(pipeline.spec.lora_pages)
        self._times = Recent()
        self._threads = ThreadPoolExecutor(LOADERS, "adapters")
        self._under_way: set[asyncio.Future[None]] = set()
        """Pending loads, including those of images that were canceled."""
        if self._slots.pages:
            self._report_pages()

    @property
    def digests(self) -> list[str]:
        """Digests of the adapters on the device, the most recently used first."""
        return self._slots.digests

    @property
    def load_s(self) -> float:
        """Median seconds of the latest adapter loads; 0 before the first."""
        return self._times.median or 0.0

    @asynccontextmanager
    async def reserved(
        self, prepared: PreparedRow, tenant: str, on_wait: Callable[[], None]
    ) -> AsyncIterator[PreparedRow]:
        """Yield the request with its adapters' pages, which stay reserved inside the context.

        Args:
            tenant: tenant whose adapter files the request may name.
            on_wait: called if an adapter is not loaded yet.

        Raises: GenerationFailed: an adapter is missing or cannot be read.
        """
        if not prepared.adapters:
            yield prepared
            return
        if not self._slots.has(prepared.adapters):
            on_wait()
        async with AsyncExitStack() as stack:
            holding = self._slots.reserve(prepared.adapters, partial(self._load, tenant))
            with adapter_errors():
                pages = await stack.enter_async_context(holding)
            yield with_bank_pages(prepared, pages)

    async def embeddings(self, fields: Fields, tenant: str) -> dict[str, bytes]:
        """Read the embeddings that a request's prompts name: vectors in float32, by path.

        Raises: GenerationFailed: an embedding is missing or cannot be read; StoreError.
        """
        sizes = self._pipeline.spec.embedding_sizes
        files: dict[str, bytes] = {}
        for entry in requested_adapters(fields):
            if entry.vectors:
                with adapter_errors():
                    path = await self._files(entry, tenant)
                    vectors = await asyncio.to_thread(read_embedding, path, sizes, entry.name)
                files |= {
                    path_of(entry.name, encoder): array.astype("<f4").tobytes()
                    for encoder, array in vectors.items()
                }
        return files

    def warm_up(self) -> None:
        """Compile the programs that write pages, before any adapter is loaded."""
        for index, pages, array in self._banks.empty():
            self._write(index, pages, array)

    async def settled(self) -> None:
        """Wait until no adapter is being written to the devices."""
        if self._under_way:
            await asyncio.wait(self._under_way)

    def close(self) -> None:
        """Cancel queued adapter loads and accept no more."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _load(self, tenant: str, lora: RequestedLora, pages: Sequence[int]) -> None:
        """Load one adapter's file into its pages, and record the time.

        Raises: LoraGone; AdapterError: its file has changed.
        """
        started = time.perf_counter()
        file = await self._files(lora, tenant)
        loop = asyncio.get_running_loop()
        filling = loop.run_in_executor(self._threads, self._fill, lora, file, pages)
        self._under_way.add(filling)
        filling.add_done_callback(self._under_way.discard)
        await asyncio.shield(filling)
        took_s = time.perf_counter() - started
        self._times.observe(took_s)
        metrics.adapter_loaded(self._pipeline.spec.name, took_s)
        self._report_pages()
        log.info("adapter %s is on the device after %.2f s", lora.name, took_s)

    def _fill(self, lora: RequestedLora, file: Path, pages: Sequence[int]) -> None:
        adapter = read(file, self._names, lora.expert)
        is_too_high = adapter.pages > len(pages) and not lora.is_reduced
        if is_too_high or set(adapter.networks) - set(lora.networks):
            raise AdapterError(f"{lora.name}: its file has changed; send the request again")
        for index, page_indices, array in self._banks.arrays(adapter, pages):
            self._write(index, page_indices, array)

    def _report_pages(self) -> None:
        free = self._slots.free_pages
        metrics.adapter_pages_are(self._pipeline.spec.name, self._slots.pages - free, free)

    @cached_property
    def _names(self) -> Names:
        return names_of(self._pipeline)
