"""Values files: rejected values, and the manifests written from valid ones."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from service.settings.settings import Settings
from tests.deploy.k8s.objects import name_of, named, namespace_of, of_kind, pods_of
from tests.deploy.k8s.rendering import K8S, REPOSITORY, Object, copied, rendered
from tests.deploy.k8s.settings import pool_of, settings_of
from tests.deploy.k8s.test_scaling import query
from tests.deploy.k8s.values import A_MODEL, ALL_WAYS, ODD
from tools.cluster.machines import MACHINES
from tools.cluster.overlay import compute_class, files, resources, write
from tools.cluster.shares import filled, share_s
from tools.cluster.values import Model, Values, ValuesError, read
from workers.slice.chips import CHIPS
from workers.slice.topology import TPU_SIZES

VALUES = sorted((K8S / "values").glob("*.yaml"))
REFUSALS: dict[str, tuple[dict[str, Any], str]] = {
    "an unknown chip": ({"chip": "v9"}, "chip 'v9' must be one of v4, v5e, v6e"),
    "another chip's topology": (
        {"topology": "2x2x1"},
        "topology '2x2x1' must be one of 1x1, 2x2, 2x4, 4x4",
    ),
    "a key that is none": ({"replicas": 2}, "models.0.replicas: Extra inputs"),
    "fewer than none": ({"min": 3, "max": 2}, "min 3 is above max 2"),
    "a name without letters": ({"name": "??"}, "has neither a letter nor a digit"),
    "a way that is none": ({"capacity": ["cheap"]}, "models.0.capacity.0"),
    "a name that ends a question": ({"name": 'a "b"'}, "models.0.name"),
    "a name too long for a pool": ({"name": "n" * 40}, "too long for a pool's"),
    "a pool that is no name": ({"pool": "-a-"}, "models.0.pool"),
    "a setting that is none": ({"model_settings": {"sourse": "x"}}, "sourse"),
    "a dtype that is none": ({"dtype": "fp8"}, "dtype"),
    "a section that is none": ({"sections": {"pools": {}}}, "models.0.sections.pools"),
    "a section's setting that is none": (
        {"sections": {"output": {"watermark": True}}},
        "watermark",
    ),
    "a setting with a key of its own": ({"pool_settings": {"mesh": "auto"}}, "pool_settings.mesh"),
    **{
        f"several models by `{key}`": (
            {"pool_settings": {key: ["sdxl"]}},
            f"pool_settings.{key}: an entry is a pool of one model",
        )
        for key in ("also", "by_turns")
    },
    "a longer time than pods have": ({"pool_settings": {"drain_s": 300}}, "at most 30 s"),
    "nothing": ({"model_settings": {"sizes": None}}, "null"),
    "no layout": ({"layout": {}}, "models.0.layout"),
    "a layout of no axes": ({"layout": {"ici": {"cfg": "two"}}}, "models.0.layout"),
}


@pytest.fixture(scope="module")
def objects(tmp_path_factory: pytest.TempPathFactory) -> tuple[Object, ...]:
    """Objects for all ways to get machines."""
    return rendered(write(ALL_WAYS, "values", copied(tmp_path_factory.mktemp("values"))))


@pytest.mark.parametrize("file", VALUES, ids=lambda file: file.stem)
def test_generated_overlays_are_current(file: Path) -> None:
    """`make overlays` writes these overlays."""
    folder = K8S / "overlays" / file.stem
    written = {
        str(path.relative_to(folder)): path.read_text()
        for path in folder.rglob("*")
        if path.is_file()
    }
    assert written == files(filled(read(file)), file.stem)


@pytest.mark.parametrize("case", REFUSALS)
def test_invalid_value_names_its_key(case: str, tmp_path: Path) -> None:
    change, message = REFUSALS[case]
    file = tmp_path / "values.yaml"
    file.write_text(yaml.safe_dump({"models": [A_MODEL | change]}))
    with pytest.raises(ValuesError) as caught:
        read(file)
    assert message in str(caught.value)
    assert str(file) in str(caught.value)


def test_handwritten_overlay_is_not_overwritten(tmp_path: Path) -> None:
    k8s = copied(tmp_path)
    with pytest.raises(ValuesError, match="not generated"):
        write(ALL_WAYS, "cpu-demo", k8s)
    assert (k8s / "overlays" / "cpu-demo" / "frontend.yaml").exists()


@pytest.mark.parametrize(
    "key", [{"site": {"project": "p"}}, {"redis_host": "10.0.0.3"}, {"tpu_root": True}]
)
def test_unsupported_kustomize_keys_are_rejected(key: Any, tmp_path: Path) -> None:
    values = Values.model_validate({"models": [A_MODEL]} | key)
    with pytest.raises(ValuesError, match=f"{next(iter(key))}: kustomize has"):
        write(values, "mine", copied(tmp_path))


@pytest.mark.parametrize(
    "plan", [{"model": "nope"}, {"model": "flux-dev", "request": {"widht": 10}}]
)
def test_a_plan_that_cannot_be_is_refused(plan: Any) -> None:
    with pytest.raises(ValuesError, match="flux-dev: plan: "):
        share_s(Model.model_validate(A_MODEL | {"objective_s": None, "plan": plan}))


def test_two_models_have_two_pools() -> None:
    twins = [A_MODEL | {"name": "flux dev"}, A_MODEL | {"name": "flux-dev"}]
    with pytest.raises(ValueError, match="several would have the pool flux-dev"):
        Values.model_validate({"models": twins})


def test_share_is_configured_or_computed() -> None:
    with pytest.raises(ValuesError, match="flux-dev: set objective_s"):
        share_s(Model.model_validate(A_MODEL | {"objective_s": None}))


def test_machines_are_those_that_the_planner_knows() -> None:
    for chip, by_topology in MACHINES.items():
        for topology, machine in by_topology.items():
            assert machine.topology == topology
            if machine.kind == "tpu":
                assert topology in TPU_SIZES[chip]
            else:
                assert CHIPS[chip].kind == "gpu"


def test_every_pool_is_a_pool_of_these_settings(objects: tuple[Object, ...]) -> None:
    pools = pods_of(objects, "pool")
    assert {pods.container["command"][-1] for pods in pools} == {
        *("flux-dev", "flux-dev-1-0", "wan", "sdxl")
    }
    for pods in pools:
        settings: Settings = settings_of(objects, pods)
        assert pool_of(settings, pods).model in {model.name for model in ALL_WAYS.models}
    sdxl = settings_of(objects, next(p for p in pools if p.container["command"][-1] == "sdxl"))
    assert sdxl.models["sdxl"].cold_start_s == 60
    assert sdxl.pools["sdxl"].flags == ("a=b", 'c="d"')


def test_keda_queries_only_this_installation(objects: tuple[Object, ...]) -> None:
    place = 'namespace="pictures", cluster="east"'
    queries = {
        name_of(item): item["spec"]["triggers"][0]["metadata"]["query"]
        for item in of_kind(objects, "ScaledObject")
    }
    models = {f"atelier-pool-{item.pool_name}": item.name for item in ALL_WAYS.models}
    assert queries == {pool: query(model, place) for pool, model in models.items()}
    scaled = named(objects, "ScaledObject", "atelier-pool-wan")["spec"]
    assert (scaled["minReplicaCount"], scaled["maxReplicaCount"]) == (1, 2)


def a_model(chip: str, topology: str) -> Model:
    machine = {"chip": chip, "topology": topology, "capacity": ["on-demand"]}
    return Model.model_validate(A_MODEL | machine)


def test_machines_come_by_a_compute_class(objects: tuple[Object, ...]) -> None:
    classes = {
        name_of(item): item["spec"]["priorities"] for item in of_kind(objects, "ComputeClass")
    }
    assert set(classes) == {"pictures.flux-dev", "pictures.flux-dev-1-0", "pictures.wan"}
    assert all("namespace" not in item["metadata"] for item in of_kind(objects, "ComputeClass"))
    own_reservation, shared_reservation, spot, on_demand, flex = classes["pictures.flux-dev"]
    tpu = {"type": "tpu-v6e-slice", "count": 8, "topology": "2x4"}
    assert all(item["tpu"] == tpu for item in classes["pictures.flux-dev"])
    assert own_reservation["reservations"]["specific"] == [{"name": "ours"}]
    assert shared_reservation["reservations"]["specific"] == [
        {"name": "theirs", "project": "other"}
    ]
    assert (spot["spot"], on_demand["spot"], flex["flexStart"]) == (True, False, {"enabled": True})
    (slices,) = classes["pictures.wan"]
    assert slices["tpu"] == {"type": "tpu-v6e-slice", "count": 4, "topology": "4x4"}
    for gpu in classes["pictures.flux-dev-1-0"]:
        assert gpu["machineType"] == "a3-highgpu-8g"
        assert (gpu["gpu"]["type"], gpu["gpu"]["count"]) == ("nvidia-h100-80gb", 8)
    (whole,) = compute_class(ALL_WAYS, small := a_model("a100-80", "2"))["spec"]["priorities"]
    assert (whole["machineType"], whole["gpu"]["count"]) == ("a2-ultragpu-2g", 2)
    assert resources(small.machine)["limits"]["nvidia.com/gpu"] == "2"


def test_pods_of_a_class_leave_a_spot_machine_in_time(objects: tuple[Object, ...]) -> None:
    """Some machines of the class may be Spot machines."""
    for pods in pods_of(objects, "pool"):
        pool = pods.container["command"][-1]
        selector, seconds = pods.spec["nodeSelector"], pods.spec["terminationGracePeriodSeconds"]
        tolerated = [toleration["key"] for toleration in pods.spec["tolerations"]]
        if pool != "sdxl":
            assert selector == {"cloud.google.com/compute-class": f"pictures.{pool}"}
        on_spot = pool.startswith("flux")
        assert seconds == (15 if on_spot else 60)
        assert ("cloud.google.com/gke-spot" in tolerated) == on_spot
        assert pool_of(settings_of(objects, pods), pods).drain_s == (10 if on_spot else 30)


def test_two_pools_of_slices_live_side_by_side(tmp_path: Path) -> None:
    """Each pool has its own network policies."""
    models = [A_MODEL | {"name": name, "topology": "4x4"} for name in ("one", "two")]
    values = Values.model_validate({"models": models})
    result = rendered(write(values, "two", copied(tmp_path)))
    policies = {name_of(item) for item in of_kind(result, "NetworkPolicy")}
    assert {"between-hosts-one", "between-hosts-two", "tpu-metrics-one"} <= policies
    assert all(namespace_of(item) == "atelier" for item in result if item["kind"] != "Namespace")


def test_the_documented_file_is_one(tmp_path: Path) -> None:
    """The documented values file is valid, and its objectives are those on the page."""
    page = (REPOSITORY / "docs" / "operations" / "gke.md").read_text()
    (text,) = re.findall(r"^```yaml\n(models:\n.+?)^```$", page, re.MULTILINE | re.DOTALL)
    file = tmp_path / "mine.yaml"
    file.write_text(text)
    values = filled(read(file))
    assert [model.objective_s for model in values.models] == [25, 600]
    result = rendered(write(values, "mine", copied(tmp_path / "k8s")))
    pools = pods_of(result, "pool")
    assert {pool_of(settings_of(result, pods), pods).model for pods in pools} == {
        model.name for model in values.models
    }


def test_settings_of_a_pool_are_toml() -> None:
    for model in (*ALL_WAYS.models, *ODD.models):
        sections = tomllib.loads(model.toml())
        assert set(sections) == {"models", "pools", *model.sections}
        assert sections["pools"][model.pool_name]["model"] == model.name
