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
        *("families", "parallel", "parity"),
        *(f"models/{room}" for room in ("demo", "flux", "nn", "parallel", "sdxl", "vae", "vision")),
        *("models/wan", "models/test_activation_dtype.py"),
        *(f"workers/{room}" for room in ("building", "engine", "loading", "multihost", "plan")),
        *("workers/diffusers", "workers/pool"),
        *("workers/profiling", "workers/programs", "deploy/bench/engine"),
    ),
    "processes": (
        *("chaos", "clients", "e2e", "packaging", "skew", "deploy/bench/serving"),
        *("deploy/docker", "deploy/local"),
        *("workers/diffusers/test_process.py", "workers/diffusers/test_system.py"),
        *("workers/building", "workers/health", "workers/multihost", "workers/pool"),
        "service/batches/test_driver.py",
        *("service/jobs/test_failover.py", "service/jobs/test_secure.py"),
        *("service/test_attacks.py", "service/test_bodies.py"),
        *("service/test_conformance.py", "service/test_image_attacks.py", "service/test_server.py"),
        *("service/routes/test_health.py", "service/http/test_connection_limits.py"),
        "service/routes/compat/test_proxies.py",
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
    "models/test_activation_dtype.py": 1,
    "models/vae/test_tiled.py": 1,
    "models/wan/test_single_file.py": 2,
    "models/wan/test_vace_pipeline.py": 2,
    "models/weights/test_loader.py": 4,
    "models/weights/test_quantize.py": 2,
    "parallel": 1,
    "parity": 1,
    "workers/multihost/test_agree.py": 100,
    "workers/multihost/test_generation.py": 100,
    "workers/multihost": 1,
    "workers/plan": 2,
}
"""Cases of each parametrized test that are in the gate, by file or folder, the first one that the
file is in; elsewhere all are."""

CASES_OF_TESTS: Mapping[str, Mapping[str, int]] = {
    "models/adapters/test_banks.py": {
        "test_single_row_matches_batched_row": 2,
        "test_each_row_is_changed_by_its_own_adapter": 1,
    },
    "models/demo/test_checkpoints.py": {"test_diffusers_generates_what_the_prompt_names": 1},
    "models/flux/test_single_file.py": {
        "test_unscaled_8_bit_floats_are_read_unchanged": 1,
        "test_transformer_file_uses_its_base_for_other_parts": 1,
    },
    "models/ltx/test_sound.py": {
        "test_every_tensor_of_the_published_vocoder_has_its_place": 1,
        "test_full_size_sound_is_as_long_as_its_tokens": 1,
    },
    "models/ltx/test_upsampler_checkpoint.py": {"test_a_file_without_a_config": 1},
    "models/nn/attention/test_kernels.py": {
        "test_kernel_matches_exact_attention_over_all_keys": 6,
        "test_keys_that_do_not_count": 4,
    },
    "models/nn/kernels/test_int8_matmul.py": {"test_layers_by_layouts": 6},
    "models/sdxl/test_pipeline.py": {"test_inpainting_of_1024_traces": 1},
    "models/test_registry.py": {"test_an_autoencoder_that_gives_no_numbers_is_refused": 2},
    "models/test_single_files.py": {"test_transformer_file_uses_its_base_for_other_parts": 4},
    "models/wan/test_pipeline.py": {"test_published_model_traces_every_program": 1},
    "models/wan/test_single_file.py": {"test_transformer_file_uses_its_base_for_other_parts": 1},
    "models/wan/test_vace_pipeline.py": {"test_published_model_traces_every_program": 1},
    "models/weights/test_object_store.py": {
        "test_peak_memory_is_the_model_and_the_current_transfer": 1,
    },
    "parity/test_schedulers.py": {"test_steps_from_noise_and_from_an_image": 100},
    "service/test_bodies.py": {
        "test_large_valid_body_does_not_block_others": 9,
        "test_long_texts_at_every_endpoint_do_not_block_others": 1,
    },
    "workers/loading/test_shared_models.py": {
        "test_equal_weights_are_shared_without_changing_images": 1,
    },
    "workers/plan/test_adapters.py": {"test_banks_add_only_their_own_memory": 1},
    "workers/plan/test_eight_bit.py": {
        "test_eight_bit_weights_add_or_save_half_of_the_blocks_bytes": 1,
    },
    "workers/programs/test_host_copies.py": {"test_offloaded_weights_are_restored": 1},
    "workers/programs/test_unstack.py": {"test_unstacked_layers_give_the_same_image": 1},
}
"""The same for single tests, by file."""

