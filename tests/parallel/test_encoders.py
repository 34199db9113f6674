"""Text encoders under layouts: large ones are split among all devices, small ones replicated."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.stages import Compiled

from models.parallel.axis_rules import Layout
from models.parallel.encoder_axes import rename_axes_by_size
from models.parallel.placement import gather_for_use
from models.parallel.trace_options import TraceOptions
from models.text.clip import ClipConfig, ClipTextModel
from models.text.qwen3 import Qwen3Config, Qwen3Encoder
from models.text.t5 import T5Config, T5Encoder
from models.text.umt5 import UMT5Config, UMT5Encoder
from models.weights.loader import flat_parameters
from tests.parallel.layouts import layout

ROUNDING = 1e-5
"""Tolerance relative to the largest value: only the order of sums differs."""
SMALL = {"vocab_size": 64, "d_model": 32, "d_kv": 8, "num_layers": 2}
GATED = {"feed_forward_proj": "gated-gelu"}
QWEN = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 96, "num_hidden_layers": 3}
LAYOUT = {"fsdp": 2, "context": 2, "tensor": 2}

ENCODERS: dict[str, Callable[[], nnx.Module]] = {
    "t5": lambda: T5Encoder(T5Config(num_heads=8, d_ff=96, **SMALL, **GATED), rngs=nnx.Rngs(0)),
    "umt5": lambda: UMT5Encoder(UMT5Config(num_heads=8, d_ff=96, **SMALL), rngs=nnx.Rngs(0)),
    "clip": lambda: ClipTextModel(
        ClipConfig(vocab_size=64, hidden_size=32, intermediate_size=96, num_hidden_layers=2),
        rngs=nnx.Rngs(0),
    ),
    "qwen3": lambda: Qwen3Encoder(
        Qwen3Config(num_attention_heads=16, num_key_value_heads=8, head_dim=8, **QWEN),
        (-2,),
        rngs=nnx.Rngs(0),
    ),
    "heads and feed-forward that do not divide": lambda: T5Encoder(
        T5Config(num_heads=5, d_ff=60, **{**SMALL, "d_kv": 7}), rngs=nnx.Rngs(0)
    ),
}


def ran(module: nnx.Module, by: Layout) -> tuple[Compiled, list[np.ndarray]]:
    """Compile an encoder for a layout and encode two prompts; return the program and its
    outputs.
    """
    graph, state = nnx.split(module)
    rng = np.random.default_rng(0)

    def place(leaf: nnx.Variable) -> nnx.Variable:
        values = rng.normal(0, leaf.shape[-1] ** -0.5, leaf.shape).astype(leaf.dtype)
        return leaf.replace(jax.device_put(values, by.of_parameter("", leaf)))

    weights = jax.tree.map(place, state, is_leaf=lambda leaf: isinstance(leaf, nnx.Variable))
    everywhere = by.sharding((), ())
    tokens = jax.device_put(np.arange(32).reshape(2, 16), everywhere)

    def run(weights: nnx.State, tokens: jax.Array) -> Any:
        with TraceOptions(by).active():
            return nnx.merge(graph, gather_for_use(weights))(tokens)

    program = jax.jit(run, out_shardings=everywhere).lower(weights, tokens).compile()
    return program, [np.asarray(x) for x in jax.tree.leaves(program(weights, tokens))]


@pytest.mark.parametrize(
    ("name", "max_work", "max_weights"),
    [
        ("t5", 0.15, 0.14),
        ("umt5", 0.15, 0.14),
        ("clip", 0.18, 0.25),
        ("qwen3", 0.15, 0.14),
        ("heads and feed-forward that do not divide", 0.75, 0.65),
    ],
)
def test_a_large_encoder_is_shared_by_all_devices(
    name: str, max_work: float, max_weights: float
) -> None:
    """A device's share of the work and of the weights, relative to one device.

    Norms, positions and sizes that do not divide stay whole. Devices exchange outputs, not weights.
    """
    module = rename_axes_by_size(nnx.eval_shape(ENCODERS[name]), replicated_below=0)
    single, expected = ran(module, layout())
    split, outputs = ran(module, layout(**LAYOUT))
    for output, reference in zip(outputs, expected, strict=True):
        assert np.abs(output - reference).max() < ROUNDING * np.abs(reference).max()
    work = [program.cost_analysis()["flops"] for program in (split, single)]
    weights = [program.memory_analysis().argument_size_in_bytes for program in (split, single)]
    assert work[0] < max_work * work[1]
    assert weights[0] < max_weights * weights[1]
    assert " all-gather(" not in split.as_text()


def test_key_heads_may_be_fewer_than_devices() -> None:
    """Devices that share a key head exchange its output. All other sizes divide as usual."""
    config = Qwen3Config(num_attention_heads=8, num_key_value_heads=2, head_dim=8, **QWEN)
    make = lambda: Qwen3Encoder(config, (1, 3), rngs=nnx.Rngs(0))  # noqa: E731
    module = rename_axes_by_size(nnx.eval_shape(make), replicated_below=0)
    single, expected = ran(module, layout())
    split, outputs = ran(module, layout(**LAYOUT))
    assert np.abs(outputs[0] - expected[0]).max() < ROUNDING * np.abs(expected[0]).max()
    sizes = [program.memory_analysis().argument_size_in_bytes for program in (split, single)]
    assert sizes[0] < 0.14 * sizes[1]


def test_a_small_encoder_is_whole_on_every_device() -> None:
    module = rename_axes_by_size(nnx.eval_shape(ENCODERS["t5"]))
    program, _ = ran(module, layout(**LAYOUT))
    assert "all-" not in program.as_text()
    for leaf in flat_parameters(module).values():
        assert layout(**LAYOUT).of_parameter("", leaf).is_fully_replicated


XXL = {"d_model": 4096, "num_layers": 24, "num_heads": 64, "d_ff": 10240}


@pytest.mark.parametrize(
    ("kind", "config", "share"),
    [
        (T5Encoder, T5Config(**XXL, **GATED), 1 / 8),
        (UMT5Encoder, UMT5Config(**XXL, vocab_size=256384), 1 / 8),
        (ClipTextModel, ClipConfig(hidden_size=768, intermediate_size=3072), 1),
    ],
    ids=["T5-XXL", "UMT5-XXL", "CLIP-L"],
)
def test_published_encoders_are_sharded_by_size(kind: Any, config: Any, share: float) -> None:
    """Published encoders in bfloat16, as abstract shapes only."""
    make = lambda: kind(config, rngs=nnx.Rngs(0), param_dtype=jnp.bfloat16)  # noqa: E731
    module = rename_axes_by_size(nnx.eval_shape(make))
    by = layout(context=8)
    sizes = [
        (leaf.size, np.prod(by.of_parameter("", leaf).shard_shape(leaf.shape)))
        for leaf in flat_parameters(module).values()
    ]
    total, part = (sum(size) for size in zip(*sizes, strict=True))
    assert share <= part / total < 1.01 * share
