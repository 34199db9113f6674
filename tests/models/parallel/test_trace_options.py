"""Trace options: active inside their context, in their thread only."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import jax
import jax.numpy as jnp
import pytest

from models.parallel.axis_rules import Split
from models.parallel.placement import split
from models.parallel.trace_options import DEFAULTS, TraceOptions, trace_options
from tests.parallel.layouts import layout


def seen_by_a_trace() -> TraceOptions:
    """Return the options that a function reads during tracing."""
    captured: list[TraceOptions] = []

    def network(x: jax.Array) -> jax.Array:
        captured.append(trace_options())
        return x

    jax.jit(network).trace(jnp.zeros(2))
    (options,) = captured
    return options


def test_a_trace_without_options_has_the_defaults() -> None:
    one_device = TraceOptions(layout=None, quant=None, strips=1, unroll=False, record=None)
    assert seen_by_a_trace() == DEFAULTS == one_device


def test_options_end_with_their_block() -> None:
    with TraceOptions(quant="w8a8").active():
        assert seen_by_a_trace() == TraceOptions(quant="w8a8")
    assert seen_by_a_trace() == DEFAULTS


def test_a_nested_block_replaces_some_options() -> None:
    with TraceOptions(quant="w8a8", unroll=True).active():
        with replace(trace_options(), strips=8).active():
            assert seen_by_a_trace() == TraceOptions(quant="w8a8", strips=8, unroll=True)
        assert seen_by_a_trace() == TraceOptions(quant="w8a8", unroll=True)


def test_options_are_reset_after_a_failed_trace() -> None:
    def network(x: jax.Array) -> jax.Array:
        with TraceOptions(unroll=True).active(), replace(trace_options(), strips=8).active():
            return x.reshape(5)

    with pytest.raises(TypeError, match="reshape"):
        jax.jit(network).trace(jnp.zeros(2))
    assert seen_by_a_trace() == DEFAULTS


def test_threads_trace_with_their_own_options() -> None:
    """The compiler uses several threads at the same time."""
    barrier = threading.Barrier(2, timeout=60)

    def traced(strips: int) -> TraceOptions:
        with TraceOptions(strips=strips).active():
            barrier.wait()
            options = seen_by_a_trace()
            barrier.wait()
            return options

    with ThreadPoolExecutor(2) as threads:
        assert [result.strips for result in threads.map(traced, (4, 8))] == [4, 8]
    assert seen_by_a_trace() == DEFAULTS


def test_recorder_gets_the_splits_of_a_layout() -> None:
    splits: list[Split] = []
    with TraceOptions(layout(data=2), record=splits.append).active():
        jax.jit(lambda x: split(x, "batch", None)).trace(jnp.zeros((4, 3)))
    (recorded,) = splits
    assert (recorded.axes, recorded.shape, recorded.over) == (
        ("batch", None),
        (4, 3),
        (("data",), ()),
    )
    assert "test_recorder_gets_the_splits_of_a_layout" in recorded.where
