"""Weights that leave their devices and return: bitwise equal, copied once, with their changes."""

from __future__ import annotations

import gc
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from models.parallel.axis_rules import Layout, auto_mesh
from tests.workers.experts import TwoExperts
from workers.programs.device_weights import Weights
from workers.programs.host_copies import is_on_device

SHAPE = (24, 1027)


def weights_of(tree: Any, stacks: list[bool] | None = None) -> Weights:
    leaves = jax.tree.leaves(tree)
    places = [leaf.sharding if isinstance(leaf, jax.Array) else None for leaf in leaves]
    return Weights("toy", tree, places, stacks or [False] * len(leaves))


def live() -> int:
    """Return the number of arrays of `SHAPE` that use device memory."""
    gc.collect()
    return sum(array.shape == SHAPE and not array.is_deleted() for array in jax.live_arrays())


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.int8])
def test_offloaded_weights_are_restored(dtype: Any) -> None:
    mesh = auto_mesh(np.array(jax.devices()[:2]), ("tensor",))
    values = np.random.default_rng(0).integers(-9, 9, SHAPE)
    split, replicated = (
        jax.device_put(values.astype(dtype), NamedSharding(mesh, PartitionSpec(*spec)))
        for spec in (("tensor",), ())
    )
    weights = weights_of({"a": split, "b": replicated, "c": split})
    common, places = weights.common, [leaf.sharding for leaf in weights.common]
    size = weights.device_bytes
    assert size == split.nbytes + replicated.nbytes, "one array at two places counts once"
    for _ in range(3):
        weights.offload()
        assert weights.is_offloaded and live() == 0 and split.is_deleted()
        assert weights.reload() > 0
        assert not weights.is_offloaded and weights.load_expert(None) is common is weights.common
        assert [leaf.sharding for leaf in common] == places and common[0] is common[2]
        assert live() == 2
        copies = [jax.device_put(leaf, jax.devices()[0]) for leaf in common]
        assert all((np.array(leaf) == values.astype(dtype)).all() for leaf in copies)
        del copies
    assert weights.reload() == 0.0


def test_separate_layers_are_restored_separately() -> None:
    stack = jnp.arange(12.0).reshape(3, 4)
    weights = weights_of({"a": stack}, [True])
    weights.offload()
    weights.reload(keep_copies=False)
    (layers,) = weights.common
    assert [list(map(float, layer)) for layer in layers] == [
        [0, 1, 2, 3],
        [4, 5, 6, 7],
        [8, 9, 10, 11],
    ]
    weights.offload()
    weights.reload()
    assert float(weights.common[0][2][3]) == 11


def test_changed_weights_are_copied_again() -> None:
    weights = weights_of({"bank": jnp.zeros(4), "kernel": jnp.ones(4)})
    for number in range(1, 4):
        weights.offload()
        weights.reload()
        weights.replace(0, lambda bank: bank + 1)
        weights.offload()
        weights.reload()
        assert float(weights.common[0][0]) == number


def test_resident_expert_is_offloaded(layout: Layout) -> None:
    experts = TwoExperts()
    places = [NamedSharding(layout.mesh, PartitionSpec())] * len(jax.tree.leaves(experts.weights))
    weights = Weights("toy", experts.weights, places, [False] * len(places))
    arrays = weights.load_expert("high")
    on_device = [leaf for leaf in arrays if is_on_device(leaf)]
    weights.offload()
    assert all(leaf.is_deleted() for leaf in on_device) and weights.resident is None
    weights.reload()
    assert weights.resident is None
    assert all(
        not is_on_device(leaf) or not leaf.is_deleted() for leaf in weights.load_expert("low")
    )
