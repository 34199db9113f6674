"""Compose files of examples/, merged into docker-compose.yml, tested without Docker."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from service.auth.allowed_hosts import is_allowed, names_of
from service.settings.settings import load_settings
from tests.deploy.docker import compose
from tests.deploy.docker.dockerfile import FOLDER, ROOT
from tests.deploy.docker.tools import run

EXAMPLES = ROOT / "examples"
FILES = sorted(EXAMPLES.glob("*/compose.yaml"))
CONFIG = FOLDER / "atelier.toml"
OPEN_WEBUI = frozenset(
    {
        *("AUTOMATIC1111_API_AUTH", "AUTOMATIC1111_BASE_URL", "ENABLE_IMAGE_EDIT"),
        *("ENABLE_IMAGE_GENERATION", "ENABLE_IMAGE_PROMPT_GENERATION", "ENABLE_PERSISTENT_CONFIG"),
        *("IMAGES_EDIT_OPENAI_API_BASE_URL", "IMAGES_EDIT_OPENAI_API_KEY"),
        *("IMAGES_OPENAI_API_BASE_URL", "IMAGES_OPENAI_API_KEY", "IMAGE_EDIT_ENGINE"),
        *("IMAGE_EDIT_MODEL", "IMAGE_GENERATION_ENGINE", "IMAGE_GENERATION_MODEL", "IMAGE_SIZE"),
    }
)
"""Variables that `open_webui/config.py` of 0.12.4 reads."""


def added(file: Path) -> dict[str, Any]:
    """Services that a recipe adds to docker-compose.yml."""
    services: dict[str, Any] = yaml.safe_load(file.read_text("utf-8"))["services"]
    return {name: service for name, service in services.items() if name not in compose.services({})}


def addresses(service: Mapping[str, Any]) -> list[str]:
    """URLs in a service's environment."""
    return [value for value in service["environment"].values() if str(value).startswith("http")]


def test_recipe_folders() -> None:
    assert [file.parent.name for file in FILES] == ["litellm", "open-webui"]


@pytest.mark.parametrize("file", FILES, ids=str)
def test_the_schema_and_the_linter_find_nothing(file: Path) -> None:
    output = run("check-jsonschema", "--builtin-schema", "vendor.compose-spec", str(file))
    assert "ok" in output, output
    assert run("yamllint", "--strict", str(file)) == ""


@pytest.mark.parametrize("file", FILES, ids=str)
def test_front_end_accepts_the_host_name_in_use(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (service,) = added(file).values()
    overrides = yaml.safe_load(file.read_text("utf-8"))["services"]["frontend"]["environment"]
    frontend = compose.services({})["frontend"]
    for variable, value in (frontend["environment"] | overrides).items():
        monkeypatch.setenv(variable, value)
    monkeypatch.setenv("ATELIER_CONFIG", str(CONFIG))
    settings = load_settings()
    names = names_of(settings.server)
    assert names is not None and "default" in frontend["networks"] and "networks" not in service
    assert addresses(service)
    for address in map(urlsplit, addresses(service)):
        assert address.hostname == "frontend" and is_allowed(address.hostname, names)
        assert address.port == settings.server.port


@pytest.mark.parametrize("file", FILES, ids=str)
def test_no_port_is_taken_twice_or_open_to_others(file: Path) -> None:
    published = [
        port.rsplit(":", 1)[0]
        for service in [*compose.services({}).values(), *added(file).values()]
        for port in service.get("ports", ())
    ]
    assert len({*published}) == len(published)
    assert all(port.startswith("127.0.0.1:") for port in published)


@pytest.mark.parametrize("file", FILES, ids=str)
def test_mounted_files_exist(file: Path) -> None:
    (service,) = added(file).values()
    mounts = [source for source, _, _ in compose.volumes(service) if compose.is_path(source)]
    assert [source for source in mounts if not (ROOT / source).is_file()] == []


def test_open_webui_knows_every_variable() -> None:
    (service,) = added(EXAMPLES / "open-webui" / "compose.yaml").values()
    assert service["environment"].keys() <= OPEN_WEBUI


def test_litellm_offers_models_that_the_compose_file_serves() -> None:
    config = yaml.safe_load((EXAMPLES / "litellm" / "config.yaml").read_text("utf-8"))
    (service,) = added(EXAMPLES / "litellm" / "compose.yaml").values()
    served = tomllib.loads(CONFIG.read_text("utf-8"))["models"]
    for model in config["model_list"]:
        parameters = model["litellm_params"]
        assert parameters["model"] == f"openai/{model['model_name']}"
        assert model["model_name"] in served
        for name in (parameters["api_base"], parameters["api_key"]):
            assert name.removeprefix("os.environ/") in service["environment"]