NIGHTLY: Mapping[str, tuple[str, ...]] = {
    "chaos/test_chaos.py": (),
    "chaos/test_watched.py": (),
    "clients/generated/test_typescript.py": (),
    "clients/test_aiperf.py": (),
    "clients/test_litellm.py": (),
    "deploy/bench/engine/test_measure.py": ("test_rounds_alternate_with_and_without_adapters",),
    "deploy/bench/serving/test_compare.py": ("test_compare_of_a_checkpoint",),
    "deploy/bench/serving/test_serve.py": ("test_interrupt_prints_the_partial_report",),
    "deploy/cli/test_calibrate.py": (),
    "deploy/k8s/test_sentinel.py": (
        "test_pods_elect_keep_and_hand_over_a_primary",
        "test_servers_and_sentinels_read_a_changed_secret",
    ),
    "e2e/test_control_video.py": (),
    "e2e/test_endpoint_edits.py": (),
    "e2e/test_eta.py": (),
    "e2e/test_redis_failover.py": (),
    "e2e/test_reproducibility.py": ("test_the_same_bytes_of_every_family",),
    "e2e/test_failures.py": (
        "test_job_survives_a_pool_crash",
        "test_unservable_model_does_not_stop_others",
        "test_second_ctrl_c_exits_immediately",
        "test_supervisor_kill_leaves_no_process_and_loses_no_job",
        "test_overlapping_crashes_change_no_image",
        "test_killed_redis_restarts_and_running_jobs_continue",
    ),
    "e2e/test_loras.py": ("test_adapters_of_every_family_have_reproducible_bytes",),
    "e2e/test_mesh.py": (),
    "e2e/test_native_histograms.py": (),
    "e2e/test_pushed.py": (),
    "e2e/test_traced.py": (),
    "e2e/test_verify.py": (),
    "e2e/test_watching.py": (),
    "examples/test_safety_hook.py": ("test_images_are_classified",),
    "families/test_prices.py": ("test_control_price_matches_its_operations",),
    "families/test_progressive.py": ("test_sizes_may_share_the_steps_of_a_bucket",),
    "families/test_token_buckets.py": (
        "test_an_image_beneath_the_noise_is_padded_too",
        "test_families_without_buckets_refuse_them",
        "test_hires_fix_moves_between_buckets",
    ),
    "models/nn/attention/test_compiled.py": (
        "test_products_of_eight_bits_compile[TPU v6 lite]",
        "test_splash_compiles",
        "test_the_compiler_knows_a_chips_memory",
    ),
    "models/nn/kernels/test_block_size_search.py": ("test_our_own_kernel_fills_the_matrix_units",),
    "models/sdxl/test_control_checkpoint.py": (
        "test_the_writer_is_diffusers_conversion_the_other_way_round",
    ),
    "models/sdxl/test_deep_features.py": ("test_strips_are_split_and_joined_around_the_cache",),
    "models/test_activation_dtype.py": (
        "test_weights_are_stored_small_and_used_in_full[sdxl]",
        "test_activations_may_be_coarser_than_weights[sdxl]",
    ),
    "models/weights/test_object_store.py": ("test_the_pixels_are_the_folders",),
    "models/weights/test_sharing.py": ("test_rounded_weights_are_shared_and_not_freed",),
    "packaging/test_wheel.py": ("test_the_demo_makes_an_image",),
    "parallel/test_adapters.py": (),
    "parallel/test_controls.py": (),
    "parallel/test_elastic.py": ("test_few_rows_use_the_whole_slice_many_rows_parts_of_it",),
    "parallel/test_planned_cache.py": (),
    "parallel/test_step_cache.py": (),
    "parity/test_adapters_flux.py": (
        "test_banks_without_adapters_change_no_bit",
        "test_two_adapters_one_of_negative_scale",
    ),
    "parity/test_adapters_flux_tools.py": ("test_adapter_matches_diffusers",),
    "parity/test_adapters_sdxl.py": (
        "test_banks_without_adapters_change_no_bit",
        "test_image_to_image",
        "test_two_adapters_of_several_pages",
    ),
    "parity/test_adapters_wan.py": (
        "test_banks_without_adapters_change_no_bit",
        "test_control_blocks_of_vace",
        "test_image_to_video",
        "test_two_adapters_of_several_pages",
    ),
    "parity/test_flux2.py": ("test_references_have_an_order",),
    "parity/test_flux2_dev.py": ("test_references",),
    "parity/test_hires.py": (),
    "parity/test_ltx_second_stage.py": (),
    "parity/test_qwenimage.py": ("test_caption_padding_has_no_effect",),
    "parity/test_qwenimage_edit.py": ("test_inpainting",),
    "parity/test_qwenimage_edit_plus.py": (
        "test_edits_of_one_image_and_of_three",
        "test_published_areas",
    ),
    "parity/test_sdxl.py": (
        "test_refiners",
        "test_the_plain_loop_over_whole_steps",
    ),
    "parity/test_sdxl_controls.py": (
        "test_separate_union_runs_break_parity",
        "test_union_images_with_another_network",
    ),
    "parity/test_sdxl_ip_adapter.py": ("test_image_prompt_with_an_input_image",),
    "parity/test_sdxl_refined.py": ("test_refiner_conditioning_changes_the_image",),
    "parity/test_vae_tiling.py": (),
    "parity/test_wan.py": ("test_host_experts_give_a_bitwise_equal_video",),
    "parity/test_wan_vace_conditions.py": (
        "test_first_and_last_frame",
        "test_references_only",
    ),
    "parity/test_wan_vace_pipeline.py": (),
    "service/test_conformance.py": ("test_server_matches_its_openapi_document[20]",),
    "skew/test_skew.py": (),
    "tools/test_rules.py": (
        "test_alerts_fire_with_operator_scopes[alerts-Google]",
        "test_alerts_fire_with_operator_scopes[alerts-operator]",
        "test_alerts_fire_with_operator_scopes[slow_alerts-Google]",
        "test_alerts_fire_with_operator_scopes[slow_alerts-operator]",
    ),
    "workers/diffusers/test_process.py": (),
    "workers/diffusers/test_system.py": (),
    "workers/building/test_command.py": (
        "test_prebuilt_programs_give_the_same_image",
        "test_described_chips_get_their_programs",
    ),
    "workers/engine/test_engine_adapters.py": (),
    "workers/engine/test_engine_flux.py": (),
    "workers/engine/test_engine_wan.py": (),
    "workers/loading/test_shared_models.py": (
        "test_slots_of_each_model_leave_memory_for_the_others",
        "test_models_of_other_families_are_swapped",
    ),
    "workers/loading/test_upscalers.py": ("test_a_plan_leaves_room_for_upscalers",),
    "workers/multihost/test_auditions.py": (),
    "workers/multihost/test_hires.py": (),
    "workers/multihost/test_processes.py": (
        "test_another_slice_resumes_the_job_of_a_killed_slice",
        "test_followers_exit_if_the_leader_is_killed",
        "test_processes_exit_with_their_slice_and_jobs_survive[of four]",
    ),
    "workers/multihost/test_upscaling.py": (),
    "workers/plan/test_command.py": ("test_programs_are_really_compiled_for_tpus",),
    "workers/pool/test_hires_process.py": (),
    "workers/pool/test_preemption_wan.py": (),
    "workers/pool/test_rollout.py": (),
    "workers/pool/test_several.py": (),
    "workers/pool/test_time_sharing_process.py": (
        "test_kill_during_a_swap_loses_no_job",
        "test_long_job_is_preempted_and_resumes",
        "test_two_time_shared_families_match_separate_ones",
    ),
    "workers/pool/test_upscaling_process.py": (),
    "workers/programs/test_unstack.py": ("test_adapter_banks_are_not_unstacked",),
}
"""Tests outside the gate, by file or folder below `tests`; empty: all tests in it."""


