"""Ports, paths, settings, commands, metrics and files in manifests match the code."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.environment_variables import OTEL_RESOURCE_ATTRIBUTES

import atelier
from deploy.cli import backup, serve, worker
from service import routing
from service.settings.section import ConfigError
from service.settings.settings import load_settings
from tests.deploy.k8s.objects import environment, exists, gaps, of_kind, pods_of, scheduled
from tests.deploy.k8s.rendering import (
    GKE,
    REPOSITORY,
    Object,
    copied,
    overlay,
    rendered,
)
from tests.deploy.k8s.settings import SECRETS, pool_of, settings_of, toml_of
from workers.health import http

OTHERS = {
    *("HOME", "LD_LIBRARY_PATH", "NAMESPACE", "XLA_CLIENT_MEM_FRACTION"),
    OTEL_RESOURCE_ATTRIBUTES,
}
"""Variables that the system, its loader, the Sentinels' scripts, JAX and OpenTelemetry read."""
KINDS = {
    "deploy": "Deployment",
    "deployment": "Deployment",
    "statefulset": "StatefulSet",
    "service": "Service",
}
"""Kinds as kubectl's arguments name them."""
FILES_OF_THE_SECRET = {"password", "ca.pem"}


def app_paths() -> set[str]:
    """Paths of the front end: its routers, the compatible endpoints' routers and FastAPI's own
    pages."""
    parts = [part for part in vars(routing).values() if hasattr(part, "router")]
    routers = [part.router for part in (*parts, *routing.COMPATIBLE_ENDPOINTS)]
    paths = {route.path for router in routers for route in router.routes}
    return paths | {"/docs", "/openapi.json"}


def pool_paths() -> set[str]:
    """Paths that a pool serves at pools.*.metrics_port."""
    return set(re.findall(r'case "(/\w+)"', inspect.getsource(http.Handler.do_GET)))


def test_container_commands_are_valid(objects: tuple[Object, ...]) -> None:
    scripts = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["scripts"]
    parser = atelier.parser()
    for pods in (*pods_of(objects, "frontend"), *pods_of(objects, "pool")):
        program, *arguments = pods.container["command"]
        assert program in scripts
        assert parser.parse_args(arguments).run in (serve.run, worker.run)
        assert "args" not in pods.container


def test_backups_run_as_front_ends_do(variants: dict[str, tuple[Object, ...]]) -> None:
    """With their image, settings and rights."""
    objects = variants["values"]
    (pods,), (front,) = scheduled(objects), pods_of(objects, "frontend")
    program, *arguments = pods.container["command"]
    assert program == "atelier" and atelier.parser().parse_args(arguments).run is backup._create
    assert pods.container["image"] == front.container["image"]
    assert pods.spec["serviceAccountName"] == front.spec["serviceAccountName"]
    assert pods.spec["securityContext"] == front.spec["securityContext"]
    settings, of_front = settings_of(objects, pods), settings_of(objects, front)
    assert (settings.redis.url, settings.store_url) == (of_front.redis.url, of_front.store_url)
    assert settings.tenants == of_front.tenants
    assert pods.owner["spec"]["schedule"] == "*/30 3 * * mon-fri"


def test_settings_load_and_name_each_workload(objects: tuple[Object, ...]) -> None:
    for pods in pods_of(objects, "pool"):
        settings = settings_of(objects, pods)
        name = pods.container["command"][-1]
        assert name == pods.labels["app.kubernetes.io/instance"]
        assert pods.owner["metadata"]["name"] == f"atelier-pool-{name}"
        assert [*settings.pools] == [name]
        assert [*settings.models] == [settings.pools[name].model]


def test_front_ends_know_neither_models_nor_pools(objects: tuple[Object, ...]) -> None:
    """Front ends learn models from Redis, so a new model restarts no front end."""
    (front,) = pods_of(objects, "frontend")
    settings = settings_of(objects, front)
    assert settings.server.keys is True
    assert not (settings.models or settings.pools)


def test_variables_are_settings_or_known_of_others(every_object: list[Object]) -> None:
    """Another test covers misspelt settings, which prevent a start; a misspelt HOME would be
    ignored."""
    maps = [
        item["data"]
        for item in of_kind(every_object, "ConfigMap")
        if "ATELIER_CONFIG" in item["data"]
    ]
    variables = [item for pods in pods_of(every_object) for item in pods.container.get("env", [])]
    names = {name for data in maps for name in data} | {item["name"] for item in variables}
    assert {name for name in names if not name.startswith("ATELIER_")} == OTHERS


