"""Estimates of the planner, compared with programs compiled for virtual devices."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import pytest
from jax.stages import Compiled

from models.nn.kernels.xla import xla_kernel
from models.parallel.axis_rules import Layout
from tests.workers.plan.conftest import DEMO
from workers.plan import hlo
from workers.plan.estimate import Estimate, abstract_layout, estimate, row_bytes, weight_bytes
from workers.plan.model import abstract, sketch_of
from workers.plan.offload import Residency
from workers.plan.search import NothingFits, SearchResults, choose, factors, search
from workers.plan.trace import Sketch
from workers.programs import warmup
from workers.programs.precomputed_modulations import STEPS
from workers.programs.row_tree import row_shardings
from workers.programs.tracer import Tracer
from workers.slice.chips import CHIPS, GIB
from workers.slice.mesh import make_mesh
from workers.slice.mesh_shape import MeshShape

V6E = CHIPS["v6e"]
SHAPE = MeshShape({"fsdp": 2, "context": 4}, {}, 2).over(8)
"""Mesh with gathers, rings and Ulysses."""


class Step(NamedTuple):
    """Compiled step of the demo's Flux on `SHAPE`, from shapes alone."""

    program: Compiled
    row: Any
    modulations: Compiled


@pytest.fixture(scope="module")
def step() -> Step:
    layout = Layout(make_mesh(SHAPE, jax.devices()[:8]), xla_kernel)
    pipeline = abstract(str(DEMO / "flux"), "float32", layout.of_parameter)
    prepared = warmup.prepare(pipeline, warmup.requests(pipeline.spec, [{}])[0])
    tracer = Tracer(pipeline, layout)
    row = tracer.encode(prepared.inputs).out_info
    first = prepared.steps[0]
    traced = tracer.step(first.program, first.values, row)
    modulations = tracer.modulations(first.program, first.values, row)
    return Step(traced.lower().compile(), row, modulations.lower().compile())


def test_program_arguments_are_estimated_exactly(flux: Sketch, step: Step) -> None:
    program, _ = flux.steps[flux.main_step_kind]
    weights = sum(weight_bytes(program.weights, abstract_layout(SHAPE)).values())
    read = {name: leaf for name, leaf in step.row.items() if name != "denoised"}
    of_row = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(read))
    of_step = 4 * len(("sigma", "sigma_next", "true_cfg_scale", "place of the conditions"))
    expected = weights + of_row + flux.modulations_bytes + of_step
    assert step.program.memory_analysis().argument_size_in_bytes == expected


def test_row_sharding_is_estimated_exactly() -> None:
    """A step cache's residual is split over devices, all else replicated. Exact to the byte."""
    shape = MeshShape({"cfg": 2, "context": 2}).over(4)
    layout = Layout(make_mesh(shape, jax.devices()[:4]), xla_kernel)
    fields = {"quality": "first-block-cache"}
    cached = sketch_of(str(DEMO / "flux"), "float32", fields)
    pipeline = abstract(str(DEMO / "flux"), "float32", layout.of_parameter)
    prepared = warmup.prepare(pipeline, warmup.requests(pipeline.spec, [fields])[0])
    row = Tracer(pipeline, layout).encode(prepared.inputs).out_info
    actual = jax.tree.map(
        lambda leaf, place: math.prod(place.shard_shape(leaf.shape)) * leaf.dtype.itemsize,
        row,
        row_shardings(row, layout),
    )
    assert row_bytes(cached, abstract_layout(shape)) == sum(jax.tree.leaves(actual))
    residual = row["step_cache"]["residual"]
    unsplit = row_bytes(cached, abstract_layout(MeshShape().over(1)))
    saved = unsplit - row_bytes(cached, abstract_layout(shape))
    assert saved == residual.size * residual.dtype.itemsize * 3 // 4 > 0


def test_skippable_step_is_estimated_as_a_whole_step(flux: Sketch) -> None:
    """The step has an exact step's work, and slightly larger temporaries for the cache."""
    cached = sketch_of(str(DEMO / "flux"), "float32", {"quality": "first-block-cache"})
    (step, _), (exact, _) = cached.steps[cached.main_step_kind], flux.steps[flux.main_step_kind]
    assert step.work.flops == pytest.approx(exact.work.flops, rel=1e-3)
    shape = MeshShape().over(1)
    more, least = (estimate(sketch, shape, V6E).memory["temporaries"] for sketch in (cached, flux))
    assert least <= more < 1.25 * least


def test_modulation_weights_are_not_gathered(flux: Sketch, step: Step) -> None:
    """No weight is gathered: the devices exchange only the vectors of a layer."""
    (program, runs) = flux.modulations[f"conditions of {flux.main_step_kind}"]
    assert runs == math.ceil(flux.steps[flux.main_step_kind][1] / STEPS)
    assert program.work.flops > 0
    collectives = hlo.read(step.modulations.as_text(), [0] * 8).collectives
    kernels = [w for w in flux.weights if w.axes == ("layers", "embed", "modulation")]
    widest = max(math.prod(kernel.shape[1:]) * kernel.itemsize for kernel in kernels)
    sent = [collective.sent_bytes for collective in collectives]
    assert sent and max(sent) < widest / 2, "two devices would send each other half of it"


