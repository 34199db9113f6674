"""Runs the commands of docs/operations/gke.md in order, with stand-ins for programs that use the
network."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.deploy.k8s.objects import (
    environment,
    gaps,
    name_of,
    namespace_of,
    of_kind,
    pods_of,
)
from tests.deploy.k8s.rendering import REPOSITORY, Object, copied, rendered
from tests.deploy.k8s.settings import settings_of

BLOCKS = re.compile(r"^```sh\n(.+?)^```$", re.MULTILINE | re.DOTALL)
ABROAD = ("curl", "docker", "gcloud", "helm", "hf", "kind", "kubectl", "make", "python3")
CLIENT = (".venv/bin/atelier", ".venv/bin/pip")
"""Programs that `python3 -m venv` and pip install."""
STAND_IN = """#!/bin/sh
printf '%s\\n' "$(basename "$0") $*" >> {command_log}
echo 10.0.0.3
"""
MAKE = """#!/bin/sh
printf 'make %s\\n' "$*" >> {command_log}
[ "$1" != overlays ] || JAX_PLATFORMS=cpu PYTHONPATH={repository} \\
  {python} -m tools.cluster --k8s {folder}/deploy/k8s "${{2#VALUES=}}"
"""
"""Stand-in for `make`; `make overlays` runs this checkout's code on the walk's manifests."""
MINE = "alertmanager.yaml"
"""File that the operator provides."""


@dataclass(frozen=True)
class Walk:
    """Log of the commands, and the resulting manifests."""

    folder: Path
    command_log: str
    objects: tuple[Object, ...]
    as_root: tuple[Object, ...]
    """Objects with TPU pools as root."""


@pytest.fixture(scope="module")
def walk(tmp_path_factory: pytest.TempPathFactory) -> Walk:
    folder = tmp_path_factory.mktemp("walk")
    log = folder / "said"
    for name in (*(f"bin/{name}" for name in ABROAD), *CLIENT):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(STAND_IN.format(command_log=log))
        (folder / name).chmod(0o755)
    values = {"python": sys.executable, "repository": REPOSITORY, "folder": folder}
    (folder / "bin" / "make").write_text(MAKE.format(command_log=log, **values))
    (folder / MINE).touch()
    manifests = copied(folder / "deploy" / "k8s")
    for name in ("docker", "prometheus"):
        (folder / "deploy" / name).symlink_to(REPOSITORY / "deploy" / name)
    commands = "".join(BLOCKS.findall((REPOSITORY / "docs" / "operations" / "gke.md").read_text()))
    path = f"{folder}/bin:{os.environ['PATH']}"
    subprocess.run(
        ["bash", "-euo", "pipefail", "-c", commands], cwd=folder, env={"PATH": path}, check=True
    )
    results = [rendered(manifests / "overlays" / f"gke-tpu-v6e{end}") for end in ("", "-root")]
    return Walk(folder, log.read_text(), *results)


def test_named_files_exist(walk: Walk) -> None:
    named = re.findall(r"--(?:filename|kustomize|file|from-file)[ =](\S+)", walk.command_log)
    local = {path for path in named if not path.startswith("https://")}
    assert len(local) > 6
    assert [path for path in sorted(local) if not (walk.folder / path).exists()] == []


def test_walkthrough_creates_what_manifests_name(walk: Walk) -> None:
    for pods in (*pods_of(walk.objects, "frontend"), *pods_of(walk.objects, "pool")):
        assert f"docker push {pods.container['image']}\n" in walk.command_log
    for pods in pods_of(walk.objects, "pool"):
        sources = [volume["csi"] for volume in pods.spec["volumes"] if "csi" in volume]
        assert len(sources) == 2
        for source in sources:
            assert f"gs://{source['volumeAttributes']['bucketName']} " in walk.command_log
    for account in of_kind((*walk.objects, *walk.as_root), "ServiceAccount"):
        (email,) = account["metadata"]["annotations"].values()
        assert f"{email} --role=roles/iam.workloadIdentityUser" in walk.command_log
        assert f".svc.id.goog[{namespace_of(account)}/{name_of(account)}]\n" in walk.command_log
    (gateway,) = of_kind(walk.objects, "Gateway")
    (certificates,) = gateway["metadata"]["annotations"].values()
    assert f"certificate-manager maps create {certificates}\n" in walk.command_log


def test_secrets_are_made_in_every_namespace_of_pods(walk: Walk) -> None:
    for pods in pods_of((*walk.objects, *walk.as_root)):
        (secret,) = {
            volume["secret"]["secretName"] for volume in pods.spec["volumes"] if "secret" in volume
        }
        command = f"kubectl --namespace {pods.namespace} create secret generic {secret} "
        assert command in walk.command_log


def test_front_ends_know_the_balancers_address(walk: Walk) -> None:
    (front,) = pods_of(walk.objects, "frontend")
    proxies = settings_of(walk.objects, front).server.trusted_proxies
    assert [str(proxy) for proxy in proxies][2:] == ["10.0.0.3/32"]
    for pods in pods_of(walk.objects, "pool"):
        assert "ATELIER_SERVER__TRUSTED_PROXIES" not in environment(walk.objects, pods)


def test_walkthrough_ends_with_memorystore_and_tracing(walk: Walk) -> None:
    assert not gaps([*walk.objects, *walk.as_root])
    for pods in pods_of(walk.objects):
        settings = settings_of(walk.objects, pods)
        assert settings.redis.url == "rediss://10.0.0.3:6378"
        assert settings.tracing.endpoint
        attributes = environment(walk.objects, pods)["OTEL_RESOURCE_ATTRIBUTES"]
        assert attributes == "gcp.project_id=my-project"