@pytest.mark.parametrize(
    ("component", "key"), [("frontend", "port ="), ("pool", "model =")], ids=["frontend", "pool"]
)
def test_a_misspelt_key_stops_every_overlay(
    objects: tuple[Object, ...],
    component: str,
    key: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for pods in pods_of(objects, component):
        text = toml_of(objects, pods, environment(objects, pods)["ATELIER_CONFIG"])
        file = tmp_path / "atelier.toml"
        file.write_text(text.replace(key, "surprise =", 1))
        monkeypatch.setenv("ATELIER_CONFIG", str(file))
        with pytest.raises(ConfigError, match="surprise: unknown key"):
            load_settings()


def test_ports_are_those_of_the_settings(objects: tuple[Object, ...]) -> None:
    for pods in pods_of(objects, "frontend"):
        assert pods.ports == {"http": settings_of(objects, pods).server.port}
    for pods in pods_of(objects, "pool"):
        assert pods.ports["metrics"] == pool_of(settings_of(objects, pods), pods).metrics_port


def test_probes_and_routes_use_existing_paths(objects: tuple[Object, ...]) -> None:
    served = app_paths()
    for pods in pods_of(objects):
        paths = {"frontend": served, "pool": pool_paths(), "redis": set()}[pods.component]
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            settings = pods.container[probe]
            if "httpGet" in settings:
                assert settings["httpGet"]["path"] in paths
                assert settings["httpGet"]["port"] in pods.ports
    for monitor in of_kind(objects, "PodMonitoring"):
        assert all(endpoint["path"] == "/metrics" for endpoint in monitor["spec"]["endpoints"])
    assert "/metrics" in served & pool_paths()
    (front,) = pods_of(objects, "frontend")
    for policy in of_kind(objects, "HealthCheckPolicy"):
        check = policy["spec"]["default"]["config"]["httpHealthCheck"]
        assert (check["port"], check["requestPath"]) == (front.ports["http"], "/healthz")


def test_routes_show_the_api_and_not_the_numbers(objects: tuple[Object, ...]) -> None:
    served = app_paths()
    for route in of_kind(objects, "HTTPRoute"):
        (rule,) = route["spec"]["rules"]
        paths = [match["path"] for match in rule["matches"]]
        public = {path for path in served if any(_leads_to(match, path) for match in paths)}
        inside = {"/healthz", "/readyz", "/metrics"}
        assert served - public == inside
        assert all(any(_leads_to(match, path) for path in served) for match in paths)


def _leads_to(match: dict[str, Any], path: str) -> bool:
    """Return whether a match of an HTTPRoute has a path; a prefix is a whole number of segments."""
    is_prefix = match["type"] == "PathPrefix" and path.startswith(f"{match['value']}/")
    return bool(path == match["value"]) or is_prefix


def test_paths_of_the_settings_are_mounted(objects: tuple[Object, ...]) -> None:
    for pods in (*pods_of(objects, "frontend"), *pods_of(objects, "pool")):
        mounts = {mount_["mountPath"]: mount_ for mount_ in pods.container["volumeMounts"]}
        values, settings = environment(objects, pods), settings_of(objects, pods)
        writable = {path for path, mount in mounts.items() if not mount.get("readOnly")}
        assert values["HOME"] in writable
        assert str(settings.state_dir) in writable
        for file in ("PASSWORD_FILE", "CA_FILE"):
            if path := values.get(f"ATELIER_REDIS__{file}"):
                assert SECRETS in mounts
                assert Path(path) in {Path(SECRETS, mount_) for mount_ in FILES_OF_THE_SECRET}
        if pods.component == "pool":
            assert str(settings.compile_folder) in writable
            model = settings.models[pool_of(settings, pods).model]
            assert model.source.startswith("/weights/")
            in_image = model.source.startswith("/weights/demo/")
            assert in_image or mounts["/weights"]["readOnly"] is True
            assert in_image != ("/weights" in mounts)
        if "://" not in settings.store_url:
            assert settings.store_url.startswith(f"{settings.state_dir}/")


@pytest.mark.parametrize("document", ["gke.md", "runbook.md", "day-2.md"])
def test_documented_commands_name_existing_objects(document: str) -> None:
    text = (REPOSITORY / "docs" / "operations" / document).read_text()
    mentions = re.findall(rf"\b({'|'.join(KINDS)})/(atelier-[\w-]+)", text)
    assert mentions
    objects = overlay("gke-tpu-v6e")
    assert [
        mention for mention in mentions if not exists(objects, KINDS[mention[0]], mention[1])
    ] == []
    # policies admit no API server; exec and port-forward go through the node
    assert "/proxy/" not in text
    for folder in re.findall(r"kubectl apply --kustomize ([\w/.-]+)(?=\s|`)", text):
        assert rendered(REPOSITORY / folder)


@pytest.mark.parametrize("name", GKE)
def test_workers_record_the_region_of_the_site(name: str) -> None:
    objects = overlay(name)
    regions = {settings_of(objects, pods).usage.region for pods in pods_of(objects, "pool")}
    assert regions == {"REGION"}


@pytest.mark.parametrize("name", ["gke-tpu-multihost-spot", "gke-gpu-h100"])
def test_two_values_in_one_file_are_all_that_is_set(name: str, tmp_path: Path) -> None:
    site = copied(tmp_path) / "site" / "site.env"
    (command,) = [
        line
        for line in (REPOSITORY / "docs" / "operations" / "gke.md").read_text().splitlines()
        if line.startswith("sed ") and line.endswith(" deploy/k8s/site/site.env")
    ]
    values = {"PROJECT": "my-project", "REGION": "us-east5", "PATH": os.environ["PATH"]}
    local = command.replace("deploy/k8s/site/site.env", str(site))
    subprocess.run(["sh", "-euc", local], check=True, env=values)
    objects = rendered(tmp_path / "overlays" / name)
    assert not gaps(objects)
    (front,) = pods_of(objects, "frontend")
    assert front.container["image"] == (
        "us-east5-docker.pkg.dev/my-project/atelier/atelier-frontend:0.1.0"
    )
    settings = settings_of(objects, front)
    assert settings.store_url == "gs://my-project-atelier/store"
    assert settings.usage.region == "us-east5"
