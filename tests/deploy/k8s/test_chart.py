"""The Helm chart renders the same objects as kustomize for every values file."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.k8s.charts import HOOK, by_helm, helm, hooks, stdin
from tests.deploy.k8s.objects import name_of, of_kind
from tests.deploy.k8s.rendering import K8S, Object, copied, load_all, rendered
from tests.deploy.k8s.test_schemas import VERSIONS, core_problems
from tests.deploy.k8s.values import A_MODEL, ALL_WAYS, ODD
from tools.cluster.chart import CHART, SUM, generated
from tools.cluster.overlay import write
from tools.cluster.shares import filled
from tools.cluster.values import Values, read

REDIS_HOST = "10.0.0.3"
SENTINELS = {
    "redis_url": "redis+sentinel://10.0.0.4:26379,10.0.0.5:26379/atelier",
    "redis_network": "10.0.0.0/24",
}
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
            "prices": {"v6e": {"standard": 2.75, "spot": 1}, "NVIDIA X": {"spot": 0.125}},
            "env": {"ATELIER_LOG_LEVEL": "debug"},
            "frontend": '[server]\nhost = "0.0.0.0"\nport = 8000\nkeys = true\n',
        }
    ),
    "an external Redis": Values.model_validate(
        {"models": [A_MODEL], "redis": "external", **SENTINELS}
    ),
    "Sentinels": Values.model_validate(
        {"namespace": "pictures", "models": [A_MODEL], "redis": "sentinel", "env": {"A": "b"}}
    ),
    "a pool of each kind": Values.model_validate(
        {
            "models": [
                A_MODEL | {"surge": True},
                A_MODEL | {"name": "wan", "topology": "4x4", "surge": True},
            ]
        }
    ),
    "a disk": Values.model_validate({"models": [A_MODEL], "weights": "hyperdisk-ml"}),
    "the Operator's rules": Values.model_validate({"models": [A_MODEL], "rules": "operator"}),
}
CHECKOV = "checkov.io/"
"""Prefix of the reasons for what checkov finds, which the chart does without."""
OF_THE_CLUSTER = ("ComputeClass", "PersistentVolume")
CASES = {**{file.stem: file for file in sorted((K8S / "values").glob("*.yaml"))}, **OTHERS}


def values_of(case: str) -> Values:
    source = CASES[case]
    return filled(read(source)) if isinstance(source, Path) else source


def by_kustomize(values: Values, folder: Path) -> tuple[Object, ...]:
    k8s = copied(folder)
    places = {"REDIS_HOST": REDIS_HOST} | {key.upper(): text for key, text in SENTINELS.items()}
    for file in (k8s / "components").glob("*/*.env"):
        text = file.read_text()
        for place, replacement in places.items():
            text = text.replace(place, replacement)
        file.write_text(text)
    unnamed = dict.fromkeys(("redis_host", *SENTINELS), "")
    return rendered(write(values.model_copy(update=unnamed), "chart", k8s))


def plain(
    objects: Sequence[Object], namespace: str, *, hashed: bool
) -> dict[tuple[str, str, str], Object]:
    """Objects without hashes of settings, which kustomize puts into names and Helm into
    annotations, and without namespaces, which Helm creates itself."""
    text = json.dumps(objects)
    for item in of_kind(objects, "ConfigMap"):
        short = re.sub(r"-[a-z0-9]{10}$", "", name_of(item))
        if hashed:
            text = text.replace(f'"{name_of(item)}"', f'"{short}"')
    result = {}
    for item in json.loads(text, object_hook=_without_sums):
        if item["kind"] != "Namespace" and HOOK not in item["metadata"].get("annotations", {}):
            if item["kind"] not in OF_THE_CLUSTER:
                item["metadata"].setdefault("namespace", namespace)
            place = item["metadata"].get("namespace", "")
            result[item["kind"], place, name_of(item)] = item
    return result


def _without_sums(mapping: dict[str, Any]) -> dict[str, Any]:
    if isinstance(annotations := mapping.get("annotations"), dict):
        for name in [name for name in annotations if name == SUM or name.startswith(CHECKOV)]:
            del annotations[name]
        if not annotations:
            del mapping["annotations"]
    return mapping


@pytest.mark.parametrize("case", CASES)
def test_chart_renders_the_same_as_kustomize(case: str, tmp_path: Path) -> None:
    values = values_of(case)
    helms = plain(by_helm(values), values.namespace, hashed=False)
    kustomizes = plain(by_kustomize(values, tmp_path), values.namespace, hashed=True)
    assert helms.keys() == kustomizes.keys()
    for key, item in kustomizes.items():
        assert helms[key] == item, key


ROOT = "components: [../../components/tpu-root]\nresources: [../chart]\n"


@pytest.mark.parametrize(
    ("redis", "topologies"),
    [("pod", ("2x4", "4x4")), ("sentinel", ("4x4", "4x4")), ("memorystore", ("2x4", "2x4"))],
)
def test_pools_as_root_are_those_of_the_component(
    redis: str, topologies: tuple[str, str], tmp_path: Path
) -> None:
    models = [
        A_MODEL | {"name": name, "topology": topology}
        for name, topology in zip(("flux", "wan"), topologies, strict=True)
    ]
    place = {"redis": redis, "weights": "hyperdisk-ml"}
    if redis == "memorystore":
        place["redis_host"] = REDIS_HOST
    values = Values.model_validate({"models": models, **place})
    by_kustomize(values, tmp_path)
    folder = tmp_path / "overlays" / "chart-root"
    folder.mkdir()
    (folder / "kustomization.yaml").write_text(ROOT)
    kustomizes = plain(rendered(folder), "atelier", hashed=True)
    as_root = values.model_copy(update={"tpu_root": True})
    helms = plain(by_helm(as_root), "atelier", hashed=False)
    assert helms.keys() == kustomizes.keys()
    for key, item in kustomizes.items():
        assert helms[key] == item, key


def test_generated_files_are_current() -> None:
    """`make chart` writes these files."""
    for path, content in generated().items():
        assert (CHART / path).read_text() == content, path


def test_chart_defaults_equal_the_values_defaults() -> None:
    defaults = yaml.safe_load((CHART / "values.yaml").read_text())
    assert defaults.pop("models") == []
    assert Values.model_validate(defaults | {"models": [A_MODEL]}) == Values.model_validate(
        {"models": [A_MODEL]}
    )


@pytest.mark.parametrize(
    "change", ["a pool's settings", "what all read", "nothing", "the workers' tag"]
)
def test_changed_settings_restart_pods(change: str) -> None:
    """Pods restart for the same changes as with kustomize's hashed names."""
    edit: dict[str, Any] = {
        "a pool's settings": {"models": [A_MODEL | {"slots": 2}]},
        "what all read": {"models": [A_MODEL], "env": {"ATELIER_LOG_LEVEL": "debug"}},
        "nothing": {"models": [A_MODEL]},
        "the workers' tag": {"models": [A_MODEL], "site": {"worker_tag": "0.0.9"}},
    }[change]
    before, after = (
        {name_of(item): item["spec"]["template"] for item in of_kind(by_helm(values), "Deployment")}
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
        ({"redis": None}, "redis: say one of pod, sentinel, memorystore"),
        ({"redis": "memorystore"}, "redis_host: say where"),
        ({"redis": "external", "redis_url": "redis://r"}, "redis_network: say which"),
        ({"site": {"region": "R", "project": ""}}, "site.project: say which"),
        ({"weights": "hyperdisk-ml"}, "site.zone: say where"),
        ({"site": {"project": "p\nregistry: evil"}}, "project"),
    ],
)
def test_clusters_that_cannot_be_are_refused(change: dict[str, Any], said: str) -> None:
    refused({"models": [A_MODEL], "site": {"project": "P", "region": "R"}} | change, said)


