"""Files of GitHub and pre-commit: schemas, permissions to publish, commands of a release."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest
import yaml

from tests.deploy.docker.tools import run
from tests.deploy.k8s.charts import OWN

ROOT = Path(__file__).resolve().parents[2]
WORKFLOWS = ROOT / ".github" / "workflows"
FILE = WORKFLOWS / "release.yml"
WORKFLOW: dict[str, Any] = yaml.safe_load(FILE.read_text("utf-8"))
JOBS: dict[str, Any] = WORKFLOW["jobs"]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
PINNED = re.compile(r"^\s*- uses: [\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+$")
SWITCHES = {"publish": "PUBLISH_PYPI", "images": "PUBLISH_IMAGES", "chart": "PUBLISH_IMAGES"}


def steps() -> Iterator[dict[str, Any]]:
    for job in JOBS.values():
        yield from job["steps"]


def step(job: str, name: str) -> str:
    """Commands of a workflow's step."""
    (commands,) = [each["run"] for each in JOBS[job]["steps"] if each.get("name") == name]
    return str(commands)


def bash(script: str, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run commands like GitHub does."""
    return subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script],
        cwd=folder,
        env=os.environ | variables,
        capture_output=True,
        text=True,
    )


@pytest.mark.parametrize(
    ("schema", "pattern"),
    [
        ("github-workflows", "workflows/*.yml"),
        ("github-issue-forms", "ISSUE_TEMPLATE/[!c]*.yml"),
        ("github-issue-config", "ISSUE_TEMPLATE/config.yml"),
        ("dependabot", "dependabot.yml"),
    ],
)
def test_the_schema_and_the_linter_find_nothing(schema: str, pattern: str) -> None:
    files = sorted(map(str, WORKFLOWS.parent.glob(pattern)))
    assert files
    output = run("check-jsonschema", "--builtin-schema", f"vendor.{schema}", *files)
    assert "ok" in output, output
    assert run("yamllint", "--strict", *files) == ""


def test_hooks_run_the_linters_of_the_environment() -> None:
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text("utf-8"))
    makefile = (ROOT / "Makefile").read_text("utf-8")
    entries = [hook["entry"] for repository in config["repos"] for hook in repository["hooks"]]
    for entry in entries:
        program, *arguments = entry.removesuffix(" --force-exclude").split()
        assert program.startswith(".venv/bin/")
        assert " ".join(["$(BIN)/" + Path(program).name, *arguments]) in makefile


@pytest.mark.parametrize("file", sorted(WORKFLOWS.glob("*.yml")), ids=lambda file: file.name)
def test_every_action_is_pinned_by_its_commit(file: Path) -> None:
    used = [line for line in file.read_text("utf-8").splitlines() if "uses:" in line]
    assert used and [line for line in used if not PINNED.match(line)] == []


def test_only_publishing_jobs_have_an_identity_behind_a_switch() -> None:
    assert WORKFLOW["permissions"] == {}
    may = {name for name, job in JOBS.items() if "id-token" in job["permissions"]}
    assert may == SWITCHES.keys()
    for name, variable in SWITCHES.items():
        assert f"vars.{variable} == 'true'" in JOBS[name]["if"]
        assert "github.ref_type == 'tag'" in JOBS[name]["if"]
        assert JOBS[name]["needs"] == "try" and JOBS[name]["environment"]
    assert "secrets." not in FILE.read_text("utf-8").replace("secrets.GITHUB_TOKEN", "")


def test_the_wheel_is_tried_on_every_python_that_it_says_it_runs_on() -> None:
    versions = JOBS["try"]["strategy"]["matrix"]["python"]
    assert versions == ["3.11", "3.12", "3.13"]
    assert PROJECT["requires-python"] == f">={versions[0]}"
    assert not any("checkout" in each.get("uses", "") for each in JOBS["try"]["steps"])


@pytest.mark.parametrize("script", [each["run"] for each in steps() if "run" in each])
def test_every_script_is_bash(script: str, tmp_path: Path) -> None:
    plain = re.sub(r"\$\{\{.*?\}\}", "value", script)
    assert bash(f"set -n\n{plain}", tmp_path).stderr == ""


@pytest.mark.parametrize(("tag", "passes"), [("v{}", True), ("{}", False), ("v9{}", False)])
def test_a_tag_must_be_the_version(tag: str, passes: bool) -> None:
    name = tag.format(PROJECT["version"])
    process = bash(step("build", "The tag is the version"), ROOT, GITHUB_REF_NAME=name)
    assert (process.returncode == 0) == passes, process.stdout + process.stderr


def test_a_wheel_with_other_import_names_is_refused(wheel: Path, tmp_path: Path) -> None:
    dist = tmp_path / "dist"
    dist.mkdir()
    (dist / wheel.name).write_bytes(wheel.read_bytes())
    check = step("build", "Check").split("\n", 1)[1]  # twine is not installed here
    assert bash(check, tmp_path).returncode == 0
    with ZipFile(dist / wheel.name, "a") as packed:
        packed.writestr("atelier_2-0.2.0rc1.dist-info/METADATA", "")  # any name and version
    assert bash(check, tmp_path).returncode == 0
    with ZipFile(dist / wheel.name, "a") as packed:
        packed.writestr("models/__init__.py", "")
    assert "other import names" in bash(check, tmp_path).stdout


def test_images_are_those_of_the_compose_file() -> None:
    built = {each["image"] for each in JOBS["images"]["strategy"]["matrix"]["include"]}
    services = yaml.safe_load((ROOT / "docker-compose.yml").read_text("utf-8"))["services"]
    service_images = {service["image"] for service in services.values()}
    assert {f"atelier-{name}" for name in built} == {
        name for name in service_images if ":" not in name
    }
    for each in JOBS["images"]["strategy"]["matrix"]["include"]:
        assert (ROOT / "deploy" / "docker" / f"{each['file']}.Dockerfile").is_file()


PUSHES = """#!/bin/sh
echo "$@" >> arguments
echo "Pushed: $3/atelier:1" >&2
{digest}
"""
"""Replacement of Helm for pushes, which reports like Helm."""


def test_the_chart_is_packed_as_the_version(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "deploy" / "helm", tmp_path / "deploy" / "helm")
    path = f"{os.environ['PATH']}:{OWN.parent}"
    process = bash(step("chart", "Pack"), tmp_path, PATH=path)
    assert process.returncode == 0, process.stderr
    (packed,) = (tmp_path / "packed").iterdir()
    assert packed.name == f"atelier-{PROJECT['version']}.tgz"


@pytest.mark.parametrize(
    ("digest", "code", "output"),
    [("echo Digest: sha256:ab", 0, "digest=sha256:ab\n"), ("", 1, "")],
    ids=["pushed", "without a digest"],
)
def test_the_chart_is_pushed_and_its_digest_attested(
    tmp_path: Path, digest: str, code: int, output: str
) -> None:
    program = tmp_path / "bin" / "helm"
    packed, written = tmp_path / "packed" / "atelier-1.tgz", tmp_path / "output"
    for file in (program, packed):
        file.parent.mkdir()
        file.write_text(PUSHES.format(digest=digest))
        file.chmod(0o755)
    path = f"{program.parent}:{os.environ['PATH']}"
    variables = {"PATH": path, "CHARTS": "ghcr.io/a/charts", "GITHUB_OUTPUT": str(written)}
    process = bash(step("chart", "Push"), tmp_path, **variables)
    assert (process.returncode, written.read_text()) == (code, output), process.stderr
    pushed = (tmp_path / "arguments").read_text().split()
    assert pushed == ["push", "packed/atelier-1.tgz", "oci://ghcr.io/a/charts"]
