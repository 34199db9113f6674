"""Models with 8-bit weights: rounding during loading, placement, and memory."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec
from safetensors.numpy import save_file

from models import registry
from models.checkpoint.key_mapping import Renames
from models.checkpoint.safetensors import ComponentFiles
from models.loading.abstract import abstract_module
from models.loading.random_weights import RandomWeights
from models.loading.sources import SHAPES
from models.nn.kernels.xla import xla_kernel
from models.nn.layers.norms import Modulation
from models.nn.layers.parameterised import from_heads, linear, to_heads
from models.nn.layers.scanned import each, scan, stack
from models.parallel.axis_rules import Layout
from models.parallel.trace_options import TraceOptions
from models.weights.loader import flat_parameters, load
from models.weights.quantize import Rounding, rounded
from workers.slice.mesh import make_mesh
from workers.slice.mesh_shape import MeshShape

DEMO = Path(registry.__file__).parent / "demo"
LAYERS, WIDTH, INNER = 3, 32, 64
SPLIT = {
    "tensor": {"tensor": 4},
    "fsdp": {"fsdp": 4},
    "context": {"context": 4},
    "both": {"fsdp": 2, "tensor": 2},
}
SUMS = 1e-5
"""Tolerance relative to the largest number: exact activations in float32, summed in another
order.
"""
CLOSE = 0.02
"""Tolerance relative to the largest number, with rounded activations.

A layout that sums in another order may move a number to the neighbouring one of 127 steps in the
next layer.
"""


class Block(nnx.Module):
    def __init__(self, *, rngs: nnx.Rngs) -> None:
        self.up = linear(WIDTH, INNER, ("embed", "mlp"), rngs=rngs)
        self.down = linear(INNER, WIDTH, ("mlp", "embed"), rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return x + self.down(self.up(x))


class Network(nnx.Module):
    def __init__(self, *, rngs: nnx.Rngs) -> None:
        self.blocks = stack(Block, LAYERS, rngs=rngs)
        self.modulation = stack(partial(Modulation, WIDTH, 1), LAYERS, rngs=rngs)
        self.out = linear(WIDTH, 4, ("embed", None), rngs=rngs)


RENAMES: Renames = (
    (r"layers\.(\d+)\.(up|down)\.weight", r"blocks.\2.kernel[\1]"),
    (r"layers\.(\d+)\.(up|down)\.bias", r"blocks.\2.bias[\1]"),
    (r"layers\.(\d+)\.modulation\.weight", r"modulation.linear.kernel[\1]"),
    (r"layers\.(\d+)\.modulation\.bias", r"modulation.linear.bias[\1]"),
    (r"(.+)\.weight", r"\1.kernel"),
    (r"(.+)\.bias", r"\1.bias"),
)
STACKED = ("blocks.up", "blocks.down", "modulation.linear")
IN_8_BITS = {f"{layer}.eight.{part}" for layer in STACKED for part in ("values", "scale")}


def network(where: Any) -> Any:
    module = abstract_module(Network)
    return module if where is None else Rounding(where).of(module)


@pytest.fixture(scope="module")
def part(tmp_path_factory: pytest.TempPathFactory) -> ComponentFiles:
    """A checkpoint whose columns differ in size."""
    rng = np.random.default_rng(0)
    shapes = {"up": (INNER, WIDTH), "down": (WIDTH, INNER), "modulation": (WIDTH, WIDTH)}
    named = {f"layers.{i}.{name}": shape for i in range(LAYERS) for name, shape in shapes.items()}
    tensors = {}
    for name, (out, inputs) in {**named, "out": (4, WIDTH)}.items():
        columns = np.exp(rng.normal(size=(out, 1)) / 2)
        kernel = rng.normal(size=(out, inputs)) / np.sqrt(inputs)
        tensors[f"{name}.weight"] = np.float32(columns * kernel)
        tensors[f"{name}.bias"] = np.float32(rng.normal(size=out))
    file = tmp_path_factory.mktemp("network") / "model.safetensors"
    save_file(tensors, file)
    return ComponentFiles("network", (file,))


def arrays(module: nnx.Module) -> dict[str, jax.Array]:
    return {path: leaf.get_value() for path, leaf in flat_parameters(module).items()}


def layout_of(sizes: dict[str, int]) -> Layout:
    return Layout(make_mesh(MeshShape(sizes).over(4), jax.devices()[:4]), xla_kernel)


def test_block_kernels_are_rounded_while_loading(part: ComponentFiles) -> None:
    """Other kernels stay exact. The exact form of a rounded kernel remains only with `beside`."""
    exact = arrays(load(network(None), part, RENAMES))
    in_addition, replaced = (
        arrays(load(network(placement), part, RENAMES)) for placement in ("beside", "instead")
    )
    assert in_addition.keys() - exact.keys() == IN_8_BITS
    assert exact.keys() - replaced.keys() == {f"{layer}.kernel" for layer in STACKED}
    for leaves in (in_addition, replaced):
        assert all((leaves[path] == exact[path]).all() for path in leaves.keys() & exact.keys())
        values, scale = rounded(exact["blocks.up.kernel"], jnp.int8)
        assert leaves["blocks.up.eight.values"].dtype == jnp.int8
        assert (leaves["blocks.up.eight.values"] == values).all()
        assert (leaves["blocks.up.eight.scale"] == scale).all()


def test_rounding_error_is_within_half_a_step_of_each_column(part: ComponentFiles) -> None:
    """Each value is reproduced to within half a step of its column's largest value."""
    leaves = arrays(load(network("beside"), part, RENAMES))
    kernel = leaves["blocks.down.kernel"]
    restored = leaves["blocks.down.eight.values"] * leaves["blocks.down.eight.scale"][:, None]
    step = jnp.abs(kernel).max(axis=1, keepdims=True) / 127
    assert float((jnp.abs(restored - kernel) / step).max()) <= 0.5 + 1e-4
    assert int(jnp.abs(leaves["blocks.down.eight.values"]).max()) == 127


