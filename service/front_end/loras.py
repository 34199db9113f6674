"""Catalogue of adapters that requests may name: the operator's, registered by workers, and uploads.

The data are recent copies from Redis. Changes by this front end take effect immediately.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from models.spec.lora import Lora, without_ending
from service.errors.problems import NotFound
from service.front_end.cost_cache import TimedCache
from service.jobs.queue import ModelStatus, Queue

Registered = Callable[[], Awaitable[Mapping[str, ModelStatus]]]


class Loras:
    """Catalogue of LoRA adapters that each tenant's requests may name."""

    def __init__(self, registered: Registered, queue: Queue, max_age_s: float) -> None:
        """Create the catalogue of LoRA adapters.

        Args:
            registered: returns the registered models.
        """
        self._registered = registered
        self._uploaded = TimedCache[dict[str, Lora]](queue.loras, max_age_s)

    async def of(self, tenant: str) -> list[Lora]:
        """List the adapters that the tenant may name, by name.

        An upload is omitted if the operator has since given its name to another adapter.
        """
        configured = await self.configured(tenant)
        taken = {lora.name for lora in configured}
        uploaded = (await self._uploaded.get(tenant)).values()
        adapters = [*configured, *(lora for lora in uploaded if lora.name not in taken)]
        return sorted(adapters, key=lambda lora: (lora.name, lora.model))

    async def configured(self, tenant: str) -> list[Lora]:
        """List the operator's adapters that the tenant may name."""
        models = (await self._registered()).values()
        return [
            lora for model in models for lora in model.spec.loras.values() if lora.may_use(tenant)
        ]

    async def get(self, tenant: str, name: str) -> Lora:
        """Find the adapter of that name for a tenant.

        Raises: NotFound: no such adapter, or it belongs to another tenant; the response is the
        same.
        """
        by_name = {lora.name: lora for lora in reversed(await self.of(tenant))}
        lora = by_name.get(name) or by_name.get(without_ending(name))
        if lora is None:
            raise no_such_lora(name)
        return lora

    async def forget(self, tenant: str) -> None:
        """Drop the copy of a tenant's adapters after a change."""
        await self._uploaded.forget(tenant)


def no_such_lora(name: str) -> NotFound:
    """Create the problem for an unknown adapter name."""
    return NotFound(
        f"there is no adapter {name[:80]!r}; GET /v1/loras lists the available ones",
        code="lora_not_found",
    )
