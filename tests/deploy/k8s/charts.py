"""The chart as Helm renders it."""

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


def helm(*arguments: str | Path, told: str = "") -> subprocess.CompletedProcess[str]:
    """A command of Helm, with values at its standard input."""
    program = shutil.which("helm") or (str(OWN) if OWN.exists() else None)
    if program is None:
        pytest.fail("helm is not on the PATH, and `make clients` has not brought it")
    command = [program, *map(str, arguments)]
    return subprocess.run(command, input=told, capture_output=True, text=True, check=False)


def told(values: Values) -> str:
    """Values as `python -m tools.cluster --helm` prints them."""
    return plain(values.model_dump(mode="json", exclude_defaults=True))


def place(values: Values) -> list[str]:
    """Options that say where it is installed: at the site that kustomize's places are for."""
    site = [f"--set=site.{name}={name.upper()}" for name in ("project", "region", "zone")]
    return ["--namespace", values.namespace, "--values", "-", *site]


def by_helm(values: Values) -> list[Object]:
    """All objects of an install."""
    done = helm("template", "atelier", CHART, *place(values), told=told(values))
    assert done.returncode == 0, done.stderr
    return [one for one in load_all(done.stdout) if one]


def hooks(values: Values) -> list[Object]:
    """Objects that `helm test` makes."""
    return [one for one in by_helm(values) if HOOK in one["metadata"].get("annotations", {})]
