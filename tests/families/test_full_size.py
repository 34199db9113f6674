"""Published checkpoints by their short names: sizes of the full-size networks, from shapes
alone."""

from __future__ import annotations

import re
from functools import cache, partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from models import published, registry
from models.interface.finite import decode_checked
from models.interface.pipeline import Pipeline
from models.loading.abstract import abstract_module
from models.loading.sources import SHAPES
from models.parallel.axis_rules import Layout
from models.upscale.config import RrdbConfig
from models.upscale.network import RrdbNet
from tests.families.suite import EVERY
from workers.engine.snapshot import needed
from workers.jaxpr.axis_tags import Tag
from workers.jaxpr.operations import inner_jaxpr, work_of
from workers.plan.model import neighboring_networks
from workers.programs.compiler import Compiler
from workers.programs.row_tree import leaves_by_name

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "models.md"
NAMES = {name: title for entry in EVERY.values() for name, title in entry.published.items()}
"""Names that the authors gave the checkpoints, by short name."""


@cache
def stated() -> dict[str, tuple[float, float]]:
    """Return billions of parameters and GiB by name, from docs/guides/models.md."""
    rows = re.findall(r"^\| ([\w. -]+) \| ([\d.]+) B \| ([\d.]+) GiB \|", PAGE.read_text(), re.M)
    return {name: (float(billions), float(size)) for name, billions, size in rows}


def shapes(name: str, folder: Path) -> Pipeline:
    published.write(name, folder)
    nets = neighboring_networks(name, folder)
    return registry.load(name, str(folder), "bfloat16", {}, reader=SHAPES, **nets)


def test_the_readme_states_the_size_of_every_checkpoint() -> None:
    assert NAMES.keys() == published.CHECKPOINTS.keys()
    assert stated().keys() == set(NAMES.values())


@pytest.mark.parametrize("name", NAMES)
def test_full_size_checkpoint_matches_the_readme(name: str, tmp_path: Path) -> None:
    weights = shapes(name, tmp_path).weights._asdict()
    del weights["preview"]  # ours, fitted to any autoencoder
    leaves = jax.tree.leaves(weights)
    assert all(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in leaves)
    count = sum(leaf.size for leaf in leaves)
    size = sum(leaf.size * leaf.dtype.itemsize for leaf in leaves)
    assert (round(count / 1e9, 1), round(size / 2**30, 1)) == stated()[NAMES[name]]


FAMILIES = {family.name: next(iter(family.published)) for family in registry.FAMILIES}
"""A published checkpoint of each family."""
IN_GATE = "flux"
"""Family whose checkpoint the gate traces; decoders of other families are as large."""
PIXELS, FRAMES = 256, 9
SHARE = 0.01


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if family == IN_GATE else pytest.mark.nightly)
        for family, name in FAMILIES.items()
    ],
)
def test_finite_checks_cost_less_than_a_hundredth_of_a_decode(name: str, tmp_path: Path) -> None:
    """Counts of operations and of bytes, as if no check were fused with the conversion."""
    pipeline = shapes(name, tmp_path)
    video = {"num_frames": FRAMES} if "num_frames" in pipeline.spec.fields else {}
    sizes = {"width": PIXELS, "height": PIXELS, **video}
    fields = {**pipeline.spec.defaults, "prompt": "words", "seed": 0, **sizes}
    row = jax.eval_shape(
        pipeline.encode, pipeline.weights, dict(pipeline.prepare(fields, {}).inputs)
    )
    traced = jax.make_jaxpr(partial(decode_checked, pipeline.decode))(pipeline.weights, row)
    work, _ = work_of(traced, [Tag()] * len(traced.jaxpr.invars))
    elements, size = checked(traced.jaxpr)
    assert elements >= PIXELS * PIXELS * 3
    assert 2 * elements < SHARE * work.flops  # one test and one conjunction for each
    moved = sum((op.moved_bytes + op.weight_bytes) * count for op, count in work.ops.items())
    assert size + 2 * elements < SHARE * moved  # read, and a truth value written and read


REAL_ESRGAN = RrdbConfig(blocks=23, features=64, growth=32, doublings=2, unshuffle=1)
"""RealESRGAN_x4plus."""


def test_finite_checks_cost_less_than_a_hundredth_of_an_upscaling() -> None:
    """The host checks every value of an upscaled tile."""
    side = 128
    graph, state = nnx.split(abstract_module(RrdbNet, REAL_ESRGAN, param_dtype=jnp.bfloat16))
    tile = jax.ShapeDtypeStruct((1, side, side, 3), jnp.bfloat16)
    traced = jax.make_jaxpr(lambda state, tile: nnx.merge(graph, state)(tile))(state, tile)
    (output,) = traced.out_avals
    assert output.shape == (1, 4 * side, 4 * side, 3)
    work, _ = work_of(traced, [Tag()] * len(traced.jaxpr.invars))
    moved = sum((op.moved_bytes + op.weight_bytes) * count for op, count in work.ops.items())
    assert 2 * output.size < SHARE * work.flops
    assert 6 * output.size < SHARE * moved  # float32 read, a truth value written and read


def checked(jaxpr: Any, times: int = 1) -> tuple[int, int]:
    """Count the elements that a program checks, and their bytes."""
    elements = size = 0
    for equation in jaxpr.eqns:
        if equation.primitive.name == "is_finite":
            aval = equation.invars[0].aval
            elements += times * aval.size
            size += times * aval.size * aval.dtype.itemsize
        if inner := inner_jaxpr(equation):
            repeated = times * equation.params.get("length", 1)
            more = checked(inner, repeated)
            elements, size = elements + more[0], size + more[1]
    return elements, size


def test_a_request_is_prepared_without_a_vocabulary(tmp_path: Path) -> None:
    pipeline = shapes("flux-schnell", tmp_path)
    fields = {**pipeline.spec.defaults, "prompt": "words", "seed": 0, "width": 64, "height": 32}
    prepared = pipeline.prepare(fields, {})
    assert prepared.inputs["t5_ids"].shape == (1, pipeline.spec.limits.max_sequence_length)
    assert prepared.inputs["noise"].shape == (4, 8, 16)
    assert len(prepared.steps) == 4  # distilled, by the published scheduler's config


DRAFT_BYTES = 3_000_000
"""Maximum size of a draft of an image of FLUX.1 in the default size."""


def test_a_draft_of_flux_is_small(layout: Layout, tmp_path: Path) -> None:
    """The leaves that a snapshot contains are those that the step's program changes."""
    pipeline = shapes("flux-dev", tmp_path)
    fields = {**pipeline.spec.defaults, "prompt": "words", "seed": 0}
    prepared = pipeline.prepare(fields, {})
    assert (prepared.width, prepared.height) == (1024, 1024)
    row = jax.eval_shape(pipeline.encode, pipeline.weights, dict(prepared.inputs))
    compiler, (step, *_) = Compiler(pipeline, layout), prepared.steps
    traced = compiler.tracer.step(step.program, step.values, row)
    changes = needed(compiler.changes(traced, row), exact=True)
    leaves = leaves_by_name(row)
    size = sum(leaves[name].size * leaves[name].dtype.itemsize for name in changes)
    assert {"['latents']", "['denoised']"} <= changes
    assert size <= DRAFT_BYTES
