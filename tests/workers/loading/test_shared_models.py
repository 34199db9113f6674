"""Several checkpoints of one base on one slice: shared weights are stored once, and all fit."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from flax import nnx

from models.interface.pipeline import Pipeline, generate
from service.settings.models import ModelSettings
from service.settings.pools import PoolSettings
from service.settings.section import ConfigError
from service.settings.settings import Settings
from tests.families.suite import SUITE
from tests.workers.flux import REQUEST, tuned
from workers.loading import model as loading
from workers.loading import pool_models
from workers.loading.model import NotEnoughMemory
from workers.loading.pool_models import LoadedModel, PoolModel
from workers.slice import xla_flags
from workers.slice.chips import GIB

MESHES: list[dict[str, Any]] = [{}, {"mesh": {"fsdp": 2, "context": 2}}]


@pytest.fixture(scope="module")
def sources(flux_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("others")
    other = SUITE["sdxl"].least(folder / "sdxl")
    return {"flux": flux_folder, "tuned": tuned(flux_folder, folder / "tuned"), "sdxl": other}


def settings(sources: dict[str, Path], *also: str, **pool: Any) -> Settings:
    models = {
        name: ModelSettings(source=str(folder), dtype="float32", defaults=SIZE)
        for name, folder in sources.items()
    }
    return Settings(models=models, pools={"p": PoolSettings(model="flux", also=also, **pool)})


SIZE = {name: REQUEST[name] for name in ("width", "height", "max_sequence_length")}


def of(sources: dict[str, Path], *also: str, **pool: Any) -> list[PoolModel]:
    return pool_models.from_settings(settings(sources, *also, **pool), "p")


def drawn(pipeline: Pipeline) -> np.ndarray:
    return generate(pipeline, {**pipeline.spec.defaults, **REQUEST, "num_inference_steps": 2}, {})


@pytest.mark.parametrize("mesh", MESHES, ids=["one device", "four devices"])
def test_equal_weights_are_shared_without_changing_images(
    sources: dict[str, Path], mesh: dict[str, Any]
) -> None:
    devices = jax.devices()[: 4 if mesh else 1]
    both = pool_models.load("p", of(sources, "tuned", **mesh), devices)
    assert [entry.pipeline.spec.name for entry in both] == ["flux", "tuned"]
    assert both[0].opened.chosen.shape == both[1].opened.chosen.shape
    first, second = (buffers(entry) for entry in both)
    assert len(second - first) == len(devices), "one array alone is the second one's own"
    if mesh:
        return
    for entry in both:
        source = {"flux": sources[entry.pool.model]}
        (alone,) = pool_models.load("p", of(source), devices)
        assert not buffers(alone) & (first | second)
        assert np.array_equal(drawn(entry.pipeline), drawn(alone.pipeline))


def buffers(entry: LoadedModel) -> set[int]:
    """Return the addresses of the networks' arrays, without fitted preview maps."""
    networks = entry.pipeline.weights._replace(preview=None)
    leaves = jax.tree.leaves(nnx.state(list(filter(None, networks))))
    return {
        part.data.unsafe_buffer_pointer() for leaf in leaves for part in leaf.addressable_shards
    }


@pytest.mark.parametrize(
    ("also", "message"),
    [
        (("sdxl",), r"pools\.p\.also: sdxl has another family .* than flux.*a pool for it"),
        (("none",), r"pools\.p\.also: add \[models\.none\]"),
    ],
)
def test_incompatible_models_of_a_pool_are_rejected_by_name(
    sources: dict[str, Path], also: tuple[str, ...], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        of(sources, *also)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"also": ["flux"]}, "name other models than `model`"),
        ({"also": ["a", "a"]}, "each once"),
        ({"also": ["a"], "hosts": {"count": 2}}, "also: a slice on several hosts serves one model"),
        ({"by_turns": ["a"], "hosts": {"count": 2}}, "by_turns: a slice on several hosts serves"),
        ({"by_turns": ["flux"]}, "name other models than `model`"),
        ({"by_turns": ["a"], "also": ["b"]}, "either holds all of its models or alternates"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(
    fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        PoolSettings(model="flux", **fields)


def test_models_of_other_families_are_swapped(sources: dict[str, Path]) -> None:
    """Each model is loaded on demand, as if it were alone."""
    models = pool_models.from_settings(
        Settings(
            models={
                name: ModelSettings(source=str(sources[name]), dtype="float32")
                for name in ("flux", "sdxl")
            },
            pools={"p": PoolSettings(model="flux", by_turns=("sdxl",))},
        ),
        "p",
    )
    assert [entry.pool.model for entry in models] == ["flux", "sdxl"]
    loaded = pool_models.load_one_by_one("p", models, jax.devices()[:1])
    assert [entry.pipeline.spec.family for entry in loaded] == ["flux", "sdxl"]


def test_models_with_other_xla_flags_are_rejected_by_name(sources: dict[str, Path]) -> None:
    first, second = of(sources, "tuned")
    flags = xla_flags.of_settings("auto", "nvidia", "flux")
    loading.check_others(first.pool, {"tuned": second.model}, "nvidia", flags)
    fast = second.model.model_copy(update={"batching": "fast"})
    with pytest.raises(
        ConfigError, match=r"models\.tuned needs other compiler flags .*models\.flux"
    ):
        loading.check_others(first.pool, {"tuned": fast}, "nvidia", flags)


def test_slots_of_each_model_leave_memory_for_the_others(sources: dict[str, Path]) -> None:
    """The error about too many slots states how many fit."""

    def held(slots: int, *also: str) -> int:
        with pytest.raises(ConfigError, match="slots are too many") as refused:
            pool_models.load("p", of(sources, *also, slots=slots), jax.devices()[:1])
        match = re.search(r"(\d+) fit", str(refused.value))
        assert match
        return int(match[1])

    alone = held(2**40)
    pool_models.load("p", of(sources, slots=alone), jax.devices()[:1])
    assert 0 < held(alone, "tuned") < alone


def test_memory_is_checked_again_after_sharing(sources: dict[str, Path]) -> None:
    devices = jax.devices()[:1]
    slices = pool_models.plan_slices("p", of(sources, "tuned"), devices)
    pool_models.check_memory("p", slices, devices, 0)
    wide = replace(slices[0], chosen=replace(slices[0].chosen, device_bytes=2**45))
    with pytest.raises(NotEnoughMemory, match=rf"also: all models need about {2**45 / GIB:.0f}"):
        pool_models.check_memory("p", [wide, slices[1]], devices, 0)
    pool_models.check_memory("p", [wide, slices[1]], devices, 2**45)
