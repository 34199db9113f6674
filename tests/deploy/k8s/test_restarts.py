"""A change of settings restarts exactly the pods that it concerns."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.deploy.k8s.objects import name_of, pods_of
from tests.deploy.k8s.rendering import K8S, OVERLAYS, SPOT, Object, copied, overlay, rendered

QUOTA = """
[tenants.acme]
max_queued = 7
"""


def templates(objects: tuple[Object, ...]) -> dict[str, list[Object]]:
    """Pod templates by workload; Kubernetes replaces pods whose template changes."""
    result: dict[str, list[Object]] = {}
    for pods in pods_of(objects):
        result.setdefault(name_of(pods.owner), []).append(pods.template)
    return result


def restarted(name: str, folder: Path, edit: Callable[[Path], None]) -> set[str]:
    """Workloads whose pod templates change with an edit of the manifests."""
    edit(copied(folder))
    before, after = templates(overlay(name)), templates(rendered(folder / "overlays" / name))
    assert before.keys() == after.keys()
    return {workload for workload in before if before[workload] != after[workload]}


def appended(file: str, text: str) -> Callable[[Path], None]:
    def edit(manifests: Path) -> None:
        (manifests / file).write_text((manifests / file).read_text() + text)

    return edit


def replaced(file: str, before: str, after: str) -> Callable[[Path], None]:
    def edit(manifests: Path) -> None:
        text = (manifests / file).read_text()
        assert text.count(before) == 1
        (manifests / file).write_text(text.replace(before, after))

    return edit


def pool_files() -> list[str]:
    """pool.toml files of the overlays; -spot variants use those of the overlay below."""
    names = [name for name in OVERLAYS if name not in SPOT]
    return sorted(
        str(file.relative_to(K8S))
        for name in names
        for file in (K8S / "overlays" / name).rglob("pool.toml")
    )


@pytest.mark.parametrize("name", OVERLAYS)
def test_quota_change_restarts_only_front_ends(name: str, tmp_path: Path) -> None:
    edit = appended("base/frontend.toml", QUOTA)
    assert restarted(name, tmp_path, edit) == {"atelier-frontend"}


@pytest.mark.parametrize("file", pool_files())
def test_pool_settings_restart_only_that_pool(file: str, tmp_path: Path) -> None:
    _, name, *_ = Path(file).parts
    (pool,) = restarted(name, tmp_path, appended(file, "drain_s = 20\n"))
    assert f"[pools.{pool.removeprefix('atelier-pool-')}]\n" in (K8S / file).read_text()


def test_shared_settings_restart_all_pods(tmp_path: Path) -> None:
    edit = appended("base/atelier.env", "ATELIER_LOG_LEVEL=debug\n")
    expected = {"atelier-frontend", *(f"atelier-pool-{name}" for name in ("flux", "sdxl", "wan"))}
    assert restarted("cpu-demo", tmp_path, edit) == expected


@pytest.mark.parametrize("key", ["tag", "worker_tag"])
@pytest.mark.parametrize("name", ["gke-tpu-multihost", "gke-gpu-h100"])
def test_front_ends_and_pools_have_tags_of_their_own(name: str, key: str, tmp_path: Path) -> None:
    edit = replaced("site/site.env", f"\n{key}=0.1.0\n", f"\n{key}=0.2.0\n")
    front, pools = {"atelier-frontend"}, {*templates(overlay(name))} - {"atelier-frontend"}
    expected = {"tag": front, "worker_tag": pools - {"atelier-redis"}}[key]
    assert restarted(name, tmp_path, edit) == expected
