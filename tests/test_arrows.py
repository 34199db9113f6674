"""Allowed imports between packages and rooms, checked in the sources."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from deploy.exit_codes import EXIT_CONFIG
from models import registry

ROOT = Path(__file__).resolve().parents[1]
ROOMS = ("atelier", "deploy", "models", "service", "tools", "workers")
FAMILIES = tuple(family.name for family in registry.FAMILIES)

SPEC, MEDIA = "models.spec", "models.media"
REQUESTS = ("models.requests", *(f"models.{family}.request" for family in FAMILIES))
"""Files that front ends import in addition, for the families' request classes."""
SHARED = ("metrics", "retry", "exit_codes", "machine")
"""Files of `workers`, `deploy` and `deploy.bench` that every room there may import."""
FRONT_END = "settings tracing jobs errors schemas"
BELOW_FAMILIES = (
    "adapters media spec checkpoint parallel nn weights sampling interface text vision vae loading "
    "control"
)
FLOORS: dict[str, dict[str, str]] = {
    "service": {
        "settings": "",
        "confined": "",
        "recipes": "",
        "tracing": "settings",
        "jobs": "settings tracing",
        "errors": "settings tracing jobs",
        "schemas": "settings tracing jobs errors",
        "auth": FRONT_END,
        "metrics": FRONT_END,
        "http": f"{FRONT_END} confined metrics recipes",
        "validation": FRONT_END,
        "safety": f"{FRONT_END} http",
        "webhooks": f"{FRONT_END} auth http",
        "front_end": f"{FRONT_END} auth http metrics safety webhooks",
        "responses": f"{FRONT_END} front_end http",
        "admission": f"{FRONT_END} recipes front_end http safety validation",
        "batches": f"{FRONT_END} admission front_end http responses",
        "verification": f"{FRONT_END} recipes admission front_end http responses",
        "operators": f"{FRONT_END} auth front_end",
        "playground": "",
        "routes": (
            f"{FRONT_END} recipes admission auth batches front_end http operators playground "
            "responses verification"
        ),
    },
    "service.jobs": {
        "redis": "",
        "model": "",
        "storage": "",
        "scheduling": "model",
        "scripts": "redis model scheduling",
    },
    "models": {
        "media": "",
        "spec": "media",
        "checkpoint": "spec",
        "parallel": "spec",
        "nn": "parallel spec",
        "weights": "checkpoint nn spec",
        "sampling": "spec",
        "interface": "checkpoint media nn parallel sampling spec",
        "text": "checkpoint interface nn parallel spec",
        "vision": "checkpoint nn text",
        "vae": "checkpoint interface nn parallel spec",
        "loading": "checkpoint weights nn parallel spec text vae",
        "adapters": "checkpoint nn parallel spec text weights",
        "control": "checkpoint interface loading parallel spec",
        "upscale": "checkpoint loading nn spec weights",
        "flow": BELOW_FAMILIES,
        **dict.fromkeys(FAMILIES, f"{BELOW_FAMILIES} flow"),
    },
    "models.adapters": {"files": ""},
    "models.nn": {
        "kernels": "",
        "quant": "kernels",
        "layers": "kernels quant",
        "attention": "kernels layers",
        "blocks": "kernels layers attention",
    },
    "workers": {
        "slice": "",
        "jaxpr": "",
        "media": "",
        "health": "",
        "programs": "jaxpr slice",
        "plan": "jaxpr programs slice",
        "loading": "jaxpr plan programs slice",
        "engine": "programs slice",
        "diffusers": "engine programs slice",
        "building": "engine jaxpr loading plan programs slice",
        "calibration": "engine loading media programs slice",
        "multihost": "engine programs slice",
        "profiling": "engine slice",
        "pool": "diffusers engine health loading media multihost profiling programs slice",
    },
    "deploy": {
        "local": "",
        "bench": "",
        "docker": "",
        "admin": "local",
        "cli": "local bench admin",
    },
    "deploy.bench": {"serving": "", "engine": ""},
    "tools": {"cluster": "", "dashboards": "", "reference": ""},
}
"""Rooms of each package from the lowest floor up, with the rooms that each may import besides
itself. A file outside the rooms, such as `service/app.py`, may import all rooms of its package."""

OUTSIDE: dict[str, tuple[str, ...]] = {
    "service": (MEDIA, SPEC, "models.adapters.files", "models.requests"),
    "service.jobs": (SPEC, "service.settings", "service.tracing"),
    "models": (),
    "workers": (
        "models",
        "service.confined",
        "service.jobs",
        "service.metrics.exposition",
        "service.metrics.front_end",
        "service.metrics.push",
        "service.recipes",
        "service.safety",
        "service.settings",
        "service.tracing",
    ),
    "deploy": ("service", "models", "workers"),
    "tools": ROOMS,
    "atelier": ("deploy",),
}
"""Imports that each package may have from other packages."""

