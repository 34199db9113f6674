"""Random weights: shapes, placement and variance."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from models.checkpoint.safetensors import ComponentFiles
from models.loading.abstract import abstract_module
from models.loading.random_weights import RandomWeights, uniform
from models.nn.layers.parameterised import linear
from models.parallel.axis_rules import auto_mesh
from models.weights.loader import flat_parameters

WIDTHS = (256, 512)
PLACE = ComponentFiles("network", ())


class Network(nnx.Module):
    def __init__(self, param_dtype: jnp.dtype, *, rngs: nnx.Rngs) -> None:
        inputs, outputs = WIDTHS
        make = partial(linear, rngs=rngs, param_dtype=param_dtype)
        self.first = make(inputs, outputs, (None, "heads"))
        self.second = make(outputs, inputs, ("heads", None))
        self.norm = nnx.RMSNorm(inputs, rngs=rngs, param_dtype=param_dtype)


@pytest.fixture(scope="module")
def mesh() -> Mesh:
    return auto_mesh(np.array(jax.devices()[:2]), ("tensor",))


def drawn(mesh: Mesh, seed: int = 0, split: bool = True) -> dict[str, jax.Array]:
    axis = "tensor" if split else None

    def place(path: str, leaf: nnx.Variable) -> NamedSharding:
        return NamedSharding(mesh, PartitionSpec(*[None] * (len(leaf.shape) - 1), axis))

    module = abstract_module(Network, jnp.bfloat16)
    reader = RandomWeights(seed=seed)
    loaded = reader.network(module, PLACE, (), sharding=place)
    return {path: leaf.get_value() for path, leaf in flat_parameters(loaded).items()}


def test_every_device_generates_its_own_shard(mesh: Mesh) -> None:
    split, unsplit = drawn(mesh), drawn(mesh, split=False)
    kernel = split["first.kernel"]
    assert kernel.dtype == jnp.bfloat16
    assert {shard.data.shape for shard in kernel.addressable_shards} == {(256, 256)}
    for path, array in split.items():
        assert np.array_equal(array, unsplit[path]), f"{path} depends on how it is split"


def test_weight_scale_preserves_activation_magnitude(mesh: Mesh) -> None:
    arrays = drawn(mesh)
    for name, inputs in zip(("first", "second"), WIDTHS, strict=True):
        kernel = np.asarray(arrays[f"{name}.kernel"], np.float32)
        assert np.var(kernel) * inputs == pytest.approx(1, rel=0.02)
        assert abs(kernel.mean()) < 3 / np.sqrt(inputs * kernel.size)
        assert not np.asarray(arrays[f"{name}.bias"]).any()
    assert (np.asarray(arrays["norm.scale"]) == 1).all()


def test_arrays_and_seeds_differ(mesh: Mesh) -> None:
    zero, seed_one = drawn(mesh), drawn(mesh, seed=1)
    first, second = (np.asarray(zero[f"{name}.kernel"], np.float32) for name in ("first", "second"))
    between_arrays = np.corrcoef(first.ravel() / first.std(), second.ravel() / second.std())[0, 1]
    reseeded = np.asarray(seed_one["first.kernel"], np.float32)
    between_seeds = np.corrcoef(first.ravel(), reseeded.ravel())[0, 1]
    assert abs(between_arrays) < 0.02 and abs(between_seeds) < 0.02


def test_large_array_needs_no_temporary_memory() -> None:
    """Otherwise the initialization would raise the measured peak of memory."""
    shape = (8, 1024, 1024)
    program = uniform(shape, jnp.dtype("bfloat16"), None)
    compiled = program.lower(np.uint32(0), np.float32(1), np.float32(0)).compile()
    assert compiled.memory_analysis().temp_size_in_bytes < 2**20
