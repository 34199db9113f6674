"""Independence of a row's bits from other rows within one program."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from models.interface.pipeline import PyTree
from models.interface.step_program import StepProgram
from models.parallel.trace_options import TraceOptions, trace_options
from tests.workers.toy import ToyPipeline
from workers.programs.compiler import Compiler, signature
from workers.programs.row_tree import check_row
from workers.programs.tracer import row_digests
from workers.slice.mesh import one_device

SIZE_TOLERANCE = 1e-5
"""Relative tolerance after one step: programs of other batch sizes may sum in another order."""


@pytest.fixture(scope="module")
def compiler() -> Compiler:
    return Compiler(ToyPipeline(), one_device(jax.devices()[0]))


def rows(compiler: Compiler, count: int) -> list[dict[str, np.ndarray]]:
    random = np.random.default_rng(0)
    shapes = compiler.tracer.encode(compiler.pipeline.prepare({}, {}).inputs).out_info
    return [
        jax.tree.map(lambda leaf: random.standard_normal(leaf.shape, np.float32), shapes)
        for _ in range(count)
    ]


def step(compiler: Compiler, batch: list[dict[str, np.ndarray]], guidance: list[float]) -> list:
    names = compiler.pipeline.prepare({}, {}).steps[0].values
    values = {name: np.zeros(len(batch), np.float32) for name in names}
    values |= {"sigma": np.ones(len(batch), np.float32), "guidance": np.float32(guidance)}
    single = {name: value[0] for name, value in values.items()}
    batch_layout = compiler.batch_layouts([len(batch)], elastic=False)[-1]
    program, _ = compiler.step(StepProgram("double"), single, batch_layout, batch[0])
    states, digests = program(compiler.weights.common, tuple(batch), values)
    assert np.asarray(digests).all()
    return [np.asarray(state["latents"]) for state in states]


def test_bitwise_equal_in_any_batch_and_position(compiler: Compiler) -> None:
    tested, a, b, c = rows(compiler, 4)
    first = step(compiler, [tested, a, b, c], [2, 1, 3, 5])[0]
    padded = step(compiler, [tested, tested, tested, tested], [2, 2, 2, 2])
    moved = step(compiler, [c, b, tested, b], [0, 9, 2, 7])[2]
    assert all((first == other).all() for other in (*padded, moved))


def test_digests_change_with_any_bit_and_position() -> None:
    """Row 0 is the original; the others have one changed bit, exchanged elements, NaN, infinity."""
    latents = np.random.default_rng(0).standard_normal((3, 4), np.float32)
    batch = np.stack([latents] * 6)
    batch[1].view(np.uint32)[2, 1] ^= 1
    batch[2, 0, :2] = latents[0, 1::-1]
    batch[3, 1, 1], batch[4, 2, 2] = np.nan, np.inf
    for dtype in (jnp.float32, jnp.bfloat16):
        first, *others = np.asarray(jax.jit(row_digests)(jnp.asarray(batch, dtype))).tolist()
        is_float32 = dtype == jnp.float32
        assert (first != others[0]) is is_float32  # bfloat16 does not have the changed bit
        assert first != others[1] and others[2:] == [0, 0, first]


def test_close_across_batch_sizes(compiler: Compiler) -> None:
    tested, a, b, c = rows(compiler, 4)
    alone = step(compiler, [tested], [2])[0]
    in_four = step(compiler, [a, b, c, tested], [1, 3, 5, 2])[3]
    np.testing.assert_allclose(in_four, alone, rtol=SIZE_TOLERANCE, atol=SIZE_TOLERANCE)
    assert np.abs(alone - tested["latents"]).max() > 0.1, "a step that does nothing proves nothing"


def test_signature_distinguishes_programs(compiler: Compiler) -> None:
    prepare = compiler.pipeline.prepare
    plain = signature(prepare({"seed": 1}, {}).inputs)
    assert plain == signature(prepare({"seed": 2, "prompt": "x"}, {}).inputs)
    assert plain != signature(prepare({"encode": "hopeless"}, {}).inputs)
    assert plain != signature(prepare({"width": 64}, {}).inputs)


def test_options_around_a_compiler_do_not_reach_its_programs() -> None:
    options: list[TraceOptions] = []

    class Watched(ToyPipeline):
        def decode(self, weights: PyTree, row: PyTree) -> jax.Array:
            options.append(trace_options())
            return super().decode(weights, row)

    compiler = Compiler(Watched(), one_device(jax.devices()[0]))
    with TraceOptions(quant="w8a8", strips=8, unroll=True).active():
        compiler.tracer.decode(rows(compiler, 1)[0])
    assert options == [TraceOptions(compiler.layout)]


def test_a_row_that_changes_its_type_is_refused_by_name() -> None:
    row = {"latents": np.zeros((2, 3), np.float32), "text": np.zeros(3)}
    with pytest.raises(TypeError, match=r"step 'x'.*\['latents'\].*float16"):
        check_row("step 'x'", {**row, "latents": np.zeros((2, 3), np.float16)}, row)
