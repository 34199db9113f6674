"""Arrays of several checkpoints of one base: equal arrays share device memory."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec
from safetensors.numpy import load_file, save_file

from models import registry
from models.interface.pipeline import Pipeline
from models.loading.sources import Files
from models.parallel.axis_rules import auto_mesh
from models.weights.quantize import Rounding
from models.weights.sharing import PlacedArrays
from tests.parity.programs import Programs

DEMO = Path(registry.__file__).parent / "demo" / "flux"
OTHER = "x_embedder.weight"
"""The only tensor that differs between the two checkpoints."""
REQUEST = {"prompt": "a red circle", "seed": 1, "width": 32, "height": 48, "num_inference_steps": 2}


@pytest.fixture(scope="module")
def edited(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Kontext checkpoint with the demo's base weights, in separate files."""
    folder = tmp_path_factory.mktemp("edited") / "kontext"
    shutil.copytree(DEMO, folder)
    index = json.loads((folder / "model_index.json").read_text())
    index["_class_name"] = "FluxKontextPipeline"
    (folder / "model_index.json").write_text(json.dumps(index))
    (file,) = (folder / "transformer").glob("*.safetensors")
    tensors = load_file(file)
    save_file({**tensors, OTHER: tensors[OTHER] * np.float32(1.5)}, file)
    return folder


def placed(pipeline: Pipeline) -> dict[str, set[int]]:
    """Memory addresses of each array, by path."""
    leaves = jax.tree.leaves_with_path(pipeline.weights)
    return {
        jax.tree_util.keystr(path): {
            shard.data.unsafe_buffer_pointer() for shard in leaf.addressable_shards
        }
        for path, leaf in leaves
    }


def load(folder: Path, reader: Files | None = None, **options: Any) -> Pipeline:
    return registry.load("m", str(folder), "float32", {}, reader=reader or Files(), **options)


def unlike(first: Pipeline, second: Pipeline) -> set[str]:
    """Paths of arrays that share no memory with the other pipeline."""
    of_first, of_second = placed(first), placed(second)
    assert of_first.keys() == of_second.keys()
    return {
        path for path in of_first if not of_first[path] & of_second[path] and "preview" not in path
    }


def test_two_checkpoints_share_equal_arrays(edited: Path) -> None:
    """Shared weights give the pixels of separately loaded ones, which share nothing."""
    shared = PlacedArrays()
    first, second = (load(folder, Files(shared)) for folder in (DEMO, edited))
    assert unlike(first, second) == {".transformer['latents_in']['kernel'].value"}
    everything = sum(leaf.nbytes for leaf in jax.tree.leaves(second.weights._replace(preview=None)))
    changed = second.weights.transformer["latents_in"]["kernel"]
    assert shared.shared_bytes == everything - changed.nbytes > 0
    pixels = []
    for pipeline, folder in ((first, DEMO), (second, edited)):
        programs = Programs(pipeline)
        prepared = pipeline.prepare({**pipeline.spec.defaults, **REQUEST}, {})
        pixels.append(programs.drawn(prepared)[1])
        apart = load(folder)
        assert unlike(pipeline, apart) == {path for path in placed(apart) if "preview" not in path}
        _, expected = programs.drawn(prepared, apart.weights)
        np.testing.assert_array_equal(pixels[-1], expected)
    assert (pixels[0] != pixels[1]).any()


def test_rounded_weights_are_shared_and_not_freed() -> None:
    """The exact kernels must survive the loader of a rounded network, which frees its own
    copies.
    """
    shared = PlacedArrays()
    exact = load(DEMO, Files(shared))
    first, second = (load(DEMO, Files(shared), rounding=Rounding("instead")) for _ in range(2))
    assert not unlike(first, second)
    assert not any(
        leaf.is_deleted()
        for pipeline in (exact, first)
        for leaf in jax.tree.leaves(pipeline.weights)
    )


@pytest.mark.parametrize("axis", [None, "tensor"])
def test_bits_are_compared_and_not_numbers(axis: str | None) -> None:
    mesh = auto_mesh(jax.devices()[:2], ("tensor",))
    place = NamedSharding(mesh, PartitionSpec(axis))

    def put(*numbers: float) -> jax.Array:
        return jax.device_put(jnp.asarray(numbers, jnp.bfloat16), place)

    shared = PlacedArrays()
    first = shared.deduplicated("a", put(0.0, np.nan))
    equal = put(0.0, np.nan)
    assert shared.deduplicated("a", equal) is first and equal.is_deleted()
    for path, other in (("a", put(-0.0, np.nan)), ("a", put(0.0, 1.0)), ("b", put(0.0, np.nan))):
        assert shared.deduplicated(path, other) is other
    assert shared.shared_bytes == first.nbytes
