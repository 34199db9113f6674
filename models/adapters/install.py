"""Installation of adapter banks in a pipeline's networks."""

from __future__ import annotations

from typing import Any

from flax import nnx

from models.adapters.banks import with_banks
from models.spec.lora import PAGE_COUNTS
from models.weights.loader import Sharding

FIELD = "loras"
"""Request field of adapters."""


def install_banks(pipeline: Any, pages: int, sharding: Sharding | None = None) -> None:
    """Add empty banks to a pipeline's networks. Changes its graphs, weights and spec.

    Args:
        pipeline: with `graphs`, `weights`, `spec` and `SPELLINGS`; its weights may be abstract.
        pages: of each bank; 0: no banks.
        sharding: of each array; None: JAX's default device.
    """
    if not pages:
        return
    for name in {spelling.network for spelling in pipeline.SPELLINGS}:
        graph, state = getattr(pipeline.graphs, name), getattr(pipeline.weights, name)
        if graph is None:
            continue
        graph, state = nnx.split(with_banks(nnx.merge(graph, state), pages, sharding))
        pipeline.graphs = pipeline.graphs._replace(**{name: graph})
        pipeline.weights = pipeline.weights._replace(**{name: state})
    pipeline.spec = pipeline.spec.model_copy(
        update={
            "lora_pages": min(pages, PAGE_COUNTS[-1]),
            "fields": pipeline.spec.fields | {FIELD},
        }
    )
