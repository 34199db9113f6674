"""The Helm chart: what it renders is what kustomize renders, for every file of values."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.k8s.charts import HOOK, by_helm, helm, hooks, told
from tests.deploy.k8s.objects import name_of, of_kind
from tests.deploy.k8s.rendering import K8S, Object, copied, load_all, rendered
from tests.deploy.k8s.test_schemas import VERSIONS, core_problems
from tests.deploy.k8s.values import A_MODEL, ALL_WAYS, ODD
from tools.cluster.chart import CHART, SUM, generated
from tools.cluster.overlay import write
from tools.cluster.shares import filled
from tools.cluster.values import Values, read

REDIS_HOST = "10.0.0.3"
OTHERS = {
    "all ways": ALL_WAYS,
    "odd texts": ODD,
    "everything else": Values.model_validate(
        {
            "models": [A_MODEL],
            "weights": "pvc",
            "redis": "memorystore",
            "redis_host": REDIS_HOST,
            "tracing": True,
            "rules": "managed",
            "env": {"ATELIER_LOG_LEVEL": "debug"},
            "frontend": '[server]\nhost = "0.0.0.0"\nport = 8000\nkeys = true\n',
        }
    ),
    "a disk": Values.model_validate({"models": [A_MODEL], "weights": "hyperdisk-ml"}),
    "the Operator's rules": Values.model_validate({"models": [A_MODEL], "rules": "operator"}),
}
OF_THE_CLUSTER = ("ComputeClass", "PersistentVolume")
CASES = {**{file.stem: file for file in sorted((K8S / "values").glob("*.yaml"))}, **OTHERS}


def values_of(case: str) -> Values:
    found = CASES[case]
    return filled(read(found)) if isinstance(found, Path) else found


def by_kustomize(values: Values, folder: Path) -> tuple[Object, ...]:
    k8s = copied(folder)
    for file in (k8s / "components" / "memorystore").glob("*.env"):
        file.write_text(file.read_text().replace("REDIS_HOST", REDIS_HOST))
    return rendered(write(values.model_copy(update={"redis_host": ""}), "chart", k8s))


def plain(
    objects: Sequence[Object], namespace: str, *, hashed: bool
) -> dict[tuple[str, str], Object]:
    """Without hashes of settings, which one has in names and the other in annotations; without
    namespaces, of which Helm makes its own."""
    text = json.dumps(objects)
    for one in of_kind(objects, "ConfigMap"):
        short = re.sub(r"-[a-z0-9]{10}$", "", name_of(one))
        if hashed:
            text = text.replace(f'"{name_of(one)}"', f'"{short}"')
    found = {}
    for one in json.loads(text, object_hook=_without_sums):
        if one["kind"] != "Namespace" and HOOK not in one["metadata"].get("annotations", {}):
            if one["kind"] not in OF_THE_CLUSTER:
                one["metadata"].setdefault("namespace", namespace)
            found[one["kind"], name_of(one)] = one
    return found


def _without_sums(one: dict[str, Any]) -> dict[str, Any]:
    if isinstance(annotations := one.get("annotations"), dict):
        annotations.pop(SUM, None)
        if not annotations:
            del one["annotations"]
    return one


@pytest.mark.parametrize("case", CASES)
def test_it_renders_what_kustomize_renders(case: str, tmp_path: Path) -> None:
    values = values_of(case)
    helms = plain(by_helm(values), values.namespace, hashed=False)
    kustomizes = plain(by_kustomize(values, tmp_path), values.namespace, hashed=True)
    assert helms.keys() == kustomizes.keys()
    for key, one in kustomizes.items():
        assert helms[key] == one, key


def test_what_is_generated_is_what_the_manifests_say() -> None:
    """`make chart` writes it."""
    for path, content in generated().items():
        assert (CHART / path).read_text() == content, path


def test_its_defaults_are_those_of_the_values() -> None:
    defaults = yaml.safe_load((CHART / "values.yaml").read_text())
    assert defaults.pop("models") == []
    assert Values.model_validate(defaults | {"models": [A_MODEL]}) == Values.model_validate(
        {"models": [A_MODEL]}
    )


@pytest.mark.parametrize("change", ["a pool's settings", "what all read", "nothing"])
def test_pods_start_anew_whose_settings_changed(change: str) -> None:
    """The same pods as by kustomize's hashes in names."""
    edit: dict[str, Any] = {
        "a pool's settings": {"models": [A_MODEL | {"slots": 2}]},
        "what all read": {"models": [A_MODEL], "env": {"ATELIER_LOG_LEVEL": "debug"}},
        "nothing": {"models": [A_MODEL]},
    }[change]
    before, after = (
        {name_of(one): one["spec"]["template"] for one in of_kind(by_helm(values), "Deployment")}
        for values in (Values.model_validate({"models": [A_MODEL]}), Values.model_validate(edit))
    )
    pool, front = "atelier-pool-flux-dev", "atelier-frontend"
    changed = {name for name in before if before[name] != after[name]}
    assert changed == {"nothing": set(), "what all read": {pool, front}}.get(change, {pool})


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"chip": "v9"}, "chip"),
        ({"topology": "2x2x2"}, "no machine has v6e:2x2x2"),
        ({"replicas": 2}, "replicas"),
        ({"objective_s": None}, "flux-dev has no objective_s"),
        ({"min": 5}, "min is above max"),
        ({"name": "??"}, "is no name of a pool"),
        ({"name": 'a "b"'}, "name"),
        ({"name": "n" * 40}, "is no name of a pool"),
        ({"model_settings": {"dtype": "float32"}}, "dtype"),
        ({"pool_settings": {"by_turns": ["sdxl"]}}, "by_turns"),
        ({"pool_settings": {"also": ["sdxl"]}}, "also"),
        ({"pool_settings": {"drain_s": 300}}, "pods have less time"),
    ],
)
def test_models_that_cannot_be_are_refused(change: dict[str, Any], said: str) -> None:
    refused({"models": [A_MODEL | change]}, said)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"models": [A_MODEL, A_MODEL]}, "several would have the pool flux-dev"),
        ({"redis": None}, "redis: say one of pod, memorystore"),
        ({"redis": "memorystore"}, "redis_host: say where"),
        ({"site": {"region": "R", "project": ""}}, "site.project: say which"),
        ({"weights": "hyperdisk-ml"}, "site.zone: say where"),
        ({"site": {"project": "p\nregistry: evil"}}, "project"),
    ],
)
def test_clusters_that_cannot_be_are_refused(change: dict[str, Any], said: str) -> None:
    refused({"models": [A_MODEL], "site": {"project": "P", "region": "R"}} | change, said)


