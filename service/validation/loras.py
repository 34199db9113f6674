"""Validation of a request's `loras` against the adapters available to its tenant."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from typing import Any

from models.spec.lora import PAGE_RANK, Lora, RequestedLora, ScaleInterval, without_ending
from models.spec.model_spec import ModelSpec
from service.errors.problems import FieldError

MAX_LISTED = 8
"""Maximum number of available adapters listed in an error."""
MAX_COMPARED_CHARS = 40
"""Length to which names are compared letter by letter."""

Entry = Mapping[str, Any]
"""Adapter of a request: `name` and `scale`."""


class NoSuchLora(ValueError):
    """Adapter that a request cannot use. The message states the reason."""


def wrong_loras(
    entries: Sequence[Entry], spec: ModelSpec, max_loras: int, offered: Sequence[Lora]
) -> Iterator[FieldError]:
    """Report adapters that a request cannot use, individually or in combination.

    Args:
        offered: adapters that the tenant may name, for any model.
    """
    if len(entries) > max_loras:
        yield FieldError("loras", f"has {len(entries)} adapters; a request may have {max_loras}")
        return
    chosen: set[str] = set()
    counted: dict[str, Lora] = {}
    for index, entry in enumerate(entries):
        try:
            lora = _find(entry["name"], spec, offered)
        except NoSuchLora as error:
            yield FieldError(f"loras.{index}.name", str(error))
            continue
        if lora.name in chosen:
            message = f"{lora.name!r} occurs twice; name it once, with the sum of its scales"
            yield FieldError(f"loras.{index}.name", message)
        chosen.add(lora.name)
        if scales(entry):
            counted[lora.name] = lora
    if sum(lora.pages for lora in counted.values()) > spec.lora_pages:
        yield FieldError("loras", _too_high([*counted.values()], spec))


def requested_loras(
    entries: Sequence[Entry], spec: ModelSpec, offered: Sequence[Lora]
) -> tuple[RequestedLora, ...]:
    """List the adapters of a valid request that affect any step."""
    resolved = ((_find(entry["name"], spec, offered), scales(entry)) for entry in entries)
    return tuple(
        RequestedLora(
            name=lora.name,
            digest=lora.digest,
            pages=lora.pages,
            networks=lora.networks,
            scales=intervals,
            has_magnitudes=lora.has_magnitudes,
            is_reduced=lora.is_reduced,
        )
        for lora, intervals in resolved
        if intervals
    )


def scales(entry: Entry) -> tuple[ScaleInterval, ...]:
    """List the step intervals in which an adapter has a nonzero scale; empty: no effect."""
    scale = entry["scale"]
    if not isinstance(scale, list):
        scale = [{"from": 0, "to": 1, "scale": scale}]
    intervals = [
        ScaleInterval(start=interval["from"], stop=interval["to"], scale=interval["scale"])
        for interval in scale
        if interval["scale"]
    ]
    return tuple(sorted(intervals, key=lambda interval: interval.start))


def _find(name: str, spec: ModelSpec, offered: Sequence[Lora]) -> Lora:
    """Find the model's adapter of that name, or of the name of its file. Raises: NoSuchLora."""
    named = [lora for lora in offered if lora.name == name] or [
        lora for lora in offered if lora.name == without_ending(name)
    ]
    match = next((lora for lora in named if spec.accepts_adapter(lora)), None)
    if match is None:
        raise NoSuchLora(_unknown_adapter(name, named, spec, offered))
    if match.vectors:
        raise NoSuchLora(f"{name!r} is an embedding: write its name into the prompt instead")
    if match.error is not None:
        raise NoSuchLora(f"the adapter {name!r} cannot be used: {match.error}")
    return match


def _unknown_adapter(
    name: str, named: Sequence[Lora], spec: ModelSpec, offered: Sequence[Lora]
) -> str:
    if named:
        models = " and ".join(repr(lora.model) for lora in named)
        return f"the adapter {name!r} is for the model {models}, not for {spec.name!r}"
    available = [
        adapter.name
        for adapter in offered
        if spec.accepts_adapter(adapter) and adapter.error is None and not adapter.vectors
    ]
    if not available:
        return (
            f"there is no adapter {name!r}: the model {spec.name!r} has none yet; upload one by"
            " POST /v1/loras"
        )
    return (
        f"the model {spec.name!r} has no adapter {name!r}; available: {_nearest(name, available)}"
    )


def _nearest(name: str, available: Sequence[str]) -> str:
    """List adapters of similar names.

    Comparing the order of letters costs the product of the lengths, so only a few are compared so.
    """
    letters = SequenceMatcher(None, "", name.lower())

    def by_letters(other: str) -> tuple[float, str]:
        letters.set_seq1(other.lower())
        return -letters.quick_ratio(), other

    def by_order(other: str) -> tuple[float, str]:
        first, second = (text.lower()[:MAX_COMPARED_CHARS] for text in (name, other))
        return -SequenceMatcher(None, first, second).ratio(), other

    nearest = sorted(sorted(available, key=by_letters)[:MAX_LISTED], key=by_order)
    rest = f" and {len(available) - MAX_LISTED} more" if len(available) > MAX_LISTED else ""
    return ", ".join(nearest) + rest


def _too_high(chosen: Sequence[Lora], spec: ModelSpec) -> str:
    ranks = {lora.name: PAGE_RANK * lora.pages for lora in chosen}
    listed = ", ".join(f"{name} {rank}" for name, rank in ranks.items())
    limit = PAGE_RANK * spec.lora_pages
    return (
        f"takes rank {sum(ranks.values())} ({listed}; each counts in multiples of {PAGE_RANK}), and"
        f" the model {spec.name!r} allows {limit} at once; leave one out"
    )
