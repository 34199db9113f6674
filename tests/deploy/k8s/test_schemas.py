"""Every object matches the schemas of Kubernetes and of the custom resources."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable, Iterator
from pathlib import Path

import jsonschema
import kubernetes_validate
import pytest
import yaml

from tests.deploy.k8s import crds
from tests.deploy.k8s.fields import FIELDS, GROUPS, TRIGGER, used
from tests.deploy.k8s.objects import name_of, of_kind, templates
from tests.deploy.k8s.rendering import GKE, K8S, OVERLAYS, ROOT, SPOT, Object, overlay
from tests.deploy.k8s.values import ALL_WAYS
from tools import rules
from tools.cluster.overlay import files as overlay_files

VERSIONS = ("1.30", "1.34")
"""Kubernetes versions: the first with preStop's sleep enabled by default, and a recent one."""
OBJECT = {"apiVersion", "kind", "metadata", "spec"}
METADATA = {"name", "namespace", "labels", "annotations"}
"""Metadata fields that the manifests use."""


def distinct(objects: Iterable[Object]) -> Iterator[Object]:
    yield from {json.dumps(item, sort_keys=True): item for item in objects}.values()


def core_problems(item: Object, version: str) -> str | None:
    """Violation of Kubernetes' own schemas, including unknown fields; None if valid."""
    try:
        kubernetes_validate.validate(item, version, strict=True)
    except kubernetes_validate.ValidationError as error:
        location = ".".join(str(part) for part in error.path)
        return f"{item['kind']} {name_of(item)} {location}: {error.message}"
    return None


def custom_problems(item: Object) -> list[str]:
    """Violations of the list of fields, and of the CRD if available."""
    kind = item["kind"]
    problems = [f"{path} is none of its fields" for path in unlisted(item)]
    if item["apiVersion"] != GROUPS[kind]:
        problems.append(f"apiVersion {item['apiVersion']} is not {GROUPS[kind]}")
    if schema := crds.schemas().get((item["apiVersion"], kind)):
        errors = jsonschema.Draft202012Validator(schema).iter_errors(item)
        problems += [f"{error.json_path}: {error.message}" for error in errors]
    return [f"{kind} {name_of(item)}: {text}" for text in problems]


def unlisted(item: Object) -> list[str]:
    """Paths of an object that the list of fields lacks."""
    in_spec = set(used(item["kind"], item["spec"])) - FIELDS[item["kind"]]
    metadata = [f"metadata.{key}" for key in item["metadata"].keys() - METADATA]
    return [*(item.keys() - OBJECT), *metadata, *(f"spec.{path}" for path in in_spec)]


def as_pod(template: Object) -> Object:
    """Wrap a pod template of a custom resource as a Pod, for validation."""
    return {"apiVersion": "v1", "kind": "Pod", **template}


def test_documented_overlays_exist() -> None:
    tpus = {f"gke-tpu-{name}" for name in ("v5e", "v5p", "v6e", "7x", "multihost")}
    hosts = tpus | {"gke-gpu-h100", "gke-gpu-h200"}
    assert {"cpu-demo", *hosts} == set(OVERLAYS) - {*SPOT, *ROOT}
    assert {f"{name}-spot" for name in hosts} == set(SPOT)
    assert set(ROOT) == {"gke-tpu-v6e-root"}
    assert set(GKE) == set(OVERLAYS) - {"cpu-demo"}


@pytest.mark.parametrize("version", VERSIONS)
def test_core_objects_are_strictly_valid(every_object: list[Object], version: str) -> None:
    core = [item for item in distinct(every_object) if item["kind"] not in GROUPS]
    groups = of_kind(distinct(every_object), "LeaderWorkerSet")
    core += [as_pod(pods.template) for group in groups for pods in templates(group)]
    for pod in of_kind(core, "Pod"):
        pod["metadata"] = {"name": "a-host-of-a-slice", **pod["metadata"]}
    problems = [text for item in core if (text := core_problems(item, version))]
    assert len(core) > 60
    assert not problems


@pytest.fixture(scope="module")
def every_custom(every_object: list[Object]) -> list[Object]:
    """Custom resources of all overlays and variants, and the rules of both operators."""
    custom = [item for item in distinct(every_object) if item["kind"] in GROUPS]
    return [*custom, *(yaml.safe_load(rules.manifest(kind)) for kind in rules.API)]


def test_custom_resources_are_strictly_valid(every_custom: list[Object]) -> None:
    assert {item["kind"] for item in every_custom} == set(GROUPS)
    assert not [text for item in every_custom for text in custom_problems(item)]


def test_triggers_are_kedas(every_object: list[Object]) -> None:
    for scaled in of_kind(distinct(every_object), "ScaledObject"):
        (trigger,) = scaled["spec"]["triggers"]
        assert trigger["type"] == "prometheus"
        assert set(trigger["metadata"]) == TRIGGER
        assert all(isinstance(value, str) for value in trigger["metadata"].values())


def test_the_list_of_fields_is_that_of_the_crds() -> None:
    schemas = {kind: crds.schemas().get((group, kind)) for kind, group in GROUPS.items()}
    missing = [
        f"{kind} spec.{path}"
        for kind, schema in schemas.items()
        for path in FIELDS[kind]
        if schema and not crds.has(schema, f"spec.{path}")
    ]
    assert not missing


def test_no_field_of_the_list_is_unused(every_custom: list[Object]) -> None:
    for kind, fields in FIELDS.items():
        paths = {path for item in of_kind(every_custom, kind) for path in used(kind, item["spec"])}
        assert fields == paths, kind


def test_all_components_are_rendered_somewhere() -> None:
    files = [
        *(K8S / "overlays").rglob("kustomization.yaml"),
        Path(__file__).with_name("conftest.py"),
    ]
    text = "".join(file.read_text() for file in files)
    text += overlay_files(ALL_WAYS, "values")["kustomization.yaml"]
    components = {folder.name for folder in (K8S / "components").iterdir()}
    assert {name for name in components if f"components/{name}" not in text} == set()


def test_a_wrong_field_is_found_by_each_check() -> None:
    objects = copy.deepcopy(overlay("gke-tpu-multihost"))
    for item in of_kind(objects, *GROUPS):
        in_crds = (item["apiVersion"], item["kind"]) in crds.schemas()
        for value in (1, {}, []):
            item["spec"]["surprise"] = value
            assert "spec.surprise is none of its fields" in custom_problems(item)[0]
            assert len(custom_problems(item)) == 1 + in_crds
        assert unlisted({**item, "specs": {}}) == ["specs", "spec.surprise"]
    (group,) = of_kind(objects, "LeaderWorkerSet")
    leader, _ = templates(group)
    pod = {**as_pod(leader.template), "metadata": {"name": "leader"}}
    assert core_problems(pod, VERSIONS[0]) is None
    pod["spec"]["containers"][0]["readinessProbe"]["httpGet"]["paht"] = "/readyz"
    assert "paht" in str(core_problems(pod, VERSIONS[0]))
