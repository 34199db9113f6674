"""A model onto its mesh slice: what the settings say, and what they cannot."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import pytest

from service.settings import ConfigError, ModelSettings, PoolSettings
from workers import loading
from workers.plan.sketch import Sketch


@pytest.fixture(scope="module")
def model(flux_folder: Path) -> ModelSettings:
    return ModelSettings(source=str(flux_folder), dtype="float32")


def pool(**settings: Any) -> PoolSettings:
    return PoolSettings(model="flux", **settings)


@pytest.fixture(scope="module")
def sketch(model: ModelSettings) -> Sketch:
    return loading.sketch_of(pool(), model)


def test_arrays_go_straight_to_where_they_lie(model: ModelSettings) -> None:
    pipeline, opened = loading.load(
        "flux", pool(mesh={"fsdp": 2, "context": -1}), model, jax.devices()[:4]
    )
    assert opened.layout.mesh.shape["fsdp"] == 2
    assert opened.layout.mesh.shape["ulysses"] * opened.layout.mesh.shape["ring"] == 2
    kernel = pipeline.weights.transformer["latents_in"]["kernel"][...]
    assert {shard.data.shape for shard in kernel.addressable_shards} != {kernel.shape}
    assert len(kernel.sharding.device_set) == 4


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"mesh": {"cfg": 3}}, r"pools\.flux: ici cfg 3 makes 3 devices, but there are 8"),
        ({"mesh": {"tensor": 8}}, r"tensor 8 does not divide \d+ attention heads"),
        ({"mesh": {"data": 8}, "slots": 4}, "4 slots are not dealt out evenly over data 8"),
        (
            {"mesh": {"context": 8}, "per_device_batch_size": 0.2},
            "0.2 on 8 devices is a batch of 1.6, which is not whole",
        ),
        ({"table": {"head": ["tensor"]}}, "logical axis 'head' does not exist: batch"),
        ({"table": {"heads": ["tensors"]}}, "mesh axis 'tensors' does not exist: data"),
    ],
)
def test_what_does_not_fit_is_refused_with_the_numbers(
    sketch: Sketch, settings: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        loading.open_slice("flux", pool(**settings), sketch, jax.devices())


def test_a_deployment_may_change_rows_of_the_table(sketch: Sketch) -> None:
    changed = pool(mesh={"context": 8}, table={"embed": ["context"], "rows": []})
    layout = loading.open_slice("flux", changed, sketch, jax.devices()).layout
    assert layout.table["embed"] == ("ring", "ulysses")
    assert layout.size("embed") == 8 and layout.size("rows") == 1


def test_a_quarter_of_a_request_on_each_device(sketch: Sketch) -> None:
    quarter = pool(mesh={"context": 4}, per_device_batch_size=0.25)
    assert loading.open_slice("flux", quarter, sketch, jax.devices()[:4]).slots == 1