COMPUTING = ("families", "models", "parallel", "parity", "workers")
"""Folders whose tests compute in their own process, rather than wait for others."""
NETWORKS = ("parity",)
"""Computing folders in which the gate also checks the shapes of networks, because whole models run
there. `make test-all` checks shapes in all computing folders."""

ALONE: Mapping[str, tuple[str, ...]] = {}
"""Tests that run after all others, one at a time, by file below `tests`; empty: all tests in it."""


GROUPS: Mapping[str, tuple[str, ...]] = {
    "standins": (
        "e2e/test_operator_page.py",
        "e2e/test_reference_page.py",
        *(
            f"e2e/test_playground_{name}.py"
            for name in ("audition", "videos", "images", "keys", "loras", "progress", "upscale")
        ),
    ),
    "system": tuple(
        f"e2e/test_{name}.py"
        for name in (
            *("request_kinds", "endpoints", "videos", "control_video", "controls"),
            *("reproducibility", "loras", "mesh"),
            *("playground", "references", "safety", "single_file"),
        )
    ),
    "manifests": tuple(
        f"deploy/k8s/test_{name}.py"
        for name in (
            *("chart", "code", "machines", "network", "objects", "plans", "redis", "restarts"),
            *("scaling", "schemas", "values", "walk"),
        )
    ),
    "wheel": tuple(f"packaging/test_{name}.py" for name in ("editable", "release", "wheel")),
}
"""Files that run in one process since they share what takes long to make, by its name: a running
system, rendered manifests, a wheel."""


SENSITIVITY = re.compile(r"_breaks?_parity$")
"""Names of parity tests that show that a wrong model fails the others. The gate has those of
`SENSITIVE`, and `tests.mutants` shows it for the whole gate."""
SENSITIVE = ("parity/test_flux.py",)


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
    for (path, name), cases in functions.items():
        cases = [item for item in cases if not item.get_closest_marker("nightly")]
        if cases and (count := _cases_of(path, name)):
            for item in _beyond(cases, path.as_posix(), count):
                item.add_marker("nightly")


def _cases_of(path: Path, test: str) -> int | None:
    """Return how many cases of a test the gate has; None: all."""
    counts = [count for place, count in CASES.items() if path.is_relative_to(place)]
    return CASES_OF_TESTS.get(path.as_posix(), {}).get(test, counts[0] if counts else None)


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
