"""Layouts of the overlays and figures of docs/operations/gke.md are the planner's."""

from __future__ import annotations

import pytest

from models.parallel.axis_rules import TABLE
from models.wan.spec import FRAMES
from tests.deploy.k8s.objects import of_kind, pods_of
from tests.deploy.k8s.plans import CASES, CLIP, Case, best, row, sketch_of
from tests.deploy.k8s.rendering import GKE, REPOSITORY, overlay, stands_on
from tests.deploy.k8s.settings import pool_of, settings_of
from workers.plan.estimate import estimate
from workers.plan.offload import ALL_ON_DEVICE
from workers.slice.mesh_shape import MeshShape, slots_of

ALWAYS = [case for case in CASES if case.model == "flux-dev"]
"""Cases that are planned in each run; the others take longer and rely on the documented rows."""
CLIPS = [case for case in CASES if case.model.startswith("wan")]


def written(case: Case) -> list[str]:
    """Cells of an overlay's row in the documentation."""
    lines = (REPOSITORY / "docs" / "operations" / "gke.md").read_text().splitlines()
    (line_,) = [line for line in lines if line.startswith(f"| `{case.overlay}` |")]
    return [cell.strip() for cell in line_.strip("| ").split(" | ")]


def served(case: Case) -> tuple[MeshShape, int]:
    """The overlay's layout and the number of requests that it batches."""
    objects = overlay(case.overlay)
    (pods, *_) = pods_of(objects, "pool")
    pool = pool_of(settings_of(objects, pods), pods)
    assert pool.mesh != "auto"
    shape = MeshShape(pool.mesh.ici, pool.mesh.dcn, pool.mesh.ring).over(case.devices, case.hosts)
    return shape, slots_of(pool.slots, pool.per_device_batch_size, shape)


def test_each_overlay_has_its_figures() -> None:
    assert {case.overlay for case in CASES} == set(map(stands_on, GKE))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_layout_is_the_documented_one(case: Case) -> None:
    shape, _ = served(case)
    _, _, chips, layout, *_ = written(case)
    assert chips == f"{case.devices * case.hosts} {case.chip.name}"
    assert layout == str(shape)


@pytest.mark.parametrize("case", CLIPS, ids=str)
def test_warm_up_matches_the_planned_video(case: Case) -> None:
    """The planned video is warmed up; smaller videos and images use the models' defaults."""
    (pods, *_) = pods_of(overlay(case.overlay), "pool")
    settings = settings_of(overlay(case.overlay), pods)
    first, *_ = settings.models[pool_of(settings, pods).model].warmup
    assert {"num_frames": FRAMES, **first} == CLIP


@pytest.mark.parametrize("case", ALWAYS, ids=str)
def test_the_documented_figures_are_the_planners_and_it_fits(case: Case) -> None:
    assert written(case) == [cell.strip() for cell in row(case).strip("| ").split(" | ")]
    shape, slots = served(case)
    assert shape == best(case).shape
    sketch = sketch_of(case.model)
    full = estimate(sketch, shape, case.chip, slots, table=TABLE, residency=ALL_ON_DEVICE)
    assert full.fits, full.refusal()


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_pools_share_of_waiting_work_is_some_requests(case: Case) -> None:
    (scaled,) = of_kind(overlay(case.overlay), "ScaledObject")
    share_s = float(scaled["spec"]["triggers"][0]["metadata"]["threshold"])
    a_minute = float(written(case)[-1])
    assert 3 <= share_s / 60 * a_minute <= 30
    assert share_s <= 600


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_walk_puts_the_weights_where_the_settings_look(case: Case) -> None:
    objects = overlay(case.overlay)
    (pods, *_) = pods_of(objects, "pool")
    settings = settings_of(objects, pods)
    folder = settings.models[pool_of(settings, pods).model].source.removeprefix("/weights/")
    page = (REPOSITORY / "docs/operations/gke.md").read_text()
    rows = [line for line in page.splitlines() if "| `" in line]
    assert [row for row in rows if f"/{folder}` |" in row and f"`{case.overlay}`" in row]