def refused(wrong: Any, said: str) -> None:
    file = yaml.safe_dump({"site": {"project": "P", "region": "R"}} | wrong)
    done = helm("template", "atelier", CHART, "--values", "-", told=file)
    assert done.returncode != 0
    assert said in done.stderr


def test_names_of_the_site_follow_the_projects() -> None:
    """And what is said goes before: outputs are in the bucket."""
    site = {"project": "p", "registry": "r.example/x", "bucket": "12345", "tag": "1234e56"}
    values = Values.model_validate({"models": [A_MODEL], "site": site})
    done = helm("template", "atelier", CHART, "--values", "-", told=told(values))
    assert done.returncode == 0, done.stderr
    found = [one for one in load_all(done.stdout) if one]
    (env,) = [one["data"] for one in of_kind(found, "ConfigMap") if name_of(one) == "atelier-env"]
    assert env["ATELIER_STORE__URL"] == "gs://12345/store"
    (pod,) = [one for one in of_kind(found, "Deployment") if "flux" in name_of(one)]
    spec = pod["spec"]["template"]["spec"]
    assert spec["containers"][0]["image"] == "r.example/x/atelier-worker-tpu:1234e56"
    buckets = [
        one["csi"]["volumeAttributes"]["bucketName"] for one in spec["volumes"] if "csi" in one
    ]
    assert sorted(buckets) == ["12345", "p-atelier-weights"]


def test_it_can_be_checked_and_packed(tmp_path: Path) -> None:
    """And so pushed to a registry: an OCI chart is this file."""
    file = tmp_path / "values.yaml"
    file.write_text(told(ALL_WAYS))
    site = ["--set=site.project=P", "--set=site.region=R"]
    done = helm("lint", "--strict", CHART, "--values", file, *site)
    assert done.returncode == 0, done.stdout
    done = helm("package", CHART, "--destination", tmp_path)
    assert done.returncode == 0, done.stderr
    (packed,) = tmp_path.glob("atelier-*.tgz")
    again = helm("template", "atelier", packed, "--values", file, *site)
    assert again.returncode == 0, again.stderr


def test_what_helm_test_makes_is_strictly_valid() -> None:
    found = hooks(ALL_WAYS)
    assert {one["kind"] for one in found} == {"Pod", "NetworkPolicy"}
    for version in VERSIONS:
        assert not [text for one in found if (text := core_problems(one, version))]
