"""Tiers of the tests: what each command runs.

`make check` runs the tests without a marker of `KINDS`: they need no compilation, process or
browser. `make test`, the gate, runs each promise once: all tests but the `nightly` ones.
`make test-all` runs all tests. Tests of model families have a covering design of their own, in
`tests/families/covering.py`.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from zlib import crc32

import pytest

ROOT = Path(__file__).parent

KINDS: Mapping[str, tuple[str, ...]] = {
    "compiles": (
        *("bench", "families", "parallel", "parity"),
        *(f"models/{room}" for room in ("demo", "flux", "nn", "parallel", "sdxl", "vae", "vision")),
        *("models/wan", "models/test_activation_dtype.py"),
        *(f"workers/{room}" for room in ("building", "engine", "loading", "multihost", "plan")),
        "workers/pool",
        *("workers/profiling", "workers/programs", "deploy/bench/engine"),
    ),
    "processes": (
        *("chaos", "clients", "e2e", "load", "packaging", "skew", "deploy/bench/serving"),
        *("deploy/docker", "deploy/local", "deploy/watching"),
        *("workers/building", "workers/health", "workers/multihost", "workers/pool"),
        "service/batches/test_driver.py",
        *("service/jobs/test_failover.py", "service/jobs/test_secure.py"),
        *("service/test_attacks.py", "service/test_bodies.py"),
        *("service/test_conformance.py", "service/test_image_attacks.py", "service/test_server.py"),
        *("service/routes/test_health.py", "service/http/test_connection_limits.py"),
    ),
    "browser": ("e2e",),
}
"""Markers by folder or file below `tests`: what `make check` leaves out."""

CASES: Mapping[str, int] = {
    "deploy/k8s/test_chart.py": 3,
    "deploy/k8s/test_objects.py": 4,
    "deploy/k8s/test_restarts.py": 4,
    "models/flux/test_dtypes.py": 1,
    "models/sdxl/test_control_checkpoint.py": 3,
    "models/vae/test_tiled.py": 1,
    "models/wan/test_single_file.py": 2,
    "models/wan/test_vace_pipeline.py": 2,
    "models/weights/test_loader.py": 4,
    "models/weights/test_quantize.py": 2,
    "parallel": 1,
    "parity": 1,
    "workers/multihost/test_drawing.py": 100,
    "workers/multihost": 1,
    "workers/plan": 2,
}
"""Cases of each parametrized test that are in the gate, by file or folder; elsewhere all are."""

NIGHTLY: Mapping[str, tuple[str, ...]] = {
    "bench/test_against.py": (),
    "bench/test_gpu.py": ("test_the_rehearsal_proves_a_demo_models_pixels",),
    "chaos/test_chaos.py": (),
    "clients/test_aiperf.py": (),
    "clients/generated/test_typescript.py": (),
    "clients/test_litellm.py": (),
    "deploy/bench/engine/test_measure.py": (
        "test_rounds_with_adapters_take_turns_with_those_without",
    ),
    "deploy/bench/serving/test_serve.py": ("test_ctrl_c_tells_what_there_is",),
    "deploy/cli/test_calibrate.py": (),
    "e2e/test_door_edits.py": (),
    "e2e/test_eta.py": (),
    "e2e/test_exact.py": ("test_the_same_bytes_of_every_family",),
    "e2e/test_life.py": (
        "test_a_job_outlives_the_pool_that_runs_it",
        "test_a_model_that_cannot_be_served_leaves_the_others_alone",
        "test_a_second_ctrl_c_ends_it_at_once",
        "test_kill_of_the_supervisor_leaves_nobody_behind_and_loses_nothing",
        "test_overlapping_deaths_below_one_supervisor_change_no_picture",
        "test_redis_is_started_again_and_what_ran_goes_on",
    ),
    "e2e/test_loras.py": ("test_adapters_of_every_family_draw_the_same_bytes_whatever_happens",),
    "e2e/test_mesh.py": (),
    "e2e/test_native_histograms.py": (),
    "e2e/test_pushed.py": (),
    "e2e/test_traced.py": (),
    "e2e/test_verify.py": (),
    "e2e/test_watching.py": (),
    "examples/test_safety_hook.py": ("test_images_are_classified",),
    "load/test_load.py": (),
    "models/demo/test_controls.py": (),
    "models/demo/test_edit.py": (),
    "models/demo/test_loras.py": (),
    "models/demo/test_score.py": (
        "test_the_others_reach_it[sdxl]",
        "test_the_others_reach_it[wan]",
        "test_flux_in_bfloat16_is_within_two_points",
        "test_flux_reaches_the_bar",
    ),
    "models/demo/training": (),
    "models/nn/attention/test_compiled.py": ("test_splash_compiles[TPU v5 lite]",),
    "packaging/test_wheel.py": ("test_the_demo_makes_an_image",),
    "parallel/test_adapters.py": (),
    "parallel/test_controls.py": (),
    "parallel/test_planned_cache.py": (),
    "parallel/test_step_cache.py": (),
    "parity/test_hires.py": (),
    "parity/test_ltx_second_stage.py": (),
    "parity/test_qwenimage_edit_plus.py": ("test_published_areas",),
    "parity/test_sdxl_controls.py": (
        "test_a_run_for_each_image_of_a_union_is_far",
        "test_images_of_a_union_beside_another_network",
    ),
    "parity/test_vae_tiling.py": (),
    "parity/test_wan.py": ("test_experts_on_the_host_make_the_same_clip_to_the_bit",),
    "skew/test_skew.py": (),
    "workers/building/test_command.py": ("test_described_chips_get_their_programs",),
    "workers/engine/test_engine_adapters.py": (),
    "workers/engine/test_engine_flux.py": (),
    "workers/engine/test_engine_wan.py": (),
    "workers/multihost/test_processes.py": (
        "test_another_slice_goes_on_with_what_a_killed_or_starved_one_has_kept",
    ),
    "workers/plan/test_command.py": ("test_programs_are_really_compiled_for_tpus",),
    "workers/pool/test_hires_process.py": (),
    "workers/pool/test_upscaling_process.py": (),
    "service/test_conformance.py": ("test_the_server_does_what_its_description_says[20]",),
    "models/test_activation_dtype.py": (
        "test_weights_are_stored_small_and_used_in_full[sdxl]",
        "test_activations_may_be_coarser_than_weights[sdxl]",
    ),
}
"""Tests outside the gate, by file or folder below `tests`; empty: all tests in it."""


COMPUTING = ("bench", "families", "models", "parallel", "parity", "workers")
"""Folders whose tests compute in their own process, rather than wait for others."""

ALONE: Mapping[str, tuple[str, ...]] = {}
"""Tests that run after all others, one at a time, by file below `tests`; empty: all tests in it."""


GROUPS: Mapping[str, tuple[str, ...]] = {
    "demo": tuple(f"e2e/test_{name}.py" for name in ("demo", "door_edits", "doors")),
    "standins": (
        "e2e/test_operator_page.py",
        *(
            f"e2e/test_playground_{name}.py"
            for name in ("audition", "clips", "images", "keys", "loras", "progress", "upscale")
        ),
    ),
    "system": tuple(
        f"e2e/test_{name}.py"
        for name in (
            *("answers", "clips", "control_video", "controls", "exact", "loras", "mesh"),
            *("playground", "references", "safety", "single_file"),
        )
    ),
}
"""Files that run in one process since they share a running system, by that system's name."""