def refused(wrong: Any, said: str) -> None:
    file = yaml.safe_dump({"site": {"project": "P", "region": "R"}} | wrong)
    process = helm("template", "atelier", CHART, "--values", "-", stdin=file)
    assert process.returncode != 0
    assert said in process.stderr


def test_names_of_the_site_follow_the_projects() -> None:
    """Names default to the project's; explicit values, here of the bucket, take precedence."""
    site = {"project": "p", "registry": "r.example/x", "bucket": "12345", "tag": "1234e56"}
    values = Values.model_validate({"models": [A_MODEL], "site": site})
    process = helm("template", "atelier", CHART, "--values", "-", stdin=stdin(values))
    assert process.returncode == 0, process.stderr
    result = [item for item in load_all(process.stdout) if item]
    (env,) = [
        item["data"] for item in of_kind(result, "ConfigMap") if name_of(item) == "atelier-env"
    ]
    assert env["ATELIER_STORE__URL"] == "gs://12345/store"
    (pod,) = [item for item in of_kind(result, "Deployment") if "flux" in name_of(item)]
    spec = pod["spec"]["template"]["spec"]
    assert spec["containers"][0]["image"] == "r.example/x/atelier-worker-tpu:1234e56"
    buckets = [
        item["csi"]["volumeAttributes"]["bucketName"] for item in spec["volumes"] if "csi" in item
    ]
    assert sorted(buckets) == ["12345", "p-atelier-weights"]


def test_chart_is_linted_and_packaged(tmp_path: Path) -> None:
    """The package is the file that is pushed to a registry as an OCI chart."""
    file = tmp_path / "values.yaml"
    file.write_text(stdin(ALL_WAYS))
    site = ["--set=site.project=P", "--set=site.region=R"]
    process = helm("lint", "--strict", CHART, "--values", file, *site)
    assert process.returncode == 0, process.stdout
    process = helm("package", CHART, "--destination", tmp_path)
    assert process.returncode == 0, process.stderr
    (packed,) = tmp_path.glob("atelier-*.tgz")
    rendered_again = helm("template", "atelier", packed, "--values", file, *site)
    assert rendered_again.returncode == 0, rendered_again.stderr


def test_helm_test_objects_are_strictly_valid() -> None:
    result = hooks(ALL_WAYS)
    assert {item["kind"] for item in result} == {"Pod", "NetworkPolicy"}
    for version in VERSIONS:
        assert not [text for item in result if (text := core_problems(item, version))]
