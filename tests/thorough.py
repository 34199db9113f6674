"""Choice of the tests that `make test` leaves to `make test-all`, so that a change is soon judged.

Two cores compile all day what every model does in every layout. So of the cases of one test some
are drawn in every run, chosen by the file's name: files take turns among models and layouts. What
takes a minute and shows again what another test shows is left out by its name.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from zlib import crc32

import pytest

CASES: Mapping[str, int] = {
    "deploy/k8s/test_chart.py": 3,
    "deploy/k8s/test_objects.py": 4,
    "deploy/k8s/test_restarts.py": 4,
    "examples/test_safety_hook.py": 1,
    "families/test_auditions.py": 3,
    "families/test_checkpoint.py": 3,
    "families/test_full_size.py": 4,
    "families/test_matrix.py": 4,
    "families/test_suite.py": 100,
    "families": 1,
    "models/flux/test_dtypes.py": 1,
    "models/sdxl/test_control_checkpoint.py": 3,
    "models/vae/test_tiled.py": 1,
    "models/wan/test_single_file.py": 2,
    "models/wan/test_vace_pipeline.py": 2,
    "models/weights/test_loader.py": 4,
    "models/weights/test_quantize.py": 2,
    "parallel": 1,
    "parity": 1,
    "workers/multihost/test_drawing.py": 2,
    "workers/multihost": 1,
    "workers/plan": 2,
}
"""Cases of each test that every run has, by file or folder below `tests`; elsewhere all."""

NAMED = {
    "clients/test_aiperf.py": ("test_videos",),
    "clients/test_litellm.py": (),
    "deploy/bench/engine/test_measure.py": (
        "test_rounds_with_adapters_take_turns_with_those_without",
    ),
    "deploy/bench/serving/test_serve.py": ("test_ctrl_c_tells_what_there_is",),
    "deploy/cli/test_calibrate.py": (),
    "e2e/test_control_video.py": (),
    "e2e/test_controls.py": (),
    "e2e/test_door_edits.py": (),
    "e2e/test_eta.py": (),
    "e2e/test_exact.py": (),
    "e2e/test_life.py": (
        "test_a_model_that_cannot_be_served_leaves_the_others_alone",
        "test_a_second_ctrl_c_ends_it_at_once",
        "test_overlapping_deaths_below_one_supervisor_change_no_picture",
    ),
    "e2e/test_loras.py": (),
    "e2e/test_mesh.py": (),
    "e2e/test_references.py": (),
    "e2e/test_single_file.py": (),
    "families/test_adapters.py": ("test_adapters_change_the_encoding_of_every_chunk[sdxl]",),
    "families/test_adapters_of_variants.py": (),
    "families/test_enlargers.py": ("test_two_passes_by_the_models_own_upscaler[ltx-image]",),
    "families/test_prompt_weights.py": ("test_a_layout_draws_chunks_as_one_device_does[sdxl]",),
    "models/demo/test_controls.py": (),
    "models/demo/test_edit.py": (),
    "models/demo/test_loras.py": (),
    "models/demo/test_score.py": (
        "test_the_others_reach_it[sdxl]",
        "test_the_others_reach_it[wan]",
        "test_flux_in_bfloat16_is_within_two_points",
        "test_flux_reaches_the_bar",
    ),
    "models/demo/training/test_train.py": ("test_a_resumed_run_is_the_same_run[sdxl]",),
    "models/nn/attention/test_compiled.py": ("test_splash_compiles[TPU v5 lite]",),
    "models/test_activation_dtype.py": (
        "test_weights_are_stored_small_and_used_in_full[sdxl]",
        "test_activations_may_be_coarser_than_weights[sdxl]",
    ),
}
"""Tests that are left out, by their file below `tests`; all of a file that names none."""


def mark(items: Iterable[pytest.Item], root: Path) -> None:
    """Mark as thorough what `make test` leaves out."""
    functions = defaultdict(list)
    for item in items:
        path = item.path.relative_to(root)
        names = NAMED.get(path.as_posix())
        if names is not None and (not names or item.name in names):
            item.add_marker("thorough")
        if isinstance(item, pytest.Function):
            functions[path, item.originalname].append(item)
    for (path, _), cases in functions.items():
        places = [place for place in CASES if path.is_relative_to(place)]
        if places:
            for item in _others(cases, path.as_posix(), CASES[places[0]]):
                item.add_marker("thorough")


def _others(cases: Sequence[pytest.Item], path: str, kept: int) -> Sequence[pytest.Item]:
    """Return the cases of a test but for those that every run has.

    Tests of one file begin as far on in their cases: of those by model mostly with the same one.
    """
    first, every = crc32(path.encode()) * len(cases) >> 32, max(len(cases) // kept, 1)
    turns = {(first + turn * every) % len(cases) for turn in range(kept)}
    return [item for index, item in enumerate(cases) if index not in turns]
