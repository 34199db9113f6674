"""Adapters of a request: the pages that its rows read in each step, and their scales.

A row numbers its pages from 0, adapter by adapter. The worker maps them to pages of its bank
(`placed`). A step program has a fixed number of pages. A row's pages are padded to it with pages of
scale 0, so a row's results depend only on its own request.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from models.interface.pipeline import Fields, PreparedRow, Step
from models.parallel.row_adapters import RowAdapters
from models.spec.lora import RequestedLora, page_count

PAGES, SCALES, OWNERS = "adapter_pages", "adapter_scales", "adapter_owners"
"""Names in a step's values, and in the inputs of `encode`, as in `RowAdapters`."""


NO_OWNER = -1
"""Owner of pages whose adapter has no magnitudes."""


def requested_adapters(fields: Fields) -> tuple[RequestedLora, ...]:
    """Return the adapters of a resolved request, in order."""
    return tuple(RequestedLora.model_validate(lora) for lora in fields.get("loras") or ())


def with_adapters(
    steps: Sequence[Step], adapters: Sequence[RequestedLora], before: int = 0
) -> tuple[Step, ...]:
    """Return the steps with the adapter pages that their networks read.

    Args:
        before: number of the image's steps before these.
    """
    total = before + len(steps)
    return tuple(
        _with_pages(step, _columns(adapters, {step.program.network}, number, total))
        for number, step in enumerate(steps, before)
    )


def _with_pages(step: Step, columns: Mapping[str, np.ndarray]) -> Step:
    if not columns:
        return step
    program = replace(
        step.program, adapter_pages=len(columns[PAGES]), adapter_magnitudes=OWNERS in columns
    )
    return replace(step, program=program, values={**step.values, **columns})


def encoder_inputs(
    adapters: Sequence[RequestedLora], encoders: Collection[str]
) -> dict[str, np.ndarray]:
    """Return the inputs of `encode` for adapters that change text encoders; empty if none do.

    Prompts are encoded once, with the scales of the first step.
    """
    return dict(_columns(adapters, encoders, 0, 1))


def _columns(
    adapters: Sequence[RequestedLora], networks: Collection[str], step: int, steps: int
) -> Mapping[str, np.ndarray]:
    """Return the adapters' scales by bank page, float32 [pages], for these networks."""
    pages: list[int] = []
    scales: list[float] = []
    owners: list[int] = []
    first = 0
    for adapter in adapters:
        if set(networks) & set(adapter.networks):
            ranks = adapter.pages - adapter.has_magnitudes
            magnitudes = len(pages) + ranks if adapter.has_magnitudes else NO_OWNER
            pages += range(first, first + adapter.pages)
            scales += [adapter.scale(step, steps)] * ranks + [0.0] * adapter.has_magnitudes
            owners += [magnitudes] * ranks + [NO_OWNER] * adapter.has_magnitudes
        first += adapter.pages
    if not pages:
        return {}
    more = page_count(len(pages)) - len(pages)
    columns = {
        PAGES: np.array(pages + pages[:1] * more, np.float32),
        SCALES: np.array(scales + [0.0] * more, np.float32),
    }
    if any(owner != NO_OWNER for owner in owners):
        columns[OWNERS] = np.array(owners + [NO_OWNER] * more, np.float32)
    return columns


def with_bank_pages(prepared: PreparedRow, places: Sequence[int]) -> PreparedRow:
    """Map a request's pages to pages of a bank.

    Args:
        places: bank page of each page, adapter by adapter.
    """
    if not prepared.adapters:
        return prepared
    bank_pages = np.array(places, np.float32)

    def moved(values: Mapping[str, Any]) -> Mapping[str, Any]:
        if PAGES not in values:
            return values
        return {**values, PAGES: bank_pages[values[PAGES].astype(int)]}

    steps = tuple(replace(step, values=moved(step.values)) for step in prepared.steps)
    return replace(prepared, inputs=moved(prepared.inputs), steps=steps)


def row_adapters(values: Mapping[str, Any], rows: int | None = None) -> RowAdapters | None:
    """Return the adapters of a step's rows, or of `encode`'s single row; None without adapters.

    Args:
        values: with a leading row axis; without a row axis if `rows` is 1.
    """
    if PAGES not in values:
        return None
    names = (PAGES, SCALES, OWNERS) if OWNERS in values else (PAGES, SCALES)
    pages, scales, *owners = (jnp.asarray(values[name]) for name in names)
    if rows == 1:
        pages, scales, *owners = (column[None] for column in (pages, scales, *owners))
    return RowAdapters(
        jax.lax.convert_element_type(pages, jnp.int32),
        scales,
        *(jax.lax.convert_element_type(owner, jnp.int32) for owner in owners),
    )
