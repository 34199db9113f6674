"""Key of a compiled program, which changes with anything that the program depends on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from models.parallel.axis_rules import Layout
from workers.programs import aot_key
from workers.slice.mesh import one_device


def of_process() -> dict[str, Any]:
    return aot_key.of_process(jax.devices()[0])


def test_key_is_json_and_stable() -> None:
    first = of_process()
    assert json.loads(json.dumps(first)) == first == of_process()
    assert any(name.startswith("jaxlib-") for name in first["packages"])


def test_flags_and_options_are_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    before = of_process()
    monkeypatch.setenv("XLA_FLAGS", "--xla_of_another_kind")
    assert of_process()["flags"] != before["flags"]
    jax.config.update("jax_default_matmul_precision", "highest")
    try:
        assert of_process()["options"] != before["options"]
    finally:
        jax.config.update("jax_default_matmul_precision", None)


def test_cache_paths_are_not_in_the_key(tmp_path: Path) -> None:
    before, folder = aot_key.options(), jax.config.values["jax_compilation_cache_dir"]
    jax.config.update("jax_compilation_cache_dir", str(tmp_path))
    after = aot_key.options()
    jax.config.update("jax_compilation_cache_dir", folder)
    assert after == before


def test_process_key_ignores_jax_platforms() -> None:
    """A build for TPUs limits JAX to CPUs. The devices themselves are in the key."""
    key, before = of_process(), jax.config.values["jax_platforms"]
    jax.config.update("jax_platforms", "cpu,other")
    try:
        assert of_process() == key
    finally:
        jax.config.update("jax_platforms", before)
    assert key["machine"][1] == jax.device_count()


def test_key_includes_every_source_file(tmp_path: Path) -> None:
    (tmp_path / "models" / "nn").mkdir(parents=True)
    block = tmp_path / "models" / "nn" / "block.py"
    block.write_text("x = 1")
    first = aot_key.code.__wrapped__(tmp_path)
    block.write_text("x = 2")
    assert aot_key.code.__wrapped__(tmp_path) != first
    block.write_text("x = 1")
    assert aot_key.code.__wrapped__(tmp_path) == first
    block.rename(block.with_name("other.py"))
    assert aot_key.code.__wrapped__(tmp_path) != first


def test_layouts_differ_by_devices_axes_and_table() -> None:
    devices = jax.devices()
    first, second = one_device(devices[0]), one_device(devices[1])
    tabled = Layout(first.mesh, first.kernel, {**first.table, "heads": ()})
    keys = [json.dumps(aot_key.of_layout(layout)) for layout in (first, second, tabled)]
    assert len(set(keys)) == 3
    assert json.dumps(aot_key.of_layout(one_device(devices[0]))) == keys[0]


def test_unsplit_trailing_dimensions_do_not_change_the_key() -> None:
    mesh = one_device(jax.devices()[0]).mesh

    def key(*axes: str | None) -> str:
        place = NamedSharding(mesh, PartitionSpec(*axes))
        return aot_key.of_arguments(jax.ShapeDtypeStruct((2, 3), np.float32, sharding=place))

    assert key() == key(None) == key(None, None)
    assert key("data") == key("data", None) != key(None, "data")


def test_arguments_differ_by_name_shape_dtype_and_place() -> None:
    mesh = one_device(jax.devices()[0]).mesh
    place = NamedSharding(mesh, PartitionSpec())

    def key(name: str = "a", shape: tuple[int, ...] = (2, 3), dtype: type = np.float32,
             place: NamedSharding | None = None) -> str:  # fmt: skip
        return aot_key.of_arguments({name: jax.ShapeDtypeStruct(shape, dtype, sharding=place)})

    different = [key(), key("b"), key(shape=(3, 2)), key(dtype=np.int32), key(place=place)]
    assert len(set(different)) == len(different)
    assert key() == key()
