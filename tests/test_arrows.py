"""Who may know whom: the arrows of the architecture, read from the sources' own imports."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from deploy.exit_codes import EXIT_CONFIG

ROOT = Path(__file__).resolve().parents[1]
ROOMS = ("atelier", "deploy", "models", "service", "tools", "workers")
FAMILIES = frozenset({"flux", "sdxl", "wan"})

SERVICE_KNOWS = (
    "service",
    "models.spec.model_spec",
    "models.spec.quality_presets",
    "models.registry",
    "models.spec.image_files",
)
JOBS_KNOW = ("service.jobs", "service.settings", "models.spec.model_spec")
WORKERS_KNOW = ("workers", "models", "service.jobs", "service.metrics.http", "service.settings")
FOR_ALL = ("metrics", "retry")
"""Files of workers that every room there may import."""
FLOORS: dict[str, tuple[str, ...]] = {
    "slice": (),
    "jaxpr": (),
    "media": (),
    "health": (),
    "programs": ("jaxpr", "slice"),
    "plan": ("jaxpr", "programs", "slice"),
    "loading": ("jaxpr", "plan", "programs", "slice"),
    "engine": ("programs", "slice"),
    "multihost": ("engine", "programs", "slice"),
    "profiling": ("engine", "slice"),
    "pool": ("engine", "health", "loading", "media", "multihost", "profiling", "programs", "slice"),
    "bench": ("engine", "loading", "plan", "pool", "programs", "slice"),
}
"""Rooms of workers, from the lowest floor up, and those that each may import beside itself."""

HEAVY = ("jax", "jaxlib", "flax", "optax", "torch", "transformers", "diffusers")
"""A front end starts without them: in a second, not five, and in a third of the memory."""
WEB = ("fastapi", "starlette", "uvicorn")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
EXTRAS = ("cpu", "train", "plan", "otel")
NOT_AT_RUN_TIME = ("torch", "diffusers", "pytest", "tests")


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(source: str) -> Iterator[str]:
    """Every module that a source imports, at its top or inside a function, as a dotted name.

    `from a import b` counts as `a.b`, since `b` may be a module.
    """
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports hide the arrows"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def is_in(name: str, packages: tuple[str, ...]) -> bool:
    return any(name == package or name.startswith(f"{package}.") for package in packages)


def may_know(module: str) -> tuple[str, ...]:
    """The rooms of this project that a module may import."""
    room, *rest = module.split(".")
    if room == "workers" and rest and rest[0] in FLOORS:
        outside = tuple(name for name in WORKERS_KNOW if name != "workers")
        inside = (rest[0], *FLOORS[rest[0]], *FOR_ALL)
        return (*outside, *(f"workers.{name}" for name in inside))
    if is_in(module, ("service.jobs",)):
        return JOBS_KNOW
    if room == "service":
        return SERVICE_KNOWS
    if room == "workers":
        return tuple(name for name in WORKERS_KNOW if name != "workers")
    if room == "models":
        family = rest[0] if rest and rest[0] in FAMILIES else None
        shared = ("models",) if family is None else (f"models.{family}", *shared_models())
        return shared
    return ROOMS if room == "tools" else tuple(name for name in ROOMS if name != "tools")


def shared_models() -> tuple[str, ...]:
    """Everything in models/ that is no family and no trained checkpoint."""
    found = (path.stem for path in (ROOT / "models").iterdir())
    return tuple(f"models.{name}" for name in found if name not in FAMILIES | {"demo"})


def never_imports(module: str) -> tuple[str, ...]:
    """Packages from outside that a module must do without."""
    if is_in(module, ("service.jobs",)):
        return (*HEAVY, *WEB)
    if is_in(module, SERVICE_KNOWS):
        return HEAVY
    return NOT_AT_RUN_TIME


def breaches(module: str, source: str) -> list[str]:
    """What this module imports against the arrows."""
    allowed, banned = may_know(module), never_imports(module)
    return [
        f"{module} imports {name}"
        for name in imports(source)
        if is_in(name, banned) or (is_in(name, ROOMS) and not is_in(name, allowed))
    ]


def sources() -> list[Path]:
    folders = (path for room in ROOMS for path in (ROOT / room).rglob("*.py"))
    return [ROOT / "atelier.py", *folders]


def test_every_import_follows_an_arrow() -> None:
    found = [path for path in sources() if path.is_file()]
    assert len(found) > 40, "the sources were not found"
    assert [
        line for path in found for line in breaches(module_name(path), path.read_text("utf-8"))
    ] == []


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("service.app", "import jax"),
        ("service.app", "from models.flux import pipeline"),
        ("service.app", "from workers.pool.worker import run_pool"),
        ("service.jobs.queue", "from service.errors.problems import Problem"),
        ("service.jobs.queue", "import fastapi"),
        ("models.registry", "import jax.numpy"),
        ("service.jobs.queue", "def late():\n    import service.routes.generate"),
        ("workers.pool.worker", "from service.app import create_app"),
        ("workers.pool.worker", "import diffusers"),
        ("workers.engine.engine", "from workers.pool.worker import run_pool"),
        ("workers.programs.compiler", "from workers.plan import search"),
        ("deploy.local.supervisor", "from tools import speed_page"),
        ("workers.pool.worker", "from deploy import local"),
        ("models.flux.pipeline", "from models.sdxl.network import UNet"),
        ("models.flux.pipeline", "from models import wan"),
        ("models.weights.loader", "import torch"),
        ("models.interface.pipeline", "from service.settings import Settings"),
    ],
)
def test_a_breach_is_found(module: str, source: str) -> None:
    assert len(breaches(module, source)) == 1


def test_every_room_of_workers_has_its_floor() -> None:
    rooms = {path.parent.name for path in (ROOT / "workers").glob("*/__init__.py")}
    assert rooms == FLOORS.keys()
    floors = [*FLOORS]
    for room, below in FLOORS.items():
        assert all(floors.index(name) < floors.index(room) for name in below), room
        said = ast.get_docstring(ast.parse((ROOT / "workers" / room / "__init__.py").read_text()))
        assert said and "import" in said, f"workers/{room} does not say whom it may import"


def test_no_files_import_each_other_in_a_circle() -> None:
    known = {module_name(path): path for path in sources()}
    graph = {module: within(known, path) - {module} for module, path in known.items()}
    assert circle(graph) == []


def within(known: dict[str, Path], path: Path) -> set[str]:
    """The modules of this project that a file imports."""
    found = set()
    for name in imports(path.read_text("utf-8")):
        while name and name not in known:
            name = name.rpartition(".")[0]
        found |= {name} if name else set()
    return found


def circle(graph: dict[str, set[str]]) -> list[str]:
    """Modules of which each imports another one of these; []: there is no circle."""
    left = dict(graph)
    while free := [module for module, below in left.items() if not below & left.keys()]:
        for module in free:
            del left[module]
    return sorted(left)


def test_a_circle_is_found() -> None:
    assert circle({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": set()}) == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("service.app", "from models.spec.model_spec import ModelSpec"),
        ("workers.pool.worker", "from service.jobs.queue import Queue"),
        ("models.flux.pipeline", "from models.text.clip import ClipText"),
        ("models.registry", "from models.flux.config import FluxConfig"),
        ("deploy.local.supervisor", "from workers.pool.worker import run_pool"),
    ],
)
def test_an_arrow_is_no_breach(module: str, source: str) -> None:
    assert breaches(module, source) == []


def test_a_front_end_loads_no_jax(tmp_path: Path) -> None:
    """By its very command, which finds out at last that it has no Redis."""
    serve = ["serve", "--state", str(tmp_path)]
    look = f"import atelier, sys; print(atelier.main({serve}), sorted(sys.modules))"
    loaded = subprocess.run(
        [sys.executable, "-c", look], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    assert loaded.startswith(f"{EXIT_CONFIG} ")
    assert "'fastapi'" in loaded
    assert [name for name in HEAVY if f"'{name}'" in loaded] == []


def declared() -> set[str]:
    """Distributions that pyproject.toml asks for at run time, training, plans and traces."""
    extras = PROJECT["optional-dependencies"]
    return needed() | {name for extra in EXTRAS for name in names(extras[extra])}


def needed() -> set[str]:
    """Distributions that come with every install: those of a front end."""
    return names(PROJECT["dependencies"])


def names(wanted: list[str]) -> set[str]:
    return {normal(re.split(r"[<>=~;\s\[]", line)[0]) for line in wanted}


def normal(distribution: str) -> str:
    return re.sub(r"[-_.]+", "-", distribution).lower()


def test_every_package_from_outside_is_declared() -> None:
    assert undeclared(sources(), declared()) == []


def test_a_front_end_needs_no_extra() -> None:
    """But for the one file that is read where traces are switched on."""
    traces = ROOT / "service" / "jobs" / "otel.py"
    service = {path for path in sources() if path.is_relative_to(ROOT / "service")} - {traces}
    assert undeclared(sorted(service), needed()) == []
    assert undeclared([ROOT / "workers" / "slice" / "mesh.py"], needed()) == ["jax"]


def undeclared(files: list[Path], known: set[str]) -> list[str]:
    """Packages from outside that these files import, and no known distribution has."""
    providers = packages_distributions()
    used = {name.split(".")[0] for path in files for name in imports(path.read_text("utf-8"))}
    outside = used - set(sys.stdlib_module_names) - set(ROOMS)
    return [
        name for name in sorted(outside) if not known & {normal(d) for d in providers.get(name, [])}
    ]
