"""Slots of an adapter bank: allocation of pages, order of waiting images, eviction."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from models.spec.lora import RequestedLora, always
from workers.engine.adapter_slots import AdapterSlots


def lora(name: str, pages: int = 1) -> RequestedLora:
    return RequestedLora(
        name=name, digest=name, pages=pages, networks=("transformer",), scales=always(1.0)
    )


class Loads:
    """Simulated loads that finish when `gate` is open. Each page stores its adapter's digest."""

    def __init__(self, pages: int) -> None:
        self.slots = AdapterSlots(pages)
        self.pages = [""] * pages
        self.loaded: list[str] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.broken: set[str] = set()

    async def load(self, adapter: RequestedLora, pages: Sequence[int]) -> None:
        await self.gate.wait()
        if adapter.digest in self.broken:
            raise ValueError(f"{adapter.name} is broken")
        for page in pages:
            self.pages[page] = adapter.digest
        self.loaded.append(adapter.digest)

    @asynccontextmanager
    async def reserve(self, *adapters: RequestedLora) -> AsyncIterator[list[int]]:
        async with self.slots.reserve(adapters, self.load) as pages:
            names = [adapter.digest for adapter in adapters for _ in range(adapter.pages)]
            assert [self.pages[page] for page in pages] == names, "pages are their adapter's"
            yield pages
            assert [self.pages[page] for page in pages] == names, "nobody else has had them"


async def settled() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_shared_adapter_is_loaded_once() -> None:
    loads = Loads(4)
    async with loads.reserve(lora("a", 2)) as first, loads.reserve(lora("a", 2)) as second:
        assert first == second
    async with loads.reserve(lora("a", 2)) as third:
        assert third == first
    assert loads.loaded == ["a"]


async def test_the_least_recently_used_adapter_leaves() -> None:
    loads = Loads(2)
    for name in "abac":
        async with loads.reserve(lora(name)):
            pass
    assert loads.slots.digests == ["c", "a"]


async def test_image_with_loaded_adapters_overtakes_a_waiting_one() -> None:
    loads = Loads(3)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(loads.reserve(lora("a")))
        async with loads.reserve(lora("b")):
            pass
        async with loads.reserve(lora("c")):
            pass
        large = loads.reserve(lora("large", 3))
        waiting = asyncio.create_task(large.__aenter__())
        await settled()
        assert not waiting.done()
        passing = asyncio.create_task(stack.enter_async_context(loads.reserve(lora("d"))))
        await settled()
        assert not passing.done(), "it would take the pages that the first one waits for"
        await stack.aclose()
        await waiting
        assert not passing.done()
        await large.__aexit__(None, None, None)
        await passing


async def test_adapter_chosen_for_eviction_admits_no_new_image() -> None:
    loads = Loads(2)
    async with loads.reserve(lora("a")), loads.reserve(lora("b")):
        large = loads.reserve(lora("large", 2))
        waiting = asyncio.create_task(large.__aenter__())
        await settled()
        again = asyncio.create_task(loads.reserve(lora("a")).__aenter__())
        await settled()
        assert not again.done(), "or a stream of such images would keep the large one out for ever"
    await waiting
    await large.__aexit__(None, None, None)
    await again


async def test_a_broken_adapter_fails_its_own_images_and_frees_its_pages() -> None:
    loads = Loads(1)
    loads.broken.add("a")
    with pytest.raises(ValueError, match="a is broken"):
        async with loads.reserve(lora("a")):
            pass
    await settled()
    async with loads.reserve(lora("b")):
        assert loads.slots.digests == ["b"]


async def test_canceled_waiter_does_not_block_others() -> None:
    loads = Loads(1)
    async with loads.reserve(lora("a")):
        waiting = asyncio.create_task(loads.reserve(lora("b")).__aenter__())
        await settled()
        waiting.cancel()
        await settled()
        async with loads.reserve(lora("a")):
            pass
    assert loads.loaded == ["a"]


async def test_more_pages_than_the_bank_has_are_refused() -> None:
    with pytest.raises(ValueError, match="take 3 pages, and this pool has 2"):
        async with Loads(2).reserve(lora("a", 2), lora("b")):
            pass


@pytest.mark.parametrize("seed", range(20))
async def test_random_images_get_their_adapters_and_all_finish(
    seed: int,
) -> None:
    rng, loads = random.Random(seed), Loads(6)
    loads.broken.add("5")
    adapters = [lora(str(number), rng.choice([1, 1, 2, 4])) for number in range(8)]

    async def image() -> None:
        chosen = rng.sample(adapters, rng.choice([1, 1, 2]))
        if sum(adapter.pages for adapter in chosen) > loads.slots.pages:
            return
        try:
            async with asyncio.timeout(rng.choice([0.001, 30, 30, 30])), loads.reserve(*chosen):
                for _ in range(rng.randrange(20)):
                    await asyncio.sleep(0)
        except (TimeoutError, ValueError):
            pass

    async with asyncio.timeout(30):
        await asyncio.gather(*(image() for _ in range(300)))
    await settled()
    held_pages = sum(adapter.pages for adapter in adapters if adapter.digest in loads.slots.digests)
    assert loads.slots.free_pages + held_pages == loads.slots.pages, "no page is lost"
