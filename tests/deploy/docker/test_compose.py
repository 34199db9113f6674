"""docker-compose.yml and its settings match the code: commands, ports, paths and times."""

from __future__ import annotations

import os
import re
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
import yaml

import atelier
from deploy.cli import serve, worker
from deploy.local import embedded_redis as embedded
from deploy.local.supervisor import KILL_MARGIN_S
from service.auth.exposure import reached_at, wants_keys
from service.settings.settings import CONFIG_VARIABLE, Settings, load_settings
from tests.deploy import load_balancers
from tests.deploy.docker import compose
from tests.deploy.docker.dockerfile import FOLDER, ROOT, Dockerfile, filled
from tests.deploy.docker.tools import run

CONFIG = FOLDER / "atelier.toml"
SERVICES = compose.services({})
OURS = [name for name, service in SERVICES.items() if service["image"].startswith("atelier-")]
POOLS = [name for name in OURS if name != "frontend"]
OWNED = ("/var/lib/atelier", "/var/cache/atelier")
"""Folders that our images give to their user; other volumes would belong to root."""
USERS_OWN = ("./weights",)
"""Folders that the user provides."""


def settings_of(name: str, monkeypatch: pytest.MonkeyPatch, **environment: str) -> Settings:
    """Settings as the process in that service loads them."""
    for variable in [variable_ for variable_ in os.environ if variable_.startswith("ATELIER_")]:
        monkeypatch.delenv(variable)
    service = compose.services(environment)[name]
    for variable, value in service.get("environment", {}).items():
        monkeypatch.setenv(variable, value)
    assert mounted(service, os.environ[CONFIG_VARIABLE]) == CONFIG
    monkeypatch.setenv(CONFIG_VARIABLE, str(CONFIG))
    return load_settings()


def mounted(service: dict[str, Any], path: str) -> Path | None:
    """The host's file that is mounted at a path in the container."""
    for source, target, _ in compose.volumes(service):
        if Path(path).is_relative_to(target) and compose.is_path(source):
            return compose.host_path(source) / Path(path).relative_to(target)
    return None


def arguments(name: str) -> Namespace:
    """Parsed command line of a service. Raises: SystemExit: the command line is invalid."""
    return atelier.parser().parse_args(SERVICES[name]["command"])


def test_the_schema_and_the_linter_find_nothing() -> None:
    output = run_schema(compose.FILE)
    assert "ok" in output, output
    assert run("yamllint", "--strict", str(compose.FILE)) == ""


def test_invalid_key_fails_the_schema(tmp_path: Path) -> None:
    bad = tmp_path / "docker-compose.yml"
    bad.write_text(compose.FILE.read_text("utf-8").replace("restart:", "restarts:"))
    assert "restarts" in run_schema(bad)


def run_schema(path: Path) -> str:
    return run("check-jsonschema", "--builtin-schema", "vendor.compose-spec", str(path))


def test_each_profile_has_its_pools() -> None:
    profiles = {name: service.get("profiles") for name, service in SERVICES.items()}
    always = {name for name, profile in profiles.items() if profile is None}
    assert always == {"redis", "frontend", "prometheus", "grafana"}
    kinds = {"cpu": "cpu", "gpu": "cuda", "tpu": "tpu"}
    for pool in POOLS:
        (profile,) = profiles[pool]
        image = SERVICES[pool]["image"]
        assert image == f"atelier-worker-{kinds[profile]}"
        assert compose.builder(image)["args"] == {"ACCELERATOR": kinds[profile]}
    assert {profiles[pool][0] for pool in POOLS} == set(kinds)