SENSITIVITY = re.compile(r"fails?_by_far|_bites?$|is_told_apart")
"""Names of parity tests that show that a wrong model fails the others. The gate has those of
`SENSITIVE`, and `tests.mutants` shows it for the whole gate."""
SENSITIVE = ("parity/test_flux.py", "parity/test_sdxl_unet.py", "parity/test_wan.py")


def kinds_of(path: Path) -> Sequence[str]:
    """Return the kinds of a test file, whose path is below `tests`."""
    return [kind for kind, places in KINDS.items() if _is_below(path, places)]


def is_nightly(path: Path) -> bool:
    """Return whether no test of a file is in the gate."""
    return any(not tests and path.is_relative_to(place) for place, tests in NIGHTLY.items())


def computes(path: Path) -> bool:
    """Return whether a file's tests keep a core busy."""
    return path.parts[0] in COMPUTING and "processes" not in kinds_of(path)


def is_alone(path: Path) -> bool:
    """Return whether some tests of a file run alone."""
    return path.as_posix() in ALONE


def mark(items: Iterable[pytest.Item]) -> None:
    """Add the markers of kinds and tiers."""
    functions = defaultdict(list)
    for item in items:
        path = item.path.relative_to(ROOT)
        for kind in kinds_of(path):
            item.add_marker(kind)
        if _is_named(NIGHTLY, path, item) or _shows_sensitivity(path, item):
            item.add_marker("nightly")
        if _is_named(ALONE, path, item):
            item.add_marker("alone")
        if isinstance(item, pytest.Function):
            functions[path, item.originalname].append(item)
    for (path, _), cases in functions.items():
        counts = [count for place, count in CASES.items() if path.is_relative_to(place)]
        cases = [item for item in cases if not item.get_closest_marker("nightly")]
        for item in _beyond(cases, path.as_posix(), counts[0]) if counts and cases else ():
            item.add_marker("nightly")


def _is_below(path: Path, places: Iterable[str]) -> bool:
    return any(path.is_relative_to(place) for place in places)


def _is_named(table: Mapping[str, tuple[str, ...]], path: Path, item: pytest.Item) -> bool:
    """Return whether a table names a test, its case, or its whole file or folder."""
    tests = [tests for place, tests in table.items() if path.is_relative_to(place)]
    return any(not names or {item.name, _function(item)} & {*names} for names in tests)


def _shows_sensitivity(path: Path, item: pytest.Item) -> bool:
    is_parity = path.is_relative_to("parity") and path.as_posix() not in SENSITIVE
    return is_parity and bool(SENSITIVITY.search(_function(item)))


def _function(item: pytest.Item) -> str:
    return item.name.partition("[")[0]


def _beyond(cases: Sequence[pytest.Item], path: str, count: int) -> Sequence[pytest.Item]:
    """Return all cases of a test but `count`, which are spread evenly.

    The path decides the first one: tests of one file have mostly the same models.
    """
    first, stride = crc32(path.encode()) * len(cases) >> 32, max(len(cases) // count, 1)
    chosen = {(first + place * stride) % len(cases) for place in range(count)}
    return [item for index, item in enumerate(cases) if index not in chosen]
