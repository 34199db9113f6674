"""Sizes of one bucket of tokens: one step program for all, and the exact image of each size."""

from __future__ import annotations

import asyncio
import io
import math
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from PIL import Image

from models import registry
from models.checkpoint.folder import CheckpointError
from models.interface.pipeline import Fields, Pipeline, denoise, generate
from models.interface.token_buckets import OF_SIZE
from models.spec.quality_presets import Quality, StepCache
from tests.families.adapters import MemoryCache
from tests.families.suite import EVERY, SUITE, loaded
from tests.families.test_generation import LATENTS, assert_alike
from tests.parallel.layouts import layout
from tests.parallel.placed_pipeline import placed
from tests.workers.observing import Observing
from tests.workers.resume import disturbed_at
from workers.engine.engine import Engine
from workers.engine.snapshot import UnfitSnapshot, check_fit
from workers.programs.batch_sizes import exact
from workers.programs.bucket_programs import BucketPrograms

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")

SIZES: dict[str, tuple[tuple[int, ...], ...]] = {
    "flux": ((64, 64), (48, 80), (72, 56)),
    "chroma": ((64, 64), (48, 80), (72, 56)),
    "wan": ((64, 48, 13), (48, 80, 9), (112, 32, 9)),
    "flux2": ((64, 64), (48, 80), (72, 56)),
    "qwenimage": ((64, 64), (48, 80), (72, 56)),
    "zimage": ((64, 64), (48, 80), (72, 56)),
}
"""Sizes of one bucket, of which only the first pads nothing.

They have 64, 60 and 63 tokens, and 48, 45 and 42. No layout splits all of them evenly.
"""
TOKENS = {"flux": 64, "chroma": 64, "wan": 48, "flux2": 64, "qwenimage": 64, "zimage": 64}
EVERY_LAYOUT = ("flux", "wan")
"""Families with tests on every layout; the others' networks are made of the same parts."""
TEXT_TOKENS = {"flux": 16, "wan": 16}
"""Shorter texts than those of the suite's requests."""
FULL, *SHORT = SIZES["flux"]
CACHED = {"cached": Quality(step_cache=StepCache(kind="teacache", threshold=0.3))}
LAYOUTS: dict[str, dict[str, Any]] = {
    "one device": {},
    "cfg 2": {"cfg": 2},
    "ulysses 4": {"context": 4},
    "ring 4": {"context": 4, "ring": 4},
    "tensor 2": {"tensor": 2},
    "data 2": {"data": 2},
}
Load = Callable[..., Pipeline]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("buckets")
    return {case: SUITE[case].make(root / case) for case in SIZES}


@pytest.fixture(scope="module")
def load(folders: dict[str, Path]) -> Load:
    """Return a function that loads a pipeline, once."""

    @cache
    def made(case: str, token_buckets: float, dtype: str, has_cache: bool) -> Pipeline:
        defaults, source = of_size(SIZES[case][0]), str(folders[case])
        how: dict[str, Any] = {"qualities": CACHED} if has_cache else {}
        return registry.load(case, source, dtype, defaults, token_buckets=token_buckets, **how)

    def load(
        case: str = "flux",
        token_buckets: float = 0.3,
        dtype: str = "float32",
        has_cache: bool = False,
    ) -> Pipeline:
        return made(case, token_buckets, dtype, has_cache)

    return load


@pytest.fixture(scope="module")
def bucketed(load: Load) -> Pipeline:
    return load()


@pytest.fixture(scope="module")
def unpadded(load: Load) -> Pipeline:
    return load(token_buckets=0.0)


@pytest.fixture(scope="module")
def kept() -> MemoryCache:
    """Return the executables that the engines share."""
    return MemoryCache()


def of_size(size: tuple[int, ...]) -> Fields:
    return dict(zip(("width", "height", "num_frames"), size, strict=False))


def request(pipeline: Pipeline, size: tuple[int, ...], **more: Any) -> Fields:
    base = SUITE[pipeline.spec.name].request
    text = TEXT_TOKENS.get(pipeline.spec.name, base.get("max_sequence_length"))
    fields = {**pipeline.spec.defaults, **base, "max_sequence_length": text}
    return {**fields, **of_size(size), **more}


def picture() -> bytes:
    file = io.BytesIO()
    pixels = np.random.default_rng(0).integers(0, 256, (32, 32, 3), np.uint8)
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


async def drawn(engine: Engine, fields: Fields) -> tuple[bytes, bytes]:
    """Return pixels and last latents, which show rounding that pixels hide."""
    states: list[Any] = []
    output = await engine.generate(
        fields, {}, Observing(lambda row: states.append(row.progress.state["latents"]))
    )
    return output.pixels.tobytes(), np.asarray(states[-1]).tobytes()


