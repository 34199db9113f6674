"""docs/operations/gke.md from its first command to its last, with stand-ins for programs that reach
out."""

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
"""What `python3 -m venv` and pip bring."""
STAND_IN = """#!/bin/sh
printf '%s\\n' "$(basename "$0") $*" >> {said}
echo 10.0.0.3
"""
MAKE = """#!/bin/sh
printf 'make %s\\n' "$*" >> {said}
[ "$1" != overlays ] || JAX_PLATFORMS=cpu PYTHONPATH={repository} \\
  {python} -m tools.cluster --k8s {folder}/deploy/k8s "${{2#VALUES=}}"
"""
"""Of this checkout, for the manifests of the walk."""
MINE = "alertmanager.yaml"
"""Which the operator brings along."""


@dataclass(frozen=True)
class Walk:
    """What was said on the way, and what of the manifests has come of it."""

    folder: Path
    said: str
    objects: tuple[Object, ...]
    as_root: tuple[Object, ...]
    """With TPU pools as root."""


@pytest.fixture(scope="module")
def walk(tmp_path_factory: pytest.TempPathFactory) -> Walk:
    folder = tmp_path_factory.mktemp("walk")
    said = folder / "said"
    for name in (*(f"bin/{name}" for name in ABROAD), *CLIENT):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(STAND_IN.format(said=said))
        (folder / name).chmod(0o755)
    own = {"python": sys.executable, "repository": REPOSITORY, "folder": folder}
    (folder / "bin" / "make").write_text(MAKE.format(said=said, **own))
    (folder / MINE).touch()
    manifests = copied(folder / "deploy" / "k8s")
    for name in ("docker", "prometheus"):
        (folder / "deploy" / name).symlink_to(REPOSITORY / "deploy" / name)
    commands = "".join(BLOCKS.findall((REPOSITORY / "docs" / "operations" / "gke.md").read_text()))
    path = f"{folder}/bin:{os.environ['PATH']}"
    subprocess.run(
        ["bash", "-euo", "pipefail", "-c", commands], cwd=folder, env={"PATH": path}, check=True
    )
    found = [rendered(manifests / "overlays" / f"gke-tpu-v6e{end}") for end in ("", "-root")]
    return Walk(folder, said.read_text(), *found)


def test_files_that_it_names_are_there(walk: Walk) -> None:
    named = re.findall(r"--(?:filename|kustomize|file|from-file)[ =](\S+)", walk.said)
    local = {path for path in named if not path.startswith("https://")}
    assert len(local) > 6
    assert [path for path in sorted(local) if not (walk.folder / path).exists()] == []


def test_it_makes_what_the_manifests_name(walk: Walk) -> None:
    for pods in (*pods_of(walk.objects, "frontend"), *pods_of(walk.objects, "pool")):
        assert f"docker push {pods.container['image']}\n" in walk.said
    for pods in pods_of(walk.objects, "pool"):
        sources = [volume["csi"] for volume in pods.spec["volumes"] if "csi" in volume]
        assert len(sources) == 2
        for source in sources:
            assert f"gs://{source['volumeAttributes']['bucketName']} " in walk.said
    for account in of_kind((*walk.objects, *walk.as_root), "ServiceAccount"):
        (email,) = account["metadata"]["annotations"].values()
        assert f"{email} --role=roles/iam.workloadIdentityUser" in walk.said
        assert f".svc.id.goog[{namespace_of(account)}/{name_of(account)}]\n" in walk.said
    (gateway,) = of_kind(walk.objects, "Gateway")
    (certificates,) = gateway["metadata"]["annotations"].values()
    assert f"certificate-manager maps create {certificates}\n" in walk.said


def test_secrets_are_made_in_every_namespace_of_pods(walk: Walk) -> None:
    for pods in pods_of((*walk.objects, *walk.as_root)):
        (secret,) = {one["secret"]["secretName"] for one in pods.spec["volumes"] if "secret" in one}
        made = f"kubectl --namespace {pods.namespace} create secret generic {secret} "
        assert made in walk.said


def test_front_ends_know_the_balancers_address(walk: Walk) -> None:
    (front,) = pods_of(walk.objects, "frontend")
    found = settings_of(walk.objects, front).server.trusted_proxies
    assert [str(one) for one in found][2:] == ["10.0.0.3/32"]
    for pods in pods_of(walk.objects, "pool"):
        assert "ATELIER_SERVER__TRUSTED_PROXIES" not in environment(walk.objects, pods)


def test_at_its_end_are_a_memorystore_and_traces(walk: Walk) -> None:
    assert not gaps([*walk.objects, *walk.as_root])
    for pods in pods_of(walk.objects):
        settings = settings_of(walk.objects, pods)
        assert settings.redis.url == "rediss://10.0.0.3:6378"
        assert settings.tracing.endpoint
        told = environment(walk.objects, pods)["OTEL_RESOURCE_ATTRIBUTES"]
        assert told == "gcp.project_id=my-project"