@pytest.mark.parametrize("name", SERVICES)
def test_services_have_minimal_rights(name: str) -> None:
    service = SERVICES[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["logging"] == {"driver": "local"}
    assert not service.keys() & {"privileged", "network_mode", "pid", "ipc", "cap_add"}
    assert service.get("user", "10001") not in ("0", "root")
    for port in service.get("ports", ()):
        assert port.startswith("127.0.0.1:"), f"{name} is open to other machines"


@pytest.mark.parametrize("name", [name for name in SERVICES if name not in OURS])
def test_images_of_others_are_pinned(name: str) -> None:
    assert re.search(r":v?\d+\.\d+(\.\d+)?(-\w+)?$", SERVICES[name]["image"])


@pytest.mark.parametrize("name", OURS)
def test_our_images_are_built_once(name: str) -> None:
    service = SERVICES[name]
    build = compose.builder(service["image"])
    file = ROOT / build["context"] / build["dockerfile"]
    arguments_ = Dockerfile.read(file).arguments
    assert set(build.get("args", {})) <= set(arguments_)
    if "build" not in service:  # another service of the same profile builds it
        assert service["pull_policy"] == "never"
        profile = service["profiles"]
        services = [each for each in SERVICES.values() if each.get("profiles") == profile]
        assert build in [each.get("build") for each in services]


@pytest.mark.parametrize("name", SERVICES)
def test_mounted_paths_exist(name: str) -> None:
    named = compose.document({})["volumes"]
    for source, target, mode in compose.volumes(SERVICES[name]):
        assert target.startswith("/")
        if not compose.is_path(source):
            assert source in named
            assert target in OWNED or name not in OURS
        else:
            assert compose.host_path(source).exists() or source in USERS_OWN, source
            assert mode == "ro"


@pytest.mark.parametrize("name", SERVICES)
def test_no_folder_of_the_users_is_made_by_root(name: str) -> None:
    """The short form would create a missing folder as root, in which a pool finds no weights."""
    for entry in SERVICES[name]["volumes"]:
        source, *_ = compose.volumes({"volumes": [entry]})[0]
        if source in USERS_OWN:
            assert entry["bind"] == {"create_host_path": False}


def test_user_files_are_ignored_by_git() -> None:
    ignored = (ROOT / ".gitignore").read_text("utf-8").splitlines()
    assert "/.env" in ignored  # contains HF_TOKEN
    assert {f"{source.removeprefix('.')}/" for source in USERS_OWN} <= set(ignored)


@pytest.mark.parametrize("name", SERVICES)
def test_published_ports_have_health_checks(name: str) -> None:
    service = SERVICES[name]
    assert asked_of(service).startswith("CMD ")
    for port in service.get("ports", ()):
        assert f"http://127.0.0.1:{port.rpartition(':')[2]}/" in asked_of(service)


def asked_of(service: dict[str, Any]) -> str:
    """The command of a service's health check: compose's, or else the image's."""
    if "healthcheck" in service:
        return " ".join(service["healthcheck"]["test"])
    dockerfile = Dockerfile.read(ROOT / compose.builder(service["image"])["dockerfile"])
    (health,) = dockerfile.stages[-1].named("HEALTHCHECK")
    return health.text


@pytest.mark.parametrize("name", OURS)
def test_settings_and_environment_are_known(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = settings_of(name, monkeypatch)
    service = SERVICES[name]
    writable = [target for _, target, mode in compose.volumes(service) if mode == "rw"]
    for folder in (settings.state_dir, Path(settings.store_url)):
        assert any(folder.is_relative_to(folder_) for folder_ in writable), folder
    if name in POOLS:
        assert any(settings.compile_folder.is_relative_to(folder_) for folder_ in writable)
    assert settings.redis.url == "redis://redis:6379"
    assert set(service["networks"]) & set(SERVICES["redis"]["networks"])
    assert service["depends_on"]["redis"] == {"condition": "service_healthy"}


@pytest.mark.parametrize("name", OURS)
def test_tracing_endpoint_is_configurable(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert settings_of(name, monkeypatch).tracing.endpoint is None
    variables = {"ATELIER_TRACING__ENDPOINT": "http://collector:4318"}
    endpoint = settings_of(name, monkeypatch, **variables).tracing.endpoint
    assert endpoint == variables["ATELIER_TRACING__ENDPOINT"]
    keys = {"OTEL_EXPORTER_OTLP_HEADERS": "api-key=secret"}
    assert compose.services(keys)[name]["environment"].items() >= keys.items()


def test_a_misspelt_variable_stops_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    settings_of("frontend", monkeypatch)
    monkeypatch.setenv("ATELIER_SERVER__PUBLISHED", "127.0.0.1")
    with pytest.raises(Exception, match=r"server\.published"):
        load_settings()


@pytest.mark.parametrize("name", POOLS)
def test_a_pool_is_one_of_the_settings(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    settings, parsed = settings_of(name, monkeypatch), arguments(name)
    assert parsed.run is worker.run
    pool = settings.pools[parsed.pool]
    assert parsed.pool == name
    source = Path(settings.models[pool.model].source)
    assert in_image(SERVICES[name], source) or mounted(SERVICES[name], str(source))
    health = SERVICES[name]["healthcheck"]["test"]
    assert health[:4] == ["CMD", "python", "-m", "deploy.docker.health_check"]
    assert health[4] == f"http://127.0.0.1:{pool.metrics_port}/readyz"
    grace_s = compose.seconds(SERVICES[name]["stop_grace_period"])
    assert grace_s >= pool.drain_s + KILL_MARGIN_S


def in_image(service: dict[str, Any], path: Path) -> bool:
    """Whether the Dockerfile copies that folder of the project to this path."""
    build = compose.builder(service["image"])
    dockerfile = Dockerfile.read(ROOT / build["dockerfile"])
    values = {**dockerfile.arguments, **build["args"]}
    copies = [copy for stage in dockerfile.chain(values) for copy in stage.named("COPY")]
    pairs = [filled(copy.text, values).split() for copy in copies if not copy.flags]
    return any(pair[-1] == str(path) and (ROOT / pair[0]).is_dir() for pair in pairs)


def test_every_model_and_pool_of_the_settings_is_served(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = settings_of("frontend", monkeypatch)
    assert set(settings.pools) == set(POOLS)
    assert {pool.model for pool in settings.pools.values()} == set(settings.models)


def test_published_port_matches_the_front_end(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = settings_of("frontend", monkeypatch)
    assert arguments("frontend").run is serve.run
    assert SERVICES["frontend"]["ports"] == [f"127.0.0.1:8000:{settings.server.port}"]
    assert settings.server.host == "0.0.0.0"
    grace_s = compose.seconds(SERVICES["frontend"]["stop_grace_period"])
    assert grace_s >= settings.server.shutdown_grace_s + KILL_MARGIN_S


def test_idle_timeout_exceeds_load_balancers(monkeypatch: pytest.MonkeyPatch) -> None:
    assert settings_of("frontend", monkeypatch).server.idle_s > load_balancers.IDLE_S


@pytest.mark.parametrize(
    ("address", "keys"), [("", False), ("127.0.0.1", False), ("0.0.0.0", True)]
)
def test_public_address_requires_keys(
    address: str, keys: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    variables = {"ATELIER_ADDRESS": address, "ATELIER_PORT": "8001"}
    server = settings_of("frontend", monkeypatch, **variables).server
    assert wants_keys(server, reached_at(server, None)) == keys
    (port,) = compose.services(variables)["frontend"]["ports"]
    assert port == f"{address or '127.0.0.1'}:8001:8000"


def test_redis_is_run_as_the_embedded_one_is() -> None:
    program, *options = SERVICES["redis"]["command"]
    assert program == "valkey-server"
    configured = dict(zip(options[::2], options[1::2], strict=True))
    flags = embedded._options(Path("/data"), Path("/data/redis.sock"))
    expected = dict(zip(flags[::2], flags[1::2], strict=True))
    for name in ("--port", "--unixsocket", "--unixsocketperm"):
        del expected[name]
    assert configured == expected
    assert (configured["--appendonly"], configured["--maxmemory-policy"]) == ("yes", "noeviction")
    assert [target for _, target, _ in compose.volumes(SERVICES["redis"])] == [configured["--dir"]]
    assert compose.document({})["networks"]["queue"] == {"internal": True}
    assert SERVICES["redis"]["networks"] == ["queue"]


def test_prometheus_scrapes_the_services(monkeypatch: pytest.MonkeyPatch) -> None:
    """Targets are services or the pools' network alias, at the ports of the settings."""
    (config,) = [
        word.partition("=")[2]
        for word in SERVICES["prometheus"]["command"]
        if word.startswith("--config.file=")
    ]
    path = mounted(SERVICES["prometheus"], config)
    assert path is not None
    settings = settings_of("frontend", monkeypatch)
    scraped = {
        (name, targets["port"])
        for job in yaml.safe_load(path.read_text("utf-8"))["scrape_configs"]
        for targets in job.get("dns_sd_configs", ())
        for name in targets["names"]
    }
    ports = {pool.metrics_port for pool in settings.pools.values()}
    assert scraped == {("frontend", settings.server.port), *(("pools", port) for port in ports)}
    for pool in POOLS:
        assert SERVICES[pool]["networks"]["default"] == {"aliases": ["pools"]}
    assert {"default"} <= set(SERVICES["frontend"]["networks"]) & set(
        SERVICES["prometheus"]["networks"]
    )


def test_grafana_opens_on_a_dashboard() -> None:
    grafana = SERVICES["grafana"]
    home = grafana["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    path = mounted(grafana, home)
    assert path is not None and path.is_file()


@pytest.mark.parametrize(
    "path", ["docs/guides/containers.md", "docker-compose.yml", "docs/operations/runbook.md"]
)
def test_documented_commands_are_valid(path: str) -> None:
    """`docker compose` commands in documents use existing profiles and services and valid
    arguments."""
    text = (ROOT / path).read_text("utf-8")
    profiles = {profile for service in SERVICES.values() for profile in service.get("profiles", ())}
    assert set(re.findall(r"docker compose .*?--profile (\w+)", text)) <= profiles
    for name, command in re.findall(r"docker compose run --rm (\S+) ([^`\n]+)", text):
        assert name in OURS
        atelier.parser().parse_args(command.split())


def test_configurable_variables_are_documented() -> None:
    head, *_ = compose.FILE.read_text("utf-8").partition("\nname:")
    assert {name for name in compose.variables() if name not in head} == set()
