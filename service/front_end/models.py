"""Catalogue of models that requests may name: registered models, their variants, and aliases."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType

from models.spec.model_spec import ModelSpec
from service.errors.problems import FieldError, NotFound, Unavailable
from service.jobs.aliases import AliasRecords
from service.jobs.model.alias import Alias
from service.jobs.queue import ModelStatus, Queue
from service.jobs.records import RecordCopies
from service.settings.names import MAX_NAME_CHARS

NO_MODEL_RETRY_S = 5.0

ModelsByName = Mapping[str, ModelStatus]
"""Models by name."""


class Models:
    """Cached catalogue of models, reread when older than `max_age_s`."""

    def __init__(
        self, queue: Queue, max_age_s: float, aliases: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        """Create a catalogue of models that has not been read yet.

        Args:
            aliases: other names of models, by alias, from the settings.
        """
        self._queue = queue
        self._other_names = aliases
        self._max_age_s = max_age_s
        self._lock = asyncio.Lock()
        self._registered: dict[str, ModelStatus] = {}
        self.aliases = RecordCopies(AliasRecords(queue.redis), {}, max_age_s=0)
        self.last_read: dict[str, ModelStatus] = {}
        """Models and aliases at the last read."""
        self._read_at = -float("inf")

    async def registered(self) -> dict[str, ModelStatus]:
        """Return all models except aliases, reread if the copy is too old."""
        await self.all()
        return self._registered

    async def all(self) -> dict[str, ModelStatus]:
        """Return all models, reread if the copy is too old."""
        if self._is_old():
            async with self._lock:
                if self._is_old():
                    await self._read()
        return self.last_read

    async def latest(self) -> dict[str, ModelStatus]:
        """Reread the models from Redis and return all of them."""
        return await self._all_since(time.monotonic())

    async def _all_since(self, since: float) -> dict[str, ModelStatus]:
        """Return all models, reread from Redis unless the last read started after `since`."""
        async with self._lock:
            if self._read_at < since:
                await self._read()
        return self.last_read

    async def _read(self) -> None:
        began = time.monotonic()
        self._registered = with_variants(await self._queue.models())
        aliases = await self.aliases.all()
        self.last_read = {**self._registered, **dict(_alias_models(aliases, self._registered))}
        self._read_at = began

    def _is_old(self) -> bool:
        return time.monotonic() - self._read_at >= self._max_age_s

    async def get(self, name: str | None, point: float | None = None) -> ModelStatus:
        """Find the model of that name; without a name, the only model.

        Args:
            point: selects a version of an alias, uniform in 0 to 1; None: the version with the
                greatest weight, as in `GET /v1/models`.

        Raises:
            Unavailable: no model is registered.
            NotFound: unknown name; the message lists the models.
        """
        requested_at = time.monotonic()
        models = await self.all()
        if not models or (name is not None and self.name_of(name) not in models):
            models = await self._all_since(requested_at)  # a worker may just have registered it
        if not models:
            raise Unavailable(
                "no model is registered; try again when a pool has started",
                code="no_model",
                retry_after_s=NO_MODEL_RETRY_S,
            )
        name = self.check(name)
        alias = self.aliases.cached.get(name)
        if alias is None or point is None:
            return models[name]
        version = alias.draw(serving_versions(alias, self._registered), point)
        status = self._registered[version]
        return replace(status, spec=status.spec.as_alias(name))

    def check(self, name: str | None) -> str:
        """Resolve the model name of a request against the last read.

        Raises: NotFound: unknown name; the message lists the models.
        """
        resolved = self.only() if name is None else self.name_of(name)
        if resolved is None or resolved not in self.last_read:
            raise _unknown_model(name, sorted(self.last_read))
        return resolved

    def name_of(self, name: str) -> str:
        """Return the model's name that an alias of the settings stands for; others unchanged."""
        return name if name in self.last_read else self._other_names.get(name, name)

    def other_names(self, model: str) -> list[str]:
        """List the configured aliases of a model."""
        return sorted(
            alias
            for alias, name in self._other_names.items()
            if name == model and alias not in self.last_read
        )

    async def find(self, path: str) -> str:
        """Return the name that `named_in` selects, from models reread if none matches."""
        requested_at = time.monotonic()
        await self.all()
        if self.name_of(self.named_in(path)) not in self.last_read:
            await self._all_since(requested_at)
        return self.named_in(path)

    def named_in(self, path: str) -> str:
        """Return the model that a path names, which may begin with an owner or app.

        Model names may contain slashes: the longest end of the path that is a model's name wins,
        by default its last segment.
        """
        end = path
        if len(path) > MAX_NAME_CHARS:  # no name is longer, and one begins after a slash
            end = path[-MAX_NAME_CHARS - 1 :].partition("/")[2]
        while end:
            if self.name_of(end) in self.last_read:
                return end
            end = end.partition("/")[2]
        return path.rpartition("/")[2]

    async def versions(self, name: str | None) -> list[ModelSpec]:
        """List the specs of an alias's registered versions; for a model, its own spec.

        Raises: as `get`.
        """
        spec = (await self.get(name)).spec
        alias = self.aliases.cached.get(spec.name)
        names = alias.weights if alias else [spec.name]
        return [self._registered[version].spec for version in names if version in self._registered]

    def only(self) -> str | None:
        """Return the name of the only model, which requests may omit; None: there are several.

        Versions count as part of their alias.
        """
        versions = {
            version
            for name, alias in self.aliases.cached.items()
            if name in self.last_read
            for version in alias.weights
        }
        names = [
            name for name in self.last_read if name not in versions or name in self.aliases.cached
        ]
        return names[0] if len(names) == 1 else None


def serving_versions(alias: Alias, registered: ModelsByName) -> list[str]:
    """List the versions of an alias that may serve a request now."""
    ready = {name for name in alias.weights if name in registered and registered[name].ready}
    return list(alias.candidates(ready, registered.keys()))


def _alias_models(
    aliases: Mapping[str, Alias], registered: ModelsByName
) -> Iterator[tuple[str, ModelStatus]]:
    """Yield aliases as models, except aliases without a registered version."""
    for name, alias in aliases.items():
        versions = serving_versions(alias, registered)
        if not versions:
            continue
        pools = {pool for version in versions for pool in registered[version].pools}
        yield (
            name,
            ModelStatus(
                registered[alias.leading(versions)].spec.as_alias(name),
                tuple(sorted(pools)),
                any(registered[version].ready for version in versions),
            ),
        )


def with_variants(registered: ModelsByName) -> dict[str, ModelStatus]:
    """Add the variants that workers serve to the models. Registered models take precedence."""
    variants = {
        spec.name: replace(status, spec=spec)
        for status in registered.values()
        for spec in status.spec.variants()
    }
    return {**variants, **registered}


def _unknown_model(name: str | None, available: list[str]) -> NotFound:
    models = "available: " + ", ".join(available)
    request = "name a model" if name is None else f"there is no model {name[:MAX_NAME_CHARS]!r}"
    message = f"{request}; {models}"
    return NotFound(message, code="model_not_found", errors=[FieldError("model", models)])
