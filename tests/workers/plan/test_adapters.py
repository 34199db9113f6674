"""Adapter banks in a plan: their memory, and no other change."""

from __future__ import annotations

from typing import Any

import pytest

from deploy.bench.engine.adapters import layers_by_name
from models.adapters.adaptable_layers import names_of
from models.adapters.install import install_banks
from models.spec.lora import PAGE_RANK, pages_of
from tests.workers.plan.conftest import DEMO
from workers.jaxpr.logical_mesh import logical_layout
from workers.plan.estimate import abstract_layout, estimate, weight_bytes
from workers.plan.model import abstract
from workers.plan.trace import ADAPTERS, Sketch, sketch
from workers.programs import warmup
from workers.slice.chips import CHIPS, GIB
from workers.slice.mesh_shape import MeshShape

ONE, V6E = MeshShape({}).over(1), CHIPS["v6e"]
PAGES = 4


def sketched(source: str, dtype: str, pages: int, rank: int = 0) -> tuple[Sketch, Any]:
    """Return the sketch of a model with `pages` pages per bank, and its pipeline.

    Args:
        rank: Rank of the request's adapter, or 0 if it has none.
    """
    logical = logical_layout()
    pipeline: Any = abstract(source, dtype, logical.of_parameter, swap_experts=False)
    install_banks(pipeline, pages, logical.of_parameter)
    (fields,) = warmup.requests(pipeline.spec, [{}])
    if rank:
        fields = warmup.with_adapter(pipeline, fields, pages_of(rank))
    return sketch(pipeline, fields, logical), pipeline


def bank_bytes(pipeline: Any, pages: int, itemsize: int) -> int:
    """Return the bytes of all banks, computed from the sizes of the layers."""
    return itemsize * sum(
        pages * (PAGE_RANK * (_inputs(shape) + shape.out_features) + shape.out_features)
        for network in names_of(pipeline).networks
        for _, shape in layers_by_name(network)
    )


def _inputs(shape: Any) -> int:
    width, *window = shape.in_features, *shape.window
    for taps in window:
        width *= taps
    return int(width)


@pytest.mark.parametrize("family", ["flux", "sdxl"])
def test_banks_add_only_their_own_memory(family: str) -> None:
    plain, _ = sketched(str(DEMO / family), "float32", 0)
    banked, pipeline = sketched(str(DEMO / family), "float32", PAGES)
    before, after = (estimate(item, ONE, V6E) for item in (plain, banked))
    more = after.memory[f"weights of {ADAPTERS}"]
    assert more == bank_bytes(pipeline, PAGES, 4) > 0
    assert dict(after.memory) == {**before.memory, f"weights of {ADAPTERS}": more}
    assert after.passes == before.passes and after.request_s == before.request_s


def test_banks_are_split_as_their_layers_are() -> None:
    banked, _ = sketched(str(DEMO / "flux"), "float32", PAGES)
    unsplit = weight_bytes(banked.weights, abstract_layout(ONE))[ADAPTERS]
    for sizes in ({"tensor": 2}, {"fsdp": 2}):
        layout = abstract_layout(MeshShape(sizes).over(2))
        share = weight_bytes(banked.weights, layout)[ADAPTERS] / unsplit
        assert 0.5 <= share < 0.9, "inputs or outputs of most layers"


def test_a_full_size_step_with_an_adapter_is_planned() -> None:
    """The adapter has rank 16 in every layer of Flux. The plan uses shapes alone."""
    plain, _ = sketched("flux-dev", "bfloat16", 0)
    adapted, pipeline = sketched("flux-dev", "bfloat16", 16, rank=16)
    plan = estimate(adapted, ONE, V6E)
    assert plan.memory[f"weights of {ADAPTERS}"] == bank_bytes(pipeline, 16, 2)
    assert 0.1 * GIB < plan.memory[f"weights of {ADAPTERS}"] < 10 * GIB
    more = plan.step.flops / estimate(plain, ONE, V6E).step.flops
    assert 1.0 < more < 1.05
