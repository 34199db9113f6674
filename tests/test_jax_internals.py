"""Unstable JAX names are used only through one list, and reported by name if missing."""

from __future__ import annotations

import ast
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AxisType

from models.parallel import jax_internals
from models.parallel.axis_rules import abstract_mesh, auto_mesh
from models.parallel.jax_internals import NAMES, JaxNameMissing, Members, Name, scan_counts
from tests.test_arrows import ROOT, imports, is_in, sources

LIST = ROOT / "models" / "parallel" / "jax_internals.py"
MESHES = ROOT / "models" / "parallel" / "axis_rules.py"
UNSTABLE = (
    *("jax._src", "jax.interpreters", "jax.extend", "jax.experimental", "jax.lib"),
    *("jax.core", "jaxlib"),
)
MESH_MAKERS = ("Mesh", "AbstractMesh", "make_mesh")


def outside(source: str) -> list[str]:
    """Unstable JAX names that a source imports or uses by a dotted name."""
    if "jax" not in source:
        return []
    dotted = [ast.unparse(n) for n in ast.walk(ast.parse(source)) if isinstance(n, ast.Attribute)]
    return sorted({name for name in (*imports(source), *dotted) if is_in(name, UNSTABLE)})


def meshes(source: str) -> list[str]:
    """Calls of a source that make a JAX mesh."""
    if not any(name in source for name in MESH_MAKERS):
        return []
    calls = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call))
    callees = (ast.unparse(call.func) for call in calls)
    return [
        name
        for name in callees
        if name in MESH_MAKERS[:2]
        or name in {f"jax.{maker}" for maker in MESH_MAKERS}
        or name in {f"jax.sharding.{maker}" for maker in MESH_MAKERS}
    ]


def everything() -> list[Path]:
    return [*sources(), *(ROOT / "tests").rglob("*.py")]


def test_only_the_list_uses_unstable_names() -> None:
    files = [path for path in everything() if path != LIST]
    assert len(files) > 500, "the sources were not found"
    uses = {str(path): outside(path.read_text("utf-8")) for path in files}
    assert {path: names for path, names in uses.items() if names} == {}


def test_meshes_are_made_in_one_place() -> None:
    files = [path for path in everything() if path != MESHES]
    uses = {str(path): meshes(path.read_text("utf-8")) for path in files}
    assert {path: names for path, names in uses.items() if names} == {}


@pytest.mark.parametrize(
    "source",
    [
        "from jax._src import core",
        "import jax.extend as jex",
        "def late():\n    from jax.experimental.pallas import tpu",
        "import jaxlib.xla_client",
        "jax.experimental.io_callback(print, None)",
    ],
)
def test_an_unstable_name_is_found(source: str) -> None:
    assert outside(source)


@pytest.mark.parametrize(
    "source", ["Mesh(devices, axes)", "jax.make_mesh((1,), axes)", "jax.sharding.Mesh(d, a)"]
)
def test_a_mesh_is_found(source: str) -> None:
    assert meshes(source)


@pytest.mark.parametrize("name", NAMES)
def test_this_jax_has_every_name(name: str) -> None:
    entry = NAMES[name]
    if isinstance(entry, Name):
        assert getattr(jax_internals, name) is entry.value
    else:
        assert all(getattr(entry, member) is not None for member in entry.names)


@pytest.mark.parametrize(
    ("name", "path"),
    [
        (Name("jax.extend.core", "Nowhere", "the moon"), "jax.extend.core.Nowhere"),
        (Name("jax._src.nowhere", "f", "the moon"), "jax._src.nowhere.f"),
    ],
)
def test_missing_name_is_reported_with_its_purpose(name: Name, path: str) -> None:
    with pytest.raises(JaxNameMissing) as error:
        _ = name.value
    text = str(error.value)
    assert path in text and "the moon" in text and jax.__version__ in text
    assert all(version in text for version in jax_internals.TESTED)


def test_only_listed_members_are_available() -> None:
    with pytest.raises(AttributeError, match="BlockSpec is not listed"):
        _ = Members("jax.experimental.pallas", ("ds",), "kernels").BlockSpec
    with pytest.raises(JaxNameMissing, match=r"jax\.experimental\.pallas\.nowhere"):
        _ = Members("jax.experimental.pallas", ("nowhere",), "kernels").nowhere


def test_a_scans_arguments_are_counted() -> None:
    def scan(carry: jax.Array, xs: jax.Array, const: jax.Array) -> object:
        return jax.lax.scan(lambda c, x: ((c[0] * const + x, c[1] + 1), c[0]), (carry, 0), xs)

    equations = jax.make_jaxpr(scan)(jnp.float32(1), jnp.ones(3), jnp.float32(2)).eqns
    (params,) = (equation.params for equation in equations if equation.primitive.name == "scan")
    assert scan_counts(params) == (1, 2)
    with pytest.raises(JaxNameMissing, match="num_consts"):
        scan_counts({"length": 3})


def test_the_axes_of_every_mesh_are_automatic() -> None:
    """Other axis types make JAX reject ambiguous programs during tracing."""
    for mesh in (auto_mesh(jax.devices()[:2], ("a",)), abstract_mesh((1, 2), ("a", "b"))):
        assert set(mesh.axis_types) == {AxisType.Auto}
