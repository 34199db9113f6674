"""The wheel's contents, and its use in an environment without these sources."""

from __future__ import annotations

import base64
import io
import tomllib
from collections.abc import Iterator
from email import message_from_bytes
from importlib.metadata import version
from pathlib import Path
from zipfile import ZipFile

import httpx
import pytest
from packaging.requirements import Requirement
from PIL import Image

from tests.e2e.system import System, set_traps
from tests.packaging.installed import Installed

ROOT = Path(__file__).resolve().parents[2]
DATA = (
    "service/playground/index.html",
    "service/playground/style.css",
    "service/playground/app.js",
    "service/jobs/scripts/common.lua",
    "workers/slice/xla_flags.toml",
    "models/nn/kernels/blocks.json",
    "models/demo/flux/model_index.json",
    "deploy/docker/atelier.toml",
)
"""Data files, one of each kind."""
ACCEPT = {"Accept": "image/png"}
LARGEST_BYTES = 40 * 2**20
"""Limit of the wheel's size: 31 MB with the demo models; PyPI allows 100."""


@pytest.fixture(scope="module")
def files(wheel: Path) -> dict[str, bytes]:
    """Contents of the wheel by name."""
    with ZipFile(wheel) as packed:
        return {name: packed.read(name) for name in packed.namelist()}


def test_wheel_has_one_import_name(files: dict[str, bytes]) -> None:
    info = f"atelier-{version('atelier')}.dist-info"
    assert {name.split("/")[0] for name in files} == {"atelier", info}
    assert files[f"{info}/top_level.txt"] == b"atelier\n"


def test_wheel_has_every_source_and_data_file(files: dict[str, bytes]) -> None:
    packages = ("deploy", "models", "service", "workers")
    sources = [path for package in packages for path in (ROOT / package).rglob("*.py")]
    expected = {f"atelier/{path.relative_to(ROOT)}" for path in sources}
    weights = (ROOT / "models" / "demo").glob("[!r]*/**/*.safetensors")
    expected |= {f"atelier/{path.relative_to(ROOT)}" for path in weights}
    expected |= {f"atelier/{name}" for name in DATA}
    assert expected - files.keys() == set()


def test_default_requirements_suffice_for_up(files: dict[str, bytes]) -> None:
    (metadata,) = (data for name, data in files.items() if name.endswith(".dist-info/METADATA"))
    requirements = message_from_bytes(metadata).get_all("Requires-Dist", [])
    required = {Requirement(text).name for text in requirements if "extra ==" not in text}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    of_cpu = {Requirement(text).name for text in project["optional-dependencies"]["cpu"]}
    assert of_cpu < required


def test_wheel_is_below_the_size_limit(wheel: Path) -> None:
    assert wheel.stat().st_size < LARGEST_BYTES


def test_no_other_name_can_be_imported(installed: Installed, tmp_path: Path) -> None:
    look = (
        "from importlib.util import find_spec;"
        "print(*map(find_spec, ('deploy', 'models', 'service', 'workers', 'tools')))"
    )
    assert (
        installed.run(installed.python, "-P", "-c", look, cwd=tmp_path).stdout.split()
        == ["None"] * 5
    )


@pytest.mark.parametrize("start", ["command", "module"])
def test_the_command_line_answers_in_a_hostile_folder(
    installed: Installed, tmp_path: Path, start: str
) -> None:
    command = {"command": [installed.command], "module": [installed.python, "-Pm", "atelier"]}
    folder = set_traps(tmp_path)
    process = installed.run(*command[start], "--version", cwd=folder)
    assert process.stdout == f"atelier {version('atelier')}\n", process.stderr
    for arguments in (["--help"], ["up", "--help"], ["bench", "serve", "--help"]):
        help_ = installed.run(*command[start], *arguments, cwd=folder)
        assert help_.stdout.startswith("usage: atelier"), help_.stderr


def test_missing_extra_names_the_pip_command(installed: Installed, tmp_path: Path) -> None:
    program = (
        "from atelier.service.settings.installation import how_to_install as h; print(h('cpu'))"
    )
    process = installed.run(installed.python, "-c", program, cwd=tmp_path)
    assert "pip install 'WHEEL.whl[cpu]'" in process.stdout, process.stderr


@pytest.fixture(scope="module")
def system(installed: Installed, tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    """The demo of the wheel; its working directory has traps such as `models.py`."""
    running = installed.up(tmp_path_factory.mktemp("state"))
    yield running
    running.close()


def test_the_demo_makes_an_image(system: System, installed: Installed, tmp_path: Path) -> None:
    server = system.wait_for(r"^flux-demo is ready at (\S+)")[1]
    folder = set_traps(tmp_path)
    arguments = (
        "generate",
        "a red circle",
        "--model",
        "flux-demo",
        "--server",
        server,
        "-o",
        "a.png",
    )
    process = installed.run(installed.command, *arguments, cwd=folder)
    assert process.returncode == 0, process.stderr
    body = {"model": "flux-demo", "prompt": "a red circle", "image": as_data_url(folder / "a.png")}
    response = httpx.post(f"{server}/v1/generate", json=body, headers=ACCEPT, timeout=60)
    assert response.status_code == 200, response.text
    assert Image.open(io.BytesIO(response.content)).format == "PNG"


def as_data_url(file: Path) -> str:
    """Image as a data URL, which a child process of the server decodes."""
    return f"data:image/png;base64,{base64.b64encode(file.read_bytes()).decode()}"