HEAVY = ("jax", "jaxlib", "flax", "optax", "torch", "transformers", "diffusers")
"""Packages that a front end must not load; without them it starts in one second instead of five,
with a third of the memory."""
WEB = ("fastapi", "starlette", "uvicorn")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
EXTRAS = ("cpu", "diffusers", "plan", "otel", "docs", "mcp", "c2pa", "parquet")
TORCH_ROOM = "workers.diffusers"
"""The only room that imports torch and diffusers."""
NOT_AT_RUN_TIME = ("torch", "diffusers", "pytest", "tests")


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def imports(source: str) -> Sequence[str]:
    """Modules that a source imports, at its top or inside functions, as dotted names. `from a
    import b` counts as `a.b`, since `b` may be a module."""
    names_: list[str] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names_ += (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports hide the arrows"
            names_ += (f"{node.module}.{alias.name}" for alias in node.names)
    return names_


def is_in(name: str, packages: tuple[str, ...]) -> bool:
    return any(name == package or name.startswith(f"{package}.") for package in packages)


def may_know(module: str) -> tuple[str, ...]:
    """Packages, rooms and files of this project that a module may import."""
    package, *rest = module.split(".")
    outside = OUTSIDE[package]
    while rest and rest[0] in FLOORS.get(package, {}):
        allowed_rooms = (*FLOORS[package][rest[0]].split(), *SHARED)
        outside = (*outside, *(f"{package}.{name}" for name in allowed_rooms))
        package = f"{package}.{rest.pop(0)}"
    return (*outside, package)


def never_imports(module: str) -> tuple[str, ...]:
    """External packages that a module must not import."""
    if is_in(module, ("service.jobs",)):
        return (*HEAVY, *WEB)
    if is_in(module, ("service", MEDIA, SPEC, "models.adapters.files", *REQUESTS)):
        return HEAVY
    if is_in(module, (TORCH_ROOM,)):
        return ("jax", "pytest", "tests")
    return NOT_AT_RUN_TIME


def breaches(module: str, source: str) -> list[str]:
    """Forbidden imports of a module."""
    allowed, banned = may_know(module), never_imports(module)
    return [
        f"{module} imports {name}"
        for name in imports(source)
        if is_in(name, (*banned, "lab")) or (is_in(name, ROOMS) and not is_in(name, allowed))
    ]


def sources() -> list[Path]:
    folders = (path for room in ROOMS for path in (ROOT / room).rglob("*.py"))
    return [ROOT / "atelier.py", *folders]


def test_every_import_follows_an_arrow() -> None:
    files = [path for path in sources() if path.is_file()]
    assert len(files) > 40, "the sources were not found"
    assert [
        line for path in files for line in breaches(module_name(path), path.read_text("utf-8"))
    ] == []


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("service.app", "import jax"),
        ("service.app", "from models.flux import pipeline"),
        ("service.schemas.request", "from service.http import body"),
        ("service.jobs.model.job", "from service.jobs.redis import keys"),
        ("models.nn.layers.norms", "from models.nn.attention import sharded"),
        ("service.app", "from workers.pool.process import run_pool"),
        ("service.jobs.queue", "from service.errors.problems import Problem"),
        ("service.jobs.queue", "import fastapi"),
        ("models.spec.model_spec", "import jax.numpy"),
        ("models.flux.request", "import jax"),
        ("service.jobs.queue", "def late():\n    import service.routes.generate"),
        ("workers.pool.worker", "from service.app import create_app"),
        ("workers.pool.worker", "import diffusers"),
        ("workers.engine.engine", "import torch"),
        ("workers.diffusers.engine", "import jax"),
        ("workers.engine.engine", "from workers.pool.process import run_pool"),
        ("workers.programs.compiler", "from workers.plan import search"),
        ("deploy.local.supervisor", "from lab.tpu import page"),
        ("workers.pool.worker", "from deploy import local"),
        ("models.flux.pipeline", "from models.sdxl.network import UNet"),
        ("models.flux.pipeline", "from models import wan"),
        ("models.weights.loader", "import torch"),
        ("models.interface.pipeline", "from service.settings import Settings"),
    ],
)
def test_violation_is_detected(module: str, source: str) -> None:
    assert len(breaches(module, source)) == 1


@pytest.mark.parametrize("package", FLOORS)
def test_every_package_has_an_import_rank(package: str) -> None:
    folder = ROOT / package.replace(".", "/")
    rooms = {path.parent.name for path in folder.glob("*/__init__.py")} - {"demo"}
    floors = [*FLOORS[package]]
    assert rooms == {*floors}
    for room, below in FLOORS[package].items():
        assert all(floors.index(name) < floors.index(room) for name in below.split()), room


@pytest.mark.parametrize(
    "init", [path for path in sources() if path.name == "__init__.py"], ids=module_name
)
def test_every_package_docstring_names_purpose_and_imports(init: Path) -> None:
    docstring = ast.get_docstring(ast.parse(init.read_text("utf-8")))
    assert docstring and "import" in docstring.lower() and len(docstring.splitlines()) <= 6