@pytest.mark.parametrize("products", ["w8a16", "w8a8"])
@pytest.mark.parametrize("sizes", SPLIT.values(), ids=SPLIT)
def test_every_layout_rounds_and_multiplies_the_same(
    part: ComponentFiles, sizes: dict[str, int], products: Any
) -> None:
    layout = layout_of(sizes)
    single = load(network("instead"), part, RENAMES)
    shared = load(network("instead"), part, RENAMES, sharding=layout.of_parameter)
    for path, array in arrays(single).items():
        assert (np.asarray(arrays(shared)[path]) == np.asarray(array)).all(), path
    values = arrays(shared)["blocks.up.eight.values"]
    split = {axis for axis in sizes if axis != "context"}
    parts = values.size / values.addressable_shards[0].data.size
    assert parts == np.prod([sizes[axis] for axis in split] or [1])
    x = jax.random.normal(jax.random.key(0), (2, 8, WIDTH))

    def run(module: Any, layout: Layout | None) -> tuple[np.ndarray, ...]:
        graph, state = nnx.split(module)

        def network(state: Any, x: jax.Array) -> tuple[jax.Array, jax.Array]:
            module = nnx.merge(graph, state)
            with TraceOptions(layout, products).active():
                blocks, _ = scan(module.blocks, x, lambda block, x: block(x))
                return blocks, each(module.modulation, lambda projected: projected(x[0]))

        return tuple(map(np.asarray, jax.jit(network)(state, x)))

    (expected, projected), (output, projected_shared) = run(single, None), run(shared, layout)
    assert (
        np.abs(output - expected).max()
        <= (CLOSE if products == "w8a8" else SUMS) * np.abs(expected).max()
    )
    assert np.abs(projected_shared - projected).max() <= SUMS * np.abs(projected).max()


