"""Origin of a worker's outputs: its chips, region and checkpoint, for metrics and the ledger."""

from __future__ import annotations

from importlib.metadata import version

from service.jobs.model.ledger import Origin
from service.settings.usage import UsageSettings
from workers import metrics
from workers.engine.place import Place


def origin_of(place: Place, usage: UsageSettings) -> Origin:
    """Return where a worker runs, with all chips of its slice."""
    made_by = place.made_by
    return Origin(made_by.chip, place.chips, usage.region, usage.spot, made_by.checkpoint)


def show(model: str, place: Place, origin: Origin, sharing: int = 1) -> None:
    """Export the worker's origin as metrics.

    Args:
        sharing: number of models on the slice; each series gets an equal share of the chips.
    """
    spot, chips = str(origin.spot).lower(), f"{origin.chips:g}"
    metrics.worker_info.labels(
        model,
        origin.chip,
        chips,
        place.layout,
        spot,
        origin.region or "",
        version("atelier"),
        origin.checkpoint,
    ).set(1)
    metrics.worker_chips.labels(model, origin.chip, spot).set(origin.chips / sharing)