def programs(engine: Engine, requests: Sequence[Fields]) -> list[BucketPrograms]:
    return [engine.programs.of(engine.pipeline.prepare(fields, {})) for fields in requests]


@pytest.mark.parametrize(
    ("case", "name", "dtype"),
    [
        *((case, name, "float32") for case in EVERY_LAYOUT for name in LAYOUTS),
        *((case, "ulysses 4", "float32") for case in SIZES if case not in EVERY_LAYOUT),
        *((case, "one device", "bfloat16") for case in SIZES),
    ],
)
async def test_sizes_share_a_step_program_and_change_no_bit_of_each_other(
    case: str, name: str, dtype: str, load: Load, kept: MemoryCache
) -> None:
    by, sizes = layout(**LAYOUTS[name]), SIZES[case]
    pipeline = placed(load(case, dtype=dtype), by)
    requests = [request(pipeline, size) for size in sizes]
    engine = Engine(pipeline, by, 3, exact(2), executables=kept)
    try:
        together = await asyncio.gather(*(drawn(engine, fields) for fields in requests))
        alone = [await drawn(engine, fields) for fields in requests]
        buckets = programs(engine, requests)
    finally:
        engine.close()
    assert together == alone
    assert len({pixels for pixels, _ in together}) == len(sizes), "all alike"
    step_kinds = [list(of_size.step_kinds.values()) for of_size in buckets]
    assert all(entry == step_kinds[0] and len(entry) == 1 for entry in step_kinds)
    assert len(step_kinds[0][0].programs) == 1, "one step for all"
    assert len(engine.programs._compiler._encodings) == 1, "one encoder for all"
    assert len({id(of_size.decode) for of_size in buckets}) == len(sizes), "decoders by size"


async def test_rows_of_other_sizes_share_a_batch(bucketed: Pipeline, kept: MemoryCache) -> None:
    engine = Engine(bucketed, layout(), 2, exact(2), executables=kept)
    sizes: list[int] = []
    plain = engine.step_loop._meter.step

    def step(batch: Any, seconds: float) -> None:
        sizes.append(len({id(row.programs) for row in batch.rows}))
        plain(batch, seconds)

    engine.step_loop._meter.step = step
    try:
        requests = [request(bucketed, size, num_inference_steps=8) for size in SHORT]
        await engine.readiness.warm_up(requests)
        await asyncio.gather(*(engine.generate(fields, {}) for fields in requests))
    finally:
        engine.close()
    assert 2 in sizes


@pytest.mark.parametrize("case", SIZES)
def test_bucketed_steps_match_unpadded_steps(case: str, load: Load) -> None:
    """Images with and without token buckets differ by rounding, even without padding:

    XLA sums a masked softmax in another order.
    """
    bucketed, unpadded = load(case), load(case, 0.0)
    for size in SIZES[case][:2]:
        fields = request(bucketed, size)
        rows, others = (
            list(denoise(pipeline, pipeline.prepare(fields, {})))
            for pipeline in (bucketed, unpadded)
        )
        for row, other in zip(rows, others, strict=True):
            actual, latents = (
                np.asarray(of_size) for of_size in (of_video(bucketed, row), other["latents"])
            )
            assert len(row["latents"]) == TOKENS[case]
            assert np.abs(actual - latents).max() <= LATENTS * np.abs(latents).max()
            assert not np.asarray(row["latents"])[math.prod(row["extent"]) :].any()
        pixels, other = (
            np.asarray(jax.jit(pipeline.preview)(pipeline.weights, states[-1]))
            for pipeline, states in ((bucketed, rows), (unpadded, others))
        )
        assert_alike(pixels, other)


def of_video(pipeline: Any, row: Any) -> Any:
    """Return a row's latents without padding, like those of rows of the exact size."""
    if pipeline.spec.family == "wan":
        return pipeline.video_latents(row, "latents")
    return row["latents"][: math.prod(row["extent"])]


@pytest.mark.parametrize(
    ("case", "size"), [(case, size) for case in SIZES for size in SIZES[case][1:]]
)
def test_padded_image_matches_diffusers(
    case: str, size: tuple[int, ...], load: Load, folders: dict[str, Path]
) -> None:
    pipeline, sent = load(case), {**SUITE[case].request, **of_size(size)}
    fields = {**pipeline.spec.defaults, **sent}
    assert pipeline.prepare(fields, {}).step_bucket
    assert_alike(generate(pipeline, fields, {}), SUITE[case].reference(folders[case], sent))