def test_folders_have_no_import_cycles() -> None:
    modules = {module_name(path): path for path in sources()}
    graph: dict[str, set[str]] = {}
    for path in modules.values():
        below = {folder_of(modules[name]) for name in within(modules, path)}
        graph.setdefault(folder_of(path), set()).update(below)
    assert circle({folder: below - {folder} for folder, below in graph.items()}) == []


def folder_of(path: Path) -> str:
    """Folder as a dotted name; "" for `atelier.py`."""
    return ".".join(path.parent.relative_to(ROOT).parts)


def test_files_have_no_import_cycles() -> None:
    modules = {module_name(path): path for path in sources()}
    graph = {module: within(modules, path) - {module} for module, path in modules.items()}
    assert circle(graph) == []


def within(modules_by_name: dict[str, Path], path: Path) -> set[str]:
    """Modules of this project that a file imports."""
    modules = set()
    for name in imports(path.read_text("utf-8")):
        while name and name not in modules_by_name:
            name = name.rpartition(".")[0]
        modules |= {name} if name else set()
    return modules


def circle(graph: dict[str, set[str]]) -> list[str]:
    """Modules in import cycles, and their importers; [] if there is no cycle."""
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
        ("models.flux.pipeline", "from models.text.video import ClipText"),
        ("models.published", "from models.flux.config import FluxConfig"),
        ("deploy.local.supervisor", "from workers.pool.process import run_pool"),
    ],
)
def test_allowed_import_is_no_breach(module: str, source: str) -> None:
    assert breaches(module, source) == []


def test_a_front_end_loads_no_jax(tmp_path: Path) -> None:
    """Runs the real command, which ends with the error that Redis is missing."""
    serve = ["serve", "--state", str(tmp_path)]
    program = f"import atelier, sys; print(atelier.main({serve}), sorted(sys.modules))"
    loaded = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    assert loaded.startswith(f"{EXIT_CONFIG} ")
    assert "'fastapi'" in loaded
    assert [name for name in HEAVY if f"'{name}'" in loaded] == []


def declared() -> set[str]:
    """Distributions that pyproject.toml requires at run time, and in the extras of EXTRAS."""
    extras = PROJECT["optional-dependencies"]
    named = {name for extra in EXTRAS for name in names(extras[extra])}
    return needed() | named | {"mkdocs"}  # which mkdocs-material requires


def needed() -> set[str]:
    """Distributions of every install, which a front end needs."""
    return names(PROJECT["dependencies"])


def names(requirements: list[str]) -> set[str]:
    return {normal(re.split(r"[<>=~;\s\[]", line)[0]) for line in requirements}


def normal(distribution: str) -> str:
    return re.sub(r"[-_.]+", "-", distribution).lower()


def test_every_package_from_outside_is_declared() -> None:
    assert undeclared(sources(), declared()) == []


def test_a_front_end_needs_no_extra() -> None:
    """Excludes the files for OTLP and for MCP."""
    service = ROOT / "service"
    optional = {
        service / "tracing" / "exporter.py",
        service / "metrics" / "otlp.py",
        service / "routes" / "compat" / "mcp" / "server.py",
    }
    folders = [service, ROOT / "models" / "adapters" / "files"]
    needed_by_all = {
        path for folder in folders for path in sources() if path.is_relative_to(folder)
    }
    assert undeclared(sorted(needed_by_all - optional), needed()) == []
    assert undeclared([ROOT / "workers" / "slice" / "mesh.py"], needed()) == ["jax"]


def undeclared(files: list[Path], distributions: set[str]) -> list[str]:
    """External packages that these files import and no known distribution provides."""
    providers = packages_distributions()
    used = {name.split(".")[0] for path in files for name in imports(path.read_text("utf-8"))}
    outside = used - set(sys.stdlib_module_names) - set(ROOMS)
    return [
        name
        for name in sorted(outside)
        if not distributions & {normal(d) for d in providers.get(name, [])}
    ]


def asking(source: str) -> list[int]:
    """Lines that compare a value with a family's name, or match it."""
    node_types = (ast.Compare, ast.MatchValue)
    return sorted(
        leaf.lineno
        for node in ast.walk(ast.parse(source))
        if isinstance(node, node_types)
        for leaf in ast.walk(node)
        if isinstance(leaf, ast.Constant) and leaf.value in FAMILIES
    )


@pytest.mark.parametrize("room", ROOMS)
def test_no_mechanism_checks_the_family(room: str) -> None:
    """No code outside the families' folders checks a model's family."""
    family_folders = {ROOT / "models" / family for family in FAMILIES}
    files = [ROOT / f"{room}.py"] if room == "atelier" else (ROOT / room).rglob("*.py")
    lines = {
        f"{file.relative_to(ROOT)}:{line}"
        for file in files
        if family_folders.isdisjoint(file.parents)
        for line in asking(file.read_text())
    }
    assert not lines


def test_family_checks_are_detected() -> None:
    source = "if spec.family == 'wan':\n    pass\nmatch name:\n    case 'flux':\n        pass\n"
    assert asking(source + "x = name in ('sdxl', 'lora')") == [1, 4, 6]
    assert not asking("TABLE = {'flux': 1}\nname = TABLE['flux']"), "a table of data"