def test_estimated_communication_matches_the_compiled_program(flux: Sketch, step: Step) -> None:
    sent: Counter[str] = Counter()
    for collective, count in hlo.read(step.program.as_text(), [0] * 8).collectives.items():
        sent[collective.kind] += collective.sent_bytes * count
    estimated = estimate(flux, SHAPE, V6E).step.traffic
    # XLA splits the operations around each attention slightly differently.
    permute, swap = estimated["permute (ring)"], estimated["all-to-all (Ulysses)"]
    assert permute.ici_bytes == pytest.approx(sent["collective-permute"], rel=0.1)
    assert swap.ici_bytes == pytest.approx(sent["all-to-all"], rel=0.1)


def test_a_share_of_the_work(flux: Sketch) -> None:
    full = estimate(flux, MeshShape().over(1), V6E)
    part = estimate(flux, MeshShape({"context": 4}).over(4), V6E)
    # Every device pads, and embeds time and text.
    assert full.step.flops / 4 <= part.step.flops <= full.step.flops / 4 * 1.3
    assert full.step.flops == flux.steps[flux.main_step_kind][0].work.flops
    assert not full.step.traffic and part.step.traffic


def test_more_slots_scale_memory_and_flops_except_weights(flux: Sketch) -> None:
    shape = MeshShape().over(1)
    single, triple = estimate(flux, shape, V6E, 1), estimate(flux, shape, V6E, 3)
    assert triple.memory["rows"] == 3 * single.memory["rows"]
    assert triple.memory["weights of transformer"] == single.memory["weights of transformer"]
    assert triple.step.flops == 3 * single.step.flops


def test_rows_per_launch_bound_temporaries(flux: Sketch) -> None:
    """Images are decoded one at a time, and only the rows' states are in memory together."""
    shape = MeshShape().over(1)
    alone, several = estimate(flux, shape, V6E), estimate(flux, shape, V6E, 5, launch=2)
    two = estimate(flux, shape, V6E, 2)
    assert several.memory["rows"] == 5 * alone.memory["rows"]
    assert several.memory["temporaries"] == two.memory["temporaries"]
    assert several.step == two.step
    overhead_s = alone.request_s - sum(
        alone.passes[step_kind].seconds * count for step_kind, (_, count) in flux.steps.items()
    )
    assert several.request_s - 5 * overhead_s == pytest.approx(3 * (two.request_s - 2 * overhead_s))


def test_swapped_networks_count_once(flux: Sketch) -> None:
    shape = MeshShape().over(1)
    residency = Residency(swapped=frozenset({"t5", "transformer"}))
    turns = estimate(flux, shape, V6E, residency=residency).memory
    assert turns["weights of t5 or transformer"] == flux.networks["transformer"]


def small(sketch: Sketch, share: float) -> float:
    """Return the memory of a chip that holds this share of the weights."""
    return share * sum(sketch.networks.values())


def found(sketch: Sketch, memory: float = V6E.memory_bytes, devices: int = 8) -> SearchResults:
    return search(sketch, replace(V6E, memory_bytes=int(memory)), devices)


def best(result: SearchResults) -> Estimate:
    return result.latency[0]


def test_cfg_axis_is_preferred_with_guidance(flux: Sketch) -> None:
    assert best(found(flux)).shape.size("cfg") == 2
    assert "guidance" in best(found(flux)).why


def test_cfg_axis_is_unused_without_guidance(unguided: Sketch) -> None:
    assert unguided.prompts == 1
    assert all(candidate.shape.size("cfg") == 1 for candidate in found(unguided).latency)


def test_fsdp_is_used_if_weights_do_not_fit(flux: Sketch) -> None:
    assert best(found(flux)).shape.size("fsdp") == 1
    tight = found(flux, small(flux, 0.6))
    split = best(tight).shape.size("fsdp") * best(tight).shape.size("tensor")
    assert split > 1 and tight.refused
    assert all(candidate.fits for candidate in (*tight.latency, *tight.throughput))


def test_throughput_has_requests_side_by_side(flux: Sketch) -> None:
    first = found(flux).throughput[0]
    assert first.slots > 1 and first.slots == first.shape.size("data")


def test_a_model_too_big_is_refused_with_numbers(flux: Sketch) -> None:
    chip = replace(V6E, memory_bytes=4 << 20)
    with pytest.raises(NothingFits, match=r"8 x v6e: .* needs about .* GiB a device, but .* 0\.00"):
        choose(flux, chip, 8)


def test_traffic_between_slices_uses_dcn(flux: Sketch) -> None:
    shape = MeshShape({"cfg": 2, "context": 4}, {"context": 2}, 2).over(8, 2)
    traffic = estimate(flux, shape, V6E).step.traffic
    assert traffic["permute (ring)"].dcn_bytes > 0 == traffic["permute (ring)"].ici_bytes
    assert (
        traffic["all-to-all (Ulysses)"].ici_bytes > 0 == traffic["all-to-all (Ulysses)"].dcn_bytes
    )


def test_factorizations_are_complete_and_unique() -> None:
    factorizations = list(factors(8, 3))
    assert len(factorizations) == len(set(factorizations)) == 10
    assert all(math.prod(factorization) == 8 for factorization in factorizations)


def test_memory_has_named_kinds(flux: Sketch) -> None:
    kinds = estimate(flux, MeshShape().over(1), V6E).memory
    assert {"weights of transformer", "weights of t5", "rows", "temporaries"} <= kinds.keys()
    assert sum(kinds.values()) < 1 * GIB + kinds["reserve"]
