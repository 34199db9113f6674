"""A measuring as one JSON document: the result, or why there is none, and what it belongs to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from deploy.bench.engine.ask import EngineCase
from deploy.bench.engine.measure import measured
from deploy.bench.machine import flags, machine, versions
from models.interface.pipeline import RequestError
from workers.engine.errors import GenerationFailed
from workers.loading.model import NotEnoughMemory


def report(ask: EngineCase) -> dict[str, Any]:
    """Report on one model; a refusal for memory or for the request becomes its result.

    Raises: CheckpointError, ConfigError: the model or the layout is none.
    """
    try:
        result = measured(ask).as_json()
    except (NotEnoughMemory, RequestError, GenerationFailed) as error:
        result = {"model": ask.model, "tiny": ask.tiny, "refused": str(error)}
    return document([result])


def document(results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the results with the machine and versions that they belong to."""
    return {
        "made_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine(),
        "versions": versions(),
        "flags": flags(),
        "results": [*results],
    }
