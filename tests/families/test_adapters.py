"""Adapters in the engine, with real networks of every family.

An image with adapters has the same bits alone and in any batch, and equals the image of merged
weights.
"""

from __future__ import annotations

import asyncio
import io
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from models.interface.pipeline import Fields, split_sound
from models.media.pixels import on_white
from models.parallel.axis_rules import Layout
from models.spec.quality_presets import Quality, StepCache
from models.weights.quantize import Rounding
from tests.families.adapters import (
    KINDS,
    Loras,
    Model,
    asking,
    begun,
    by_steps,
    leave_one,
    scaled,
    states_after,
)
from tests.families.suite import EVERY, SUITE, loaded
from tests.families.suite.entry import T5
from tests.families.test_batch_invariance import RowOutput, drawn, images, one
from tests.workers.resume import disturbed_at
from workers.engine.engine import Engine
from workers.engine.generation import ImageRequest
from workers.programs.batch_sizes import exact, fast
from workers.programs.step_latency import BatchLayout

ROWS = PAGES = 8
"""Rows of one launch, and pages of each bank."""
PAIRS = 5
OF_ONE_PAGE = ("lokr", "loha")
"""Other kinds of adapters with as many pages as a LoRA."""
EXACT = "float32"
MAX_LEVELS, MIN_DB = 2, 60.0
"""Tolerance for sums in another order: levels of 255, PSNR in dB."""
LATENTS = 1e-4
"""Relative tolerance of the last step: W x + B A x sums in another order than (W + B A) x."""
SHOWS_DB = 40.0
"""PSNR above which two images look the same."""
SHOWS = 1.0
"""Minimum mean difference, in levels of 255, that an adapter must cause."""
PRESETS = ("eight-bit", "eight-bit-weights")
STEPS = {"wan": 4}
"""Number of steps of a family whose three are too few: both experts of Wan 2.2 have enough."""
CACHED = {"cached": Quality(step_cache=StepCache(kind="first-block", threshold=0.5))}

Models = Callable[[str], Model]
"""Function that returns a model by dtype."""


STRENGTH = "strength"


def is_left_out(family: str, change: str) -> bool:
    """Return whether a change is not tested with an entry. `conftest.py` calls this.

    Variants have their family's network, so that one preset of each optimization is tested with
    them.
    """
    if change == STRENGTH:
        return family not in SUITE or not SUITE[family].has_strength
    if change in CACHED:
        return not EVERY[family].step_caches
    return family not in SUITE and change != PRESETS[0]


DRAWN = (
    *(*SUITE, "flux-control", "wan-vace"),
    *("sdxl-controlnet", "sdxl-refiner", "sdxl-refined"),
)


OF_VARIANTS = "two at once"
"""Case that is tested with the variants outside `DRAWN`."""


@pytest.fixture(scope="module", params=DRAWN)
def family(request: pytest.FixtureRequest) -> str:
    """Return every family, and variants with layers of other shapes, with networks that adapters do
    not change, and with a single text encoder."""
    return str(request.param)


