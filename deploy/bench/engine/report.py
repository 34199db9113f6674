"""Benchmark report as one JSON document: the result or the refusal, with its environment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from deploy.bench.engine.case import EngineCase
from deploy.bench.engine.measure import measured
from deploy.bench.machine import flags, machine, versions
from models.spec.request import RequestError
from workers.engine.errors import GenerationFailed
from workers.loading.model import NotEnoughMemory


def report(case: EngineCase) -> dict[str, Any]:
    """Measure one model; an error of memory or of the request becomes the result.

    Raises: CheckpointError, ConfigError: the model or the layout is invalid.
    """
    try:
        result = measured(case).as_json()
    except (NotEnoughMemory, RequestError, GenerationFailed) as error:
        result = {"model": case.model, "tiny": case.tiny, "refused": str(error)}
    return document([result])


def document(results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the results with the machine and the versions."""
    return {
        "made_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine(),
        "versions": versions(),
        "flags": flags(),
        "results": [*results],
    }