async def test_resumed_padded_image_is_bitwise_equal(
    bucketed: Pipeline, unpadded: Pipeline, kept: MemoryCache
) -> None:
    """A resumed image with padded tokens is bitwise equal. A worker with separate steps for each
    size starts again, because the snapshot has another shape."""
    fields = request(bucketed, SHORT[0], num_inference_steps=16)
    first, second, other = (
        Engine(item, layout(), slots=1, executables=kept) for item in (bucketed, bucketed, unpadded)
    )
    try:
        full, snapshot = await disturbed_at(3, first, fields, {})
        resumed = await second.generate(fields, {}, begin=snapshot)
        assert (resumed.pixels == full.pixels).all()
        [row] = [item.row.result() for item in programs(other, [fields])]
        with pytest.raises(UnfitSnapshot):
            check_fit(
                snapshot, first._machinery.launcher.leaves(row), frozenset(snapshot.leaves), 16
            )
        steps: list[int] = []
        observer = Observing(lambda row: steps.append(row.done))
        anew = await other.generate(fields, {}, observer, snapshot)
        assert len(steps) == 16
        assert_alike(anew.pixels, full.pixels)
    finally:
        for engine in (first, second, other):
            engine.close()


async def test_hires_fix_moves_between_buckets(bucketed: Pipeline, unpadded: Pipeline) -> None:
    hires = {"width": 72, "height": 120, "upscaler": "latent", "strength": 0.6}
    images = []
    for pipeline in (bucketed, unpadded):
        fields = request(pipeline, SHORT[0], num_inference_steps=4)
        engine = Engine(pipeline, layout(), 1)
        try:
            output = await engine.generate({**fields, "hires": {**hires, "steps": 4}}, {})
        finally:
            engine.close()
        images.append(output.pixels)
    assert_alike(*images)


@pytest.mark.parametrize("name", ["flux-fill", "flux-control", "flux-redux"])
def test_additional_images_are_padded(name: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    entry = EVERY[name]
    folder = entry.least(tmp_path_factory.mktemp(name) / name)
    pixels = []
    for extra in (0.0, 1.0):
        pipeline = loaded(name, folder, "float32", token_buckets=extra)
        fields = {**pipeline.spec.defaults, **entry.request, "max_sequence_length": 16}
        prepared = pipeline.prepare(fields, entry.images)
        assert bool(prepared.step_bucket) == bool(extra)
        pixels.append(generate(pipeline, fields, entry.images))
    assert_alike(*pixels)


def test_an_image_beneath_the_noise_is_padded_too(bucketed: Pipeline, unpadded: Pipeline) -> None:
    images = [
        generate(pipeline, request(pipeline, SHORT[1], strength=0.7), {"image": picture()})
        for pipeline in (bucketed, unpadded)
    ]
    assert_alike(*images)


def test_presets_with_size_dependent_state_are_not_bucketed(load: Load, tmp_path: Path) -> None:
    cached = load(has_cache=True)
    assert not cached.prepare(request(cached, FULL, quality="cached"), {}).step_bucket
    assert cached.prepare(request(cached, FULL), {}).step_bucket
    far = cached.spec.limits.max_side_px + 64
    assert not cached.prepare(request(cached, (far, 64)), {}).step_bucket
    entry = EVERY["flux-kontext"]
    kontext = loaded("flux-kontext", entry.least(tmp_path / "m"), "float32", token_buckets=0.3)
    fields = {**kontext.spec.defaults, **entry.request}
    assert not kontext.prepare(fields, entry.images).step_bucket
    assert kontext.prepare(fields, {}).step_bucket


def test_padding_is_off_by_default(unpadded: Pipeline) -> None:
    prepared = unpadded.prepare(request(unpadded, SHORT[0]), {})
    assert not prepared.step_bucket
    assert not any(name.startswith(OF_SIZE) for name in prepared.inputs)


def test_families_without_buckets_refuse_them(tmp_path: Path) -> None:
    refusals = {
        "sdxl": "token_buckets is set, but StableDiffusionXLPipeline does",
        "flux-controlnet": "token_buckets: not supported with ControlNets",
        "qwenimage-controlnet": "token_buckets: not supported with ControlNets",
        "zimage-controlnet": "token_buckets: not supported with ControlNets",
        "krea2": "token_buckets is set, but Krea2Pipeline does",
        "wan-vace": "token_buckets: videos of this model begin with images",
        "qwenimage-edit": "token_buckets: edits have images of fixed sizes",
        "qwenimage21": "token_buckets is set, but QwenImage21Pipeline does",
    }
    for name, reason in refusals.items():
        folder = EVERY[name].least(tmp_path / name)
        with pytest.raises(CheckpointError, match=reason):
            loaded(name, folder, "float32", token_buckets=0.06)
