"""Models as a front end knows them: those of pools, variants of these, and aliases."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace

from models.spec.model_spec import ModelSpec
from service.errors.problems import FieldError, NotFound, Unavailable
from service.jobs.aliases import AliasRecords
from service.jobs.model.alias import Alias
from service.jobs.queue import ModelStatus, Queue
from service.jobs.records import RecordCopies

NO_MODEL_RETRY_S = 5.0

Known = Mapping[str, ModelStatus]
"""Models by name."""


class Models:
    """The models that requests may name, read again when the copy is older than `max_age_s`."""

    def __init__(self, queue: Queue, max_age_s: float) -> None:
        self._queue = queue
        self._max_age_s = max_age_s
        self._lock = asyncio.Lock()
        self._own: dict[str, ModelStatus] = {}
        self.aliases = RecordCopies(AliasRecords(queue.redis), {}, max_age_s=0)
        self.known: dict[str, ModelStatus] = {}
        """Models and aliases as they were last read."""
        self._read_at = -float("inf")

    async def own(self) -> dict[str, ModelStatus]:
        """Return all models without aliases, read anew once the copy is old."""
        await self.all()
        return self._own

    async def all(self) -> dict[str, ModelStatus]:
        """Return all models, read anew once the copy is old."""
        if self._is_old():
            async with self._lock:
                if self._is_old():
                    await self._read()
        return self.known

    async def latest(self) -> dict[str, ModelStatus]:
        """Return all models, read anew."""
        return await self._all_since(time.monotonic())

    async def _all_since(self, since: float) -> dict[str, ModelStatus]:
        """Return all models, read anew unless that was begun after a point of the clock."""
        async with self._lock:
            if self._read_at < since:
                await self._read()
        return self.known

    async def _read(self) -> None:
        began = time.monotonic()
        self._own = with_variants(await self._queue.models())
        aliases = await self.aliases.all()
        self.known = {**self._own, **dict(_shown(aliases, self._own))}
        self._read_at = began

    def _is_old(self) -> bool:
        return time.monotonic() - self._read_at >= self._max_age_s

    async def get(self, name: str | None, point: float | None = None) -> ModelStatus:
        """The model of that name; without one, the only model there is.

        Args:
            point: draws a version of an alias, evenly distributed from 0 to 1; None: the one with
                the greatest weight, as `GET /v1/models` shows it.

        Raises:
            Unavailable: no pool has registered one, or none for very long.
            NotFound: names what there is.
        """
        asked_at = time.monotonic()
        known = await self.all()
        if not known or (name is not None and name not in known):
            known = await self._all_since(asked_at)  # a pool may just have registered it
        if not known:
            raise Unavailable(
                "no model is registered; try again when a pool has started",
                code="no_model",
                retry_after_s=NO_MODEL_RETRY_S,
            )
        name = self.check(name)
        alias = self.aliases.known.get(name)
        if alias is None or point is None:
            return known[name]
        version = alias.draw(serving(alias, self._own), point)
        status = self._own[version]
        return replace(status, spec=status.spec.as_alias(name))

    def check(self, name: str | None) -> str:
        """Return the name of the model that a request names, of those that were last read.

        Raises: NotFound: names what there is.
        """
        there = self.only() if name is None else name
        if there is None or there not in self.known:
            raise _unknown_model(name, sorted(self.known))
        return there

    async def versions(self, name: str | None) -> list[ModelSpec]:
        """Return the specs of an alias's versions that are registered; a model has one, its own.

        Raises: as `get`.
        """
        spec = (await self.get(name)).spec
        alias = self.aliases.known.get(spec.name)
        names = alias.weights if alias else [spec.name]
        return [self._own[one].spec for one in names if one in self._own]

    def only(self) -> str | None:
        """Return the name that requests need not give; None: there are several.

        Versions count as their alias.
        """
        versions = {
            version
            for name, alias in self.aliases.known.items()
            if name in self.known
            for version in alias.weights
        }
        names = [name for name in self.known if name not in versions or name in self.aliases.known]
        return names[0] if len(names) == 1 else None


def serving(alias: Alias, own: Known) -> list[str]:
    """Return the versions of an alias that may serve a request now."""
    ready = {name for name in alias.weights if name in own and own[name].ready}
    return list(alias.candidates(ready, own.keys()))


def _shown(aliases: Mapping[str, Alias], own: Known) -> Iterator[tuple[str, ModelStatus]]:
    """Yield aliases as models; those without a single version that is registered are left out."""
    for name, alias in aliases.items():
        versions = serving(alias, own)
        if not versions:
            continue
        pools = {pool for version in versions for pool in own[version].pools}
        yield (
            name,
            ModelStatus(
                own[alias.leading(versions)].spec.as_alias(name),
                tuple(sorted(pools)),
                any(own[version].ready for version in versions),
            ),
        )


def with_variants(registered: Known) -> dict[str, ModelStatus]:
    """Return models with those that their pools serve beside them; their own go first."""
    variants = {
        spec.name: replace(status, spec=spec)
        for status in registered.values()
        for spec in status.spec.variants()
    }
    return {**variants, **registered}


def _unknown_model(name: str | None, there_is: list[str]) -> NotFound:
    choice = "there is " + ", ".join(there_is)
    said = f"name a model: {choice}" if name is None else f"there is no model {name!r}; {choice}"
    return NotFound(said, code="model_not_found", errors=[FieldError("model", choice)])
