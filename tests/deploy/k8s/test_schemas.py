"""Every object against the schemas of Kubernetes and of the custom resources."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable, Iterator
from pathlib import Path

import jsonschema
import kubernetes_validate
import pytest

from tests.deploy.k8s import crds
from tests.deploy.k8s.fields import FIELDS, GROUPS, TRIGGER, used
from tests.deploy.k8s.objects import name_of, of_kind, templates
from tests.deploy.k8s.rendering import GKE, K8S, OVERLAYS, ROOT, SPOT, Object, overlay

VERSIONS = ("1.30", "1.34")
"""Of Kubernetes: the first that has preStop's sleep without being asked, and a recent one."""
OBJECT = {"apiVersion", "kind", "metadata", "spec"}
METADATA = {"name", "namespace", "labels", "annotations"}
"""What the manifests have of the fields of all kinds."""


def distinct(objects: Iterable[Object]) -> Iterator[Object]:
    yield from {json.dumps(one, sort_keys=True): one for one in objects}.values()


def core_problems(one: Object, version: str) -> str | None:
    """What Kubernetes' own schemas have against it, unknown fields included."""
    try:
        kubernetes_validate.validate(one, version, strict=True)
    except kubernetes_validate.ValidationError as error:
        where = ".".join(str(part) for part in error.path)
        return f"{one['kind']} {name_of(one)} {where}: {error.message}"
    return None


def custom_problems(one: Object) -> list[str]:
    """What the list of fields, and the CRD where it is at hand, have against it."""
    kind = one["kind"]
    found = [f"{path} is none of its fields" for path in unlisted(one)]
    if one["apiVersion"] != GROUPS[kind]:
        found.append(f"apiVersion {one['apiVersion']} is not {GROUPS[kind]}")
    if schema := crds.schemas().get((one["apiVersion"], kind)):
        errors = jsonschema.Draft202012Validator(schema).iter_errors(one)
        found += [f"{error.json_path}: {error.message}" for error in errors]
    return [f"{kind} {name_of(one)}: {text}" for text in found]


def unlisted(one: Object) -> list[str]:
    """Paths in an object that no list has."""
    below = set(used(one["kind"], one["spec"])) - FIELDS[one["kind"]]
    beside = [f"metadata.{key}" for key in one["metadata"].keys() - METADATA]
    return [*(one.keys() - OBJECT), *beside, *(f"spec.{path}" for path in below)]


def as_pod(template: Object) -> Object:
    """What checks a template that is a part of a custom resource."""
    return {"apiVersion": "v1", "kind": "Pod", **template}


def test_there_are_the_overlays_that_the_documentation_names() -> None:
    tpus = {f"gke-tpu-{name}" for name in ("v5e", "v5p", "v6e", "7x", "multihost")}
    hosts = tpus | {"gke-gpu-h100", "gke-gpu-h200"}
    assert {"cpu-demo", *hosts} == set(OVERLAYS) - {*SPOT, *ROOT}
    assert {f"{name}-spot" for name in hosts} == set(SPOT)
    assert set(ROOT) == {"gke-tpu-v6e-root"}
    assert set(GKE) == set(OVERLAYS) - {"cpu-demo"}


@pytest.mark.parametrize("version", VERSIONS)
def test_core_objects_are_strictly_valid(every_object: list[Object], version: str) -> None:
    core = [one for one in distinct(every_object) if one["kind"] not in GROUPS]
    groups = of_kind(distinct(every_object), "LeaderWorkerSet")
    core += [as_pod(pods.template) for group in groups for pods in templates(group)]
    for pod in of_kind(core, "Pod"):
        pod["metadata"] = {"name": "a-host-of-a-slice", **pod["metadata"]}
    problems = [text for one in core if (text := core_problems(one, version))]
    assert len(core) > 60
    assert not problems


def test_custom_resources_are_strictly_valid(every_object: list[Object]) -> None:
    custom = [one for one in distinct(every_object) if one["kind"] in GROUPS]
    assert {one["kind"] for one in custom} == set(GROUPS)
    assert not [text for one in custom for text in custom_problems(one)]


def test_triggers_are_kedas(every_object: list[Object]) -> None:
    for scaled in of_kind(distinct(every_object), "ScaledObject"):
        (trigger,) = scaled["spec"]["triggers"]
        assert trigger["type"] == "prometheus"
        assert set(trigger["metadata"]) == TRIGGER
        assert all(isinstance(value, str) for value in trigger["metadata"].values())


def test_the_list_of_fields_is_that_of_the_crds() -> None:
    known = {kind: crds.schemas().get((group, kind)) for kind, group in GROUPS.items()}
    missing = [
        f"{kind} spec.{path}"
        for kind, schema in known.items()
        for path in FIELDS[kind]
        if schema and not crds.has(schema, f"spec.{path}")
    ]
    assert not missing


def test_no_field_of_the_list_is_unused(every_object: list[Object]) -> None:
    for kind, fields in FIELDS.items():
        found = {path for one in of_kind(every_object, kind) for path in used(kind, one["spec"])}
        assert fields == found, kind


def test_all_components_are_rendered_somewhere() -> None:
    files = [
        *(K8S / "overlays").rglob("kustomization.yaml"),
        Path(__file__).with_name("conftest.py"),
    ]
    text = "".join(file.read_text() for file in files)
    there = {folder.name for folder in (K8S / "components").iterdir()}
    assert {name for name in there if f"components/{name}" not in text} == set()


def test_a_wrong_field_is_found_by_each_check() -> None:
    objects = copy.deepcopy(overlay("gke-tpu-multihost"))
    for one in of_kind(objects, *GROUPS):
        in_crds = (one["apiVersion"], one["kind"]) in crds.schemas()
        for value in (1, {}, []):
            one["spec"]["surprise"] = value
            assert "spec.surprise is none of its fields" in custom_problems(one)[0]
            assert len(custom_problems(one)) == 1 + in_crds
        assert unlisted({**one, "specs": {}}) == ["specs", "spec.surprise"]
    (group,) = of_kind(objects, "LeaderWorkerSet")
    leader, _ = templates(group)
    pod = {**as_pod(leader.template), "metadata": {"name": "leader"}}
    assert core_problems(pod, VERSIONS[0]) is None
    pod["spec"]["containers"][0]["readinessProbe"]["httpGet"]["paht"] = "/readyz"
    assert "paht" in str(core_problems(pod, VERSIONS[0]))