@pytest.mark.parametrize("sizes", SPLIT.values(), ids=SPLIT)
def test_every_layout_multiplies_by_heads_the_same(
    part: ComponentFiles, sizes: dict[str, int]
) -> None:
    """Layers of a stack with outputs that are split by heads and joined again give the same result
    under every layout."""
    layout, heads = layout_of(sizes), 4
    x = jax.random.normal(jax.random.key(0), (2, 8, WIDTH))

    def block(block: Block, x: jax.Array) -> jax.Array:
        return x + from_heads(block.down, to_heads(block.up, x, heads))

    def run(layout: Layout | None) -> np.ndarray:
        place = None if layout is None else layout.of_parameter
        module = load(network("instead"), part, RENAMES, sharding=place)
        graph, state = nnx.split(module.blocks)

        def blocks(state: Any, x: jax.Array) -> jax.Array:
            with TraceOptions(layout, "w8a16").active():
                return scan(nnx.merge(graph, state), x, block)[0]

        return np.asarray(jax.jit(blocks)(state, x))

    expected, output = run(None), run(layout)
    assert np.abs(output - expected).max() <= SUMS * np.abs(expected).max()


def test_shapes_and_random_weights_have_them_too() -> None:
    place = layout_of({"tensor": 4}).of_parameter
    shapes = arrays(
        SHAPES.network(network("instead"), ComponentFiles("network", ()), (), sharding=place)
    )
    random = arrays(
        RandomWeights().network(
            network("instead"), ComponentFiles("network", ()), (), sharding=place
        )
    )
    exact = arrays(
        RandomWeights().network(network(None), ComponentFiles("network", ()), (), sharding=place)
    )
    for path, shape in shapes.items():
        array = random[path]
        assert (array.shape, array.dtype, array.sharding) == (
            shape.shape, shape.dtype, shape.sharding,
        ), path  # fmt: skip
    values, scale = rounded(exact["blocks.up.kernel"], jnp.int8)
    assert (random["blocks.up.eight.values"] == values).all()
    assert (random["blocks.up.eight.scale"] == scale).all()


def test_8_bit_floats_use_their_full_range(part: ComponentFiles) -> None:
    module = Rounding("instead", jnp.float8_e4m3fn).of(abstract_module(Network))
    leaves = arrays(load(module, part, RENAMES))
    values = leaves["blocks.up.eight.values"]
    assert values.dtype == jnp.float8_e4m3fn
    largest = jnp.abs(values.astype(jnp.float32)).max(axis=-1)
    assert (largest == float(jnp.finfo(jnp.float8_e4m3fn).max)).all()


def test_float_kernels_are_stored_transposed_and_sharded(part: ComponentFiles) -> None:
    """Float kernels are stored transposed. Each device has its share of the inputs, as of the exact
    kernel.
    """
    place = layout_of(SPLIT["both"]).of_parameter

    def module() -> Any:
        return Rounding("instead", jnp.float8_e4m3fn).of(abstract_module(Network))

    single = arrays(load(module(), part, RENAMES))
    shared = arrays(load(module(), part, RENAMES, sharding=place))
    values = shared["blocks.up.eight.values"]
    assert values.shape == (LAYERS, INNER, WIDTH)
    assert isinstance(values.sharding, NamedSharding)
    assert values.sharding.spec == PartitionSpec(None, "tensor", "fsdp")
    assert (np.asarray(values) == np.asarray(single["blocks.up.eight.values"])).all()
    random = arrays(
        RandomWeights().network(module(), ComponentFiles("network", ()), (), sharding=place)
    )
    assert random["blocks.up.eight.values"].sharding == values.sharding


def test_encoders_are_not_rounded() -> None:
    """Only networks that a family names are rounded, although text encoders have stacked layers."""
    pipeline = registry.load(
        "flux", str(DEMO / "flux"), "float32", {}, reader=SHAPES, rounding=Rounding("instead")
    )
    eight = {
        name: any("int8" in str(leaf.dtype) for leaf in jax.tree.leaves(weights))
        for name, weights in pipeline.weights._asdict().items()
    }
    assert eight == {
        "transformer": True, "clip": False, "t5": False, "vae": False, "preview": False,
        "image_encoder": False, "image_embedder": False, "controls": False,
    }  # fmt: skip
