"""Adapters of a request: the pages that its rows read in each step, and how strongly.

A row's pages are counted from 0, adapter by adapter; whoever runs it knows where in the bank each
of them lies. A step's program is made for a number of pages: what a row needs is filled up to the
next one with pages of scale 0, so that its numbers depend on its own request alone.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from models.interface.pipeline import Fields, Prepared, Step
from models.parallel.row_adapters import RowAdapters
from models.spec.lora import RequestedLora, page_count

PAGES, SCALES = "adapter_pages", "adapter_scales"
"""Names among a step's values, and among the inputs of `encode`."""


def requested_adapters(fields: Fields) -> tuple[RequestedLora, ...]:
    """Return the adapters of a resolved request, in its order."""
    return tuple(RequestedLora.model_validate(one) for one in fields.get("loras") or ())


def with_adapters(
    steps: Sequence[Step], adapters: Sequence[RequestedLora], before: int = 0
) -> tuple[Step, ...]:
    """Return the steps, each with the pages that its network reads.

    Args:
        before: steps of the image before these.
    """
    total = before + len(steps)
    return tuple(
        _with_pages(step, _columns(adapters, {step.phase.network}, number, total))
        for number, step in enumerate(steps, before)
    )


def _with_pages(step: Step, columns: Mapping[str, np.ndarray]) -> Step:
    if not columns:
        return step
    phase = replace(step.phase, adapter_pages=len(columns[PAGES]))
    return replace(step, phase=phase, values={**step.values, **columns})


def encoder_inputs(
    adapters: Sequence[RequestedLora], encoders: Collection[str]
) -> dict[str, np.ndarray]:
    """Return the inputs of `encode` for adapters that change text encoders; none without.

    Scales are those of the first step: prompts are encoded once.
    """
    return dict(_columns(adapters, encoders, 0, 1))


def _columns(
    adapters: Sequence[RequestedLora], networks: Collection[str], step: int, steps: int
) -> Mapping[str, np.ndarray]:
    """Pages and scales of the adapters that change any of these networks, float32 [pages]."""
    pages: list[int] = []
    scales: list[float] = []
    first = 0
    for adapter in adapters:
        if set(networks) & set(adapter.networks):
            pages += range(first, first + adapter.pages)
            scales += [adapter.scale(step, steps)] * adapter.pages
        first += adapter.pages
    if not pages:
        return {}
    more = page_count(len(pages)) - len(pages)
    return {
        PAGES: np.array(pages + pages[:1] * more, np.float32),
        SCALES: np.array(scales + [0.0] * more, np.float32),
    }


def placed(prepared: Prepared, places: Sequence[int]) -> Prepared:
    """Return a request whose pages are those of a bank.

    Args:
        places: where in the bank each page lies, adapter by adapter.
    """
    if not prepared.adapters:
        return prepared
    where = np.array(places, np.float32)

    def moved(values: Mapping[str, Any]) -> Mapping[str, Any]:
        if PAGES not in values:
            return values
        return {**values, PAGES: where[values[PAGES].astype(int)]}

    steps = tuple(replace(step, values=moved(step.values)) for step in prepared.steps)
    return replace(prepared, inputs=moved(prepared.inputs), steps=steps)


def row_adapters(values: Mapping[str, Any], rows: int | None = None) -> RowAdapters | None:
    """Return the adapters of a step's rows, or of the one row of `encode`; None without any.

    Args:
        values: with a leading row axis; without one if `rows` is 1.
    """
    if PAGES not in values:
        return None
    pages, scales = (jnp.asarray(values[name]) for name in (PAGES, SCALES))
    if rows == 1:
        pages, scales = pages[None], scales[None]
    return RowAdapters(jax.lax.convert_element_type(pages, jnp.int32), scales)
