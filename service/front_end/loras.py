"""Adapters that requests may name: the operator's, as pools have registered them, and uploads.

Copies of what Redis holds, a moment old; what this front end changes it sees at once.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from models.spec.lora import Lora
from service.errors.problems import NotFound
from service.front_end.cost_cache import Copies
from service.jobs.queue import ModelStatus, Queue

Registered = Callable[[], Awaitable[Mapping[str, ModelStatus]]]


class Loras:
    """Catalogue of adapters, by tenant."""

    def __init__(self, registered: Registered, queue: Queue, max_age_s: float) -> None:
        """Make the catalogue.

        Args:
            registered: returns the registered models.
        """
        self._registered = registered
        self._uploaded = Copies[dict[str, Lora]](queue.loras, max_age_s)

    async def of(self, tenant: str) -> list[Lora]:
        """Return what the tenant may name, by name.

        An uploaded one whose name the operator has given later to another is left out.
        """
        configured = await self.configured(tenant)
        taken = {lora.name for lora in configured}
        uploaded = (await self._uploaded.get(tenant)).values()
        found = [*configured, *(lora for lora in uploaded if lora.name not in taken)]
        return sorted(found, key=lambda lora: (lora.name, lora.model))

    async def configured(self, tenant: str) -> list[Lora]:
        """Return the operator's adapters that the tenant may name."""
        models = (await self._registered()).values()
        return [lora for one in models for lora in one.spec.loras.values() if lora.may_use(tenant)]

    async def get(self, tenant: str, name: str) -> Lora:
        """Return the adapter of that name.

        Raises: NotFound: there is none, or it is another tenant's, which is told alike.
        """
        for lora in await self.of(tenant):
            if lora.name == name:
                return lora
        raise no_such_lora(name)

    async def forget(self, tenant: str) -> None:
        """Forget the copy of a tenant's adapters, which have just changed."""
        await self._uploaded.forget(tenant)


def no_such_lora(name: str) -> NotFound:
    """Return the problem of an adapter that is not there."""
    return NotFound(
        f"there is no adapter {name[:80]!r}; GET /v1/loras lists those that there are",
        code="lora_not_found",
    )
