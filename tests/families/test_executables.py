"""Keys of each family's executables: the same without its weights as with them."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import jax

from models.interface.pipeline import Pipeline
from models.loading.sources import FILES, Reader
from models.nn.kernels.xla import xla_kernel
from models.parallel.axis_rules import Layout
from tests.families.suite import EVERY, loaded
from tests.families.suite.entry import SuiteEntry
from workers.building.build import TokenizerReader
from workers.programs import aot_key, warmup
from workers.programs.abstract_arguments import AbstractArguments
from workers.slice.mesh import make_mesh
from workers.slice.mesh_shape import MeshShape

SIZES = {"fsdp": 2}


def of_programs(pipeline: Pipeline, layout: Layout, entry: SuiteEntry) -> Any:
    """Return all parts of a key that come from the pipeline itself, except its settings."""
    arguments = AbstractArguments(pipeline, layout)
    names, leaves = arguments.weights.names, arguments.abstract_weights
    (fields,) = warmup.requests(pipeline.spec, [entry.request])
    prepared = pipeline.prepare(fields, entry.images)
    return {
        "configs": pipeline.spec.config_digest,
        "weights": dict(zip(names, map(aot_key.of_arguments, leaves), strict=True)),
        "inputs": aot_key.of_arguments(arguments.of(dict(prepared.inputs))),
        "steps": [str(step.program) for step in prepared.steps],
    }


def test_keys_need_no_weights(family: str, folder: Path, tmp_path: Path) -> None:
    """Programs of a network in a single file need its header, so these files are kept."""
    entry = EVERY[family]
    single = {Path(place).name for place in entry.image_prompts.values()}
    bare = Path(shutil.copytree(folder, tmp_path / "bare"))
    for path in [*bare.rglob("*.safetensors"), *bare.rglob("*.index.json")]:
        if path.name not in single:
            path.unlink()
    devices = jax.devices()[:2]
    layout = Layout(make_mesh(MeshShape(SIZES).over(2), devices), xla_kernel)

    def keys(place: Path, reader: Reader) -> Any:
        pipeline = loaded(family, place, "float32", reader=reader, sharding=layout.of_parameter)
        return of_programs(pipeline, layout, entry)

    assert keys(bare, TokenizerReader()) == keys(folder, FILES)