@pytest.fixture(scope="module")
def folder(family: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the smallest checkpoint. Wan has two experts, each with a stack of layers."""
    folder = tmp_path_factory.mktemp("adapters") / family
    if family != "wan":
        return EVERY[family].least(folder)
    from tests.parity.tiny_wan import make_wan

    layers = {"num_layers": 2}
    return make_wan(folder, transformer=layers, transformer_2=layers, boundary_ratio=0.875, t5=T5)


def load(family: str, folder: Path, adapters: Path, dtype: str) -> Model:
    """Load a model and make its adapters.

    Ten have one page; half of these change only some layers and no text encoder. One has two pages.
    Wan has one for its low-noise expert. In float32 the model has every preset.
    """
    how: dict[str, Any] = {}
    if dtype == EXACT:
        caches = CACHED if EVERY[family].step_caches else {}
        how = {"rounding": Rounding("beside"), "qualities": caches}
    plain = loaded(family, folder, dtype, **how)
    loras = Loras(plain, adapters)
    denoiser = loras.names.networks[0].network
    for number in range(PAIRS):
        loras.make(f"whole {number}", (4, 16)[number % 2])
        loras.make(f"part {number}", (16, 4)[number % 2], only=[denoiser], share=0.4)
    loras.make("two pages", 20, only=[denoiser])
    for kind in KINDS:
        loras.make(kind, 4, only=[denoiser], kind=kind)
    if family == "wan":
        loras.make("low noise", 16, expert="low")
    return Model(
        plain,
        loras,
        {**EVERY[family].smallest_request, "num_inference_steps": STEPS.get(family, 3)},
    )


@pytest.fixture(scope="module")
def models(family: str, folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Models:
    return cache(lambda dtype: load(family, folder, tmp_path_factory.mktemp("loras"), dtype))


def of_one_page(model: Model) -> list[Fields]:
    """Return requests with one-page adapters, more than the banks have pages."""
    names = [f"{kind} {number}" for number in range(PAIRS) for kind in ("whole", "part")]
    names[4:4] = OF_ONE_PAGE
    return [asking(model.fields, model.loras[name]) for name in names]


def mixed(model: Model) -> list[Fields]:
    """Return requests with an adapter of one or two pages, with two adapters, and with none.

    Wan's requests use either expert and both. In this order, new adapters evict others.
    """
    adapters = model.loras.made
    first, second = adapters["whole 0"], adapters["part 0"]
    chosen = [(), (adapters["two pages"],), (second, by_steps(first, (0, 0.5, -0.5)))]
    chosen += [(adapters["dora"],)]
    if "low noise" in adapters:
        chosen += [(adapters["low noise"],), (first, adapters["low noise"])]
    return [*of_one_page(model), *(asking(model.fields, *loras) for loras in chosen)]


async def test_batch_of_eight_adapters_matches_single_rows(models: Models, layout: Layout) -> None:
    """Each row of an exact batch of eight, each with another adapter, gets the bits of a single row
    at several positions of the batch, in its first step.

    tests/parallel/test_adapters.py tests the same in float32.
    """
    model = models("bfloat16")
    with model.engine(PAGES, layout, ROWS, exact(ROWS)) as engine:
        async with AsyncExitStack() as stack:
            rows = [await begun(engine, stack, fields) for fields in of_one_page(model)[:ROWS]]
            alone = [latents(states_after(engine, [row])[0]) for row in rows]
            for first in (0, 3):
                turned = [*range(first, ROWS), *range(first)]
                states = states_after(engine, [rows[number] for number in turned])
                assert [*map(latents, states)] == [alone[number] for number in turned]
    assert len({*alone}) == ROWS, "all alike"


@pytest.mark.parametrize("family", ["sdxl"], indirect=True)
async def test_adapters_change_the_encoding_of_every_chunk(models: Models, layout: Layout) -> None:
    """Each chunk is encoded like a separate prompt, with and without the adapter."""
    model = models(EXACT)
    adapter = model.loras["whole 0"]
    with model.engine(PAGES, layout, ROWS, exact(ROWS)) as engine:
        async with AsyncExitStack() as stack:

            async def embeds(prompt: str, *loras: Any) -> np.ndarray:
                fields = {**model.fields, "prompt_syntax": "weighted", "prompt": prompt}
                row = await begun(engine, stack, asking(fields, *loras))
                return np.asarray(row.state["prompt_embeds"][0])

            both = await embeds("a (red:1.3) BREAK star", adapter)
            parts = [await embeds(part, adapter) for part in ("a (red:1.3)", "star")]
            plain = await embeds("star")
    np.testing.assert_allclose(both, np.concatenate(parts), rtol=1e-4, atol=1e-4)
    assert np.abs(parts[1] - plain).max() > 0.01, "the adapter changes nothing"


def latents(state: Any) -> bytes:
    return np.asarray(state["latents"]).tobytes()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
async def test_loading_and_evicting_adapters_change_no_bit(
    dtype: str, models: Models, layout: Layout
) -> None:
    """Loading and evicting adapters changes no bit of an image, although the banks cannot hold all
    of them.

    Alone, requests run in another order, with other pages.
    """
    model = models(dtype)
    requests = mixed(model) if dtype == EXACT else of_one_page(model)
    with model.engine(PAGES, layout, 4) as engine:
        together = await drawn(engine, requests, together=True)
        assert len(engine.adapters.digests) < len(distinct(requests)), "none has left"
    with model.engine(PAGES, layout, 1) as other:
        alone = await drawn(other, requests[::-1], together=False)
    assert together == alone[::-1]
    assert len({image.latents for image in together}) == len(requests), "all alike"


def distinct(requests: list[Fields]) -> set[str]:
    return {lora["digest"] for fields in requests for lora in fields["loras"]}


async def test_image_resumes_in_another_engine_from_its_snapshot(
    models: Models, layout: Layout
) -> None:
    """An image resumes from its snapshot in another engine, where its adapters occupy other pages.

    One of Wan's adapters is for the last steps, which remain however late the snapshot is.
    """
    model = models(EXACT)
    last = "low noise" if "low noise" in model.loras.made else "whole 0"
    fields, first, other_one = (
        {**asking(model.fields, *(model.loras[name] for name in names)), "num_inference_steps": 9}
        for names in ((last, "part 0"), ("part 0",), ("whole 1",))
    )
    with model.engine(PAGES, layout) as engine, model.engine(PAGES, layout) as other:
        full = await one(engine, fields)
        _, snapshot = await disturbed_at(2, engine, fields, images(engine))
        await drawn(other, [other_one, first], together=False)
        assert await one(other, fields, snapshot) == full
        assert await one(other, first, snapshot) != full, "the rest has no adapters"


async def test_banks_without_adapters_change_no_bit(models: Models, layout: Layout) -> None:
    """Networks with empty banks equal networks without banks, before and after another image has
    adapters."""
    model = models(EXACT)
    with model.engine(0, layout) as engine:
        expected = await one(engine, model.fields)
    with model.engine(PAGES, layout) as engine:
        results = await drawn(engine, [model.fields, asking(model.fields)], together=False)
        adapted = await one(engine, asking(model.fields, model.loras["whole 0"]))
        results.append(await one(engine, model.fields))
    assert results == [expected] * 3 and adapted != expected


CASES: dict[str, dict[str, float]] = {
    "one": {"whole 1": 1.0},
    "negative": {"whole 1": -0.7},
    "two pages": {"two pages": 0.8},
    "two at once": {"whole 1": 0.8, "part 0": -0.5},
}
"""Scales of the adapters, by case."""


@pytest.mark.parametrize("case", CASES)
async def test_adapters_match_merged_weights(case: str, models: Models, layout: Layout) -> None:
    await check_merged(CASES[case], models, layout)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "lora"])
async def test_lokr_loha_and_dora_equal_merged_weights(
    kind: str, models: Models, layout: Layout
) -> None:
    """LoKr and LoHa become products; DoRA scales the vectors of the changed weights."""
    await check_merged({kind: 0.8}, models, layout)


async def check_merged(scales: Mapping[str, float], models: Models, layout: Layout) -> None:
    """Check that an image with adapters equals that of merged weights."""
    model = models(EXACT)
    adapters = [scaled(model.loras[name], scale) for name, scale in scales.items()]
    merge = [(model.loras.read(model.loras[name]), scale) for name, scale in scales.items()]
    with model.engine(PAGES, layout) as engine, model.engine(PAGES, layout, merge=merge) as fused:
        plain = await one(engine, model.fields)
        result = await one(engine, asking(model.fields, *adapters))
        assert_alike(result, await one(fused, model.fields))
    assert psnr_db(result, plain) < SHOWS_DB, "the adapters do not show"


def values(image: RowOutput) -> tuple[np.ndarray, np.ndarray]:
    """Return an image's latents and pixels."""
    return np.frombuffer(image.latents, np.float32), np.frombuffer(image.pixels, np.uint8)


def psnr_db(actual: RowOutput, expected: RowOutput) -> float:
    noise = np.mean(np.square(values(actual)[1].astype(float) - values(expected)[1]))
    return float(np.inf if noise == 0 else 10 * np.log10(255**2 / noise))


def assert_alike(actual: RowOutput, expected: RowOutput) -> None:
    """Check that two images are equal but for rounding."""
    (latents, pixels), (expected_latents, expected_pixels) = values(actual), values(expected)
    gap = np.abs(latents - expected_latents).max() / np.abs(expected_latents).max()
    assert gap < LATENTS, f"{gap:.1e}"
    assert np.abs(pixels.astype(int) - expected_pixels).max() <= MAX_LEVELS
    assert psnr_db(actual, expected) >= MIN_DB


async def test_scales_by_steps_are_those_of_each_step(models: Models, layout: Layout) -> None:
    """An adapter with several scales equals steps run without an engine, each with the weights of
    its scale.

    The prompt has the first scale.
    """
    model = models(EXACT)
    lora = model.loras["whole 1"]
    scales, steps = (0.9, -0.6), {**model.fields, "num_inference_steps": 4}
    turning = by_steps(lora, (0, 0.25, scales[0]), (0.25, 1, scales[1]))
    merges = [[(model.loras.read(lora), scale)] for scale in scales]
    with (
        model.engine(PAGES, layout) as engine,
        model.engine(PAGES, layout, merge=merges[0]) as first,
        model.engine(PAGES, layout, merge=merges[1]) as second,
    ):
        result = await one(engine, asking(steps, turning))
        async with AsyncExitStack() as stack:
            row = await begun(first, stack, steps)
            for number in range(4):
                (row.state,) = states_after(first if number < 1 else second, [row])
                row.sent, row.modulations = (
                    number + 1,
                    None,
                )  # they come from the other engine's weights
        decoded = row.programs.decode.result()(first.weights.common, row.state)
        pixels = np.asarray(split_sound(decoded.decoded)[0])
        pixels = on_white(pixels) if first.pipeline.spec.has_alpha else pixels
        assert_alike(result, RowOutput(pixels.tobytes(), latents(row.state)))
        always = await one(engine, asking(steps, scaled(lora, scales[0])))
    assert psnr_db(result, always) < SHOWS_DB, "the second scale does not show"


async def test_branch_with_an_adapter_has_it_from_its_first_step(
    models: Models, layout: Layout
) -> None:
    """A branch with an adapter equals an uninterrupted image whose adapter has scale 0 before the
    branch's first step."""
    model = models(EXACT)
    lora, fields = model.loras["part 0"], {**model.fields, "num_inference_steps": 4}
    with model.engine(PAGES, layout) as engine:
        draft = await engine.draft(ImageRequest(fields, images(engine)), 2)
        snapshot = await engine.take_snapshot(draft.row)
        branch = await one(engine, asking(fields, scaled(lora, 0.8)), snapshot)
        later = asking(fields, by_steps(lora, (0, 0.5, 0.0), (0.5, 1, 0.8)))
        assert_alike(branch, await one(engine, later))
        always = await one(engine, asking(fields, scaled(lora, 0.8)))
    assert psnr_db(branch, always) < SHOWS_DB, "the draft has the adapter too"


async def test_fast_batching_differs_only_by_rounding(models: Models, layout: Layout) -> None:
    model = models(EXACT)
    requests = of_one_page(model)[:4]
    batching = fast(4, (4,), elastic=False)
    with model.engine(PAGES, layout) as alone, model.engine(PAGES, layout, 4, batching) as engine:
        expected = await drawn(alone, requests, together=False)
        await leave_one(engine, requests[0], BatchLayout(4))
        for actual, one_alone in zip(
            await drawn(engine, requests, together=True), expected, strict=True
        ):
            assert_alike(actual, one_alone)


@pytest.mark.parametrize("quality", CACHED)
async def test_fast_batches_keep_adapters_in_step_caches(
    models: Models, layout: Layout, quality: str
) -> None:
    """Blocks that a step cache may skip run for a part of a fast batch, with the adapters of its
    rows."""
    model = models(EXACT)
    fields = {**model.fields, "quality": quality}
    requests = [asking(fields, model.loras[name]) for name in ("whole 0", "whole 1")]
    batching = fast(2, (2,), elastic=False)
    with model.engine(PAGES, layout) as alone, model.engine(PAGES, layout, 2, batching) as engine:
        expected = await drawn(alone, requests, together=False)
        await leave_one(engine, requests[0], BatchLayout(2))
        for actual, one_alone in zip(
            await drawn(engine, requests, together=True), expected, strict=True
        ):
            assert_alike(actual, one_alone)


@pytest.mark.parametrize("change", [*PRESETS, *CACHED, STRENGTH])
async def test_presets_and_images_combine_with_adapters(
    family: str, models: Models, layout: Layout, change: str
) -> None:
    """Images are the same alone and in a batch, and far closer to the exact image with the same
    adapter than with another."""
    model = models(EXACT)
    adapters = [model.loras[name] for name in ("whole 0", "whole 1")]
    changed = {STRENGTH: 0.7} if change == STRENGTH else {"quality": change}
    spec = model.plain.spec
    has_strength = STRENGTH in spec.fields and spec.strength_needs == "image"
    assert has_strength == EVERY[family].has_strength or family not in SUITE
    fields = {**model.fields, **changed}
    requests = [asking(fields, lora) for lora in adapters]
    with model.engine(PAGES, layout) as engine, model.engine(PAGES, layout) as other:
        together = await asyncio.gather(*(image(engine, item) for item in requests))
        alone = [await image(other, item) for item in requests[::-1]]
        assert [item.tobytes() for item in together] == [item.tobytes() for item in alone[::-1]]
        assert gap(*together) > SHOWS
        if change != STRENGTH:
            expected = await image(engine, asking(model.fields, adapters[0]))
            assert gap(together[0], expected) < gap(together[1], expected) / 2


async def image(engine: Engine, fields: Fields) -> np.ndarray:
    """Return pixels. A request with a strength begins with another image."""
    from_image = {"image": picture()} if "strength" in fields else {}
    return (await engine.generate(fields, {**images(engine), **from_image})).pixels.astype(int)


def picture() -> bytes:
    pixels = np.random.default_rng(0).integers(0, 256, (4, 4, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).resize((32, 32)).save(file, "png")
    return file.getvalue()


def gap(actual: np.ndarray, expected: np.ndarray) -> float:
    """Return the mean difference, in levels of 255."""
    return float(np.abs(actual - expected).mean())
