"""A request's `loras` against the adapters that its tenant may name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from typing import Any

from models.spec.lora import PAGE_RANK, Lora, RequestedLora, ScaleInterval
from models.spec.model_spec import ModelSpec
from service.errors.problems import FieldError

NAMED = 8
"""Adapters that a refusal names, of those that there are."""

Entry = Mapping[str, Any]
"""Adapter of a request: `name` and `scale`."""


class NoSuchLora(ValueError):
    """A request names an adapter that it cannot have; the message says why."""


def wrong_loras(
    entries: Sequence[Entry], spec: ModelSpec, max_loras: int, offered: Sequence[Lora]
) -> Iterator[FieldError]:
    """Report adapters that a request cannot have, alone or together.

    Args:
        offered: what the tenant may name, of any model.
    """
    if len(entries) > max_loras:
        yield FieldError("loras", f"has {len(entries)} adapters; a request may have {max_loras}")
        return
    chosen: dict[str, Lora] = {}
    for index, entry in enumerate(entries):
        try:
            lora = _found(entry["name"], spec, offered)
        except NoSuchLora as error:
            yield FieldError(f"loras.{index}.name", str(error))
            continue
        if lora.name in chosen:
            said = f"{lora.name!r} is there twice; name it once, with the sum of its scales"
            yield FieldError(f"loras.{index}.name", said)
        chosen[lora.name] = lora
    counted = [
        chosen[entry["name"]] for entry in entries if scales(entry) and entry["name"] in chosen
    ]
    if sum(lora.pages for lora in counted) > spec.lora_pages:
        yield FieldError("loras", _too_high(counted, spec))


def requested(
    entries: Sequence[Entry], spec: ModelSpec, offered: Sequence[Lora]
) -> tuple[RequestedLora, ...]:
    """Return the adapters of a request without errors that count in any step."""
    found = ((_found(entry["name"], spec, offered), scales(entry)) for entry in entries)
    return tuple(
        RequestedLora(
            name=lora.name,
            digest=lora.digest,
            pages=lora.pages,
            networks=lora.networks,
            scales=intervals,
        )
        for lora, intervals in found
        if intervals
    )


def scales(entry: Entry) -> tuple[ScaleInterval, ...]:
    """Return the intervals in which an adapter counts, by their start; none: it has no effect."""
    asked = entry["scale"]
    if not isinstance(asked, list):
        asked = [{"from": 0, "to": 1, "scale": asked}]
    found = [
        ScaleInterval(start=one["from"], stop=one["to"], scale=one["scale"])
        for one in asked
        if one["scale"]
    ]
    return tuple(sorted(found, key=lambda one: one.start))


def _found(name: str, spec: ModelSpec, offered: Sequence[Lora]) -> Lora:
    """Return the model's adapter of that name. Raises: NoSuchLora."""
    named = [lora for lora in offered if lora.name == name]
    own = next((lora for lora in named if spec.takes(lora)), None)
    if own is None:
        raise NoSuchLora(_not_here(name, named, spec, offered))
    if own.error is not None:
        raise NoSuchLora(f"the adapter {name!r} cannot be used: {own.error}")
    return own


def _not_here(name: str, named: Sequence[Lora], spec: ModelSpec, offered: Sequence[Lora]) -> str:
    if named:
        of = " and ".join(repr(lora.model) for lora in named)
        return f"the adapter {name!r} is for the model {of}, not for {spec.name!r}"
    there_are = [one.name for one in offered if spec.takes(one) and one.error is None]
    if not there_are:
        return (
            f"there is no adapter {name!r}: the model {spec.name!r} has none yet; upload one by"
            " POST /v1/loras"
        )
    return f"the model {spec.name!r} has no adapter {name!r}; there is {_nearest(name, there_are)}"


def _nearest(name: str, there_are: Sequence[str]) -> str:
    def unlikeness(other: str) -> tuple[float, str]:
        return -SequenceMatcher(None, name.lower(), other.lower()).ratio(), other

    more = f" and {len(there_are) - NAMED} more" if len(there_are) > NAMED else ""
    return ", ".join(sorted(there_are, key=unlikeness)[:NAMED]) + more


def _too_high(chosen: Sequence[Lora], spec: ModelSpec) -> str:
    ranks = {lora.name: PAGE_RANK * lora.pages for lora in chosen}
    each = ", ".join(f"{name} {rank}" for name, rank in ranks.items())
    most = PAGE_RANK * spec.lora_pages
    return (
        f"takes rank {sum(ranks.values())} ({each}; each counts in multiples of {PAGE_RANK}), and"
        f" the model {spec.name!r} allows {most} at once; leave one out"
    )
