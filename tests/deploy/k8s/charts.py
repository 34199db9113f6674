"""Renders the Helm chart."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.deploy.k8s.rendering import REPOSITORY, Object, load_all
from tools.cluster.chart import CHART
from tools.cluster.merging import plain
from tools.cluster.values import Values

OWN = REPOSITORY / ".venv-helm" / "bin" / "helm"
HOOK = "helm.sh/hook"


def helm(*arguments: str | Path, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """Run a Helm command with values on its standard input."""
    program = shutil.which("helm") or (str(OWN) if OWN.exists() else None)
    if program is None:
        pytest.fail("helm is not on the PATH, and `make clients` has not brought it")
    command = [program, *map(str, arguments)]
    return subprocess.run(command, input=stdin, capture_output=True, text=True, check=False)


def stdin(values: Values) -> str:
    """Values as `python -m tools.cluster --helm` prints them."""
    return plain(values.model_dump(mode="json", exclude_defaults=True))


def place(values: Values) -> list[str]:
    """Options for namespace and site; they match the placeholders in kustomize's site."""
    site = [f"--set=site.{name}={name.upper()}" for name in ("project", "region", "zone")]
    return ["--namespace", values.namespace, "--values", "-", *site]


def by_helm(values: Values) -> list[Object]:
    """All objects of an install."""
    process = helm("template", "atelier", CHART, *place(values), stdin=stdin(values))
    assert process.returncode == 0, process.stderr
    return [item for item in load_all(process.stdout) if item]


def hooks(values: Values) -> list[Object]:
    """Objects that `helm test` creates."""
    return [item for item in by_helm(values) if HOOK in item["metadata"].get("annotations", {})]
