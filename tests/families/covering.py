"""Covering design of the gate: each model family meets each mechanism once.

The gate has one case of each test per family. Other parameters (layout, dtype, form) rotate from
family to family, so that families meet different values. Variants run in the gate only if `MODELS`
contains them. `make test-all` runs the whole product.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from zlib import crc32

import pytest

from tests.families.suite import EVERY, SUITE

FLUX = ("flux",)
FLUX_AND_WAN = ("flux", "wan")
"""An image family and a video family."""
WITHOUT_DRAFTS = ("flux2", "krea2", "qwenimage21")
"""Families without image-to-image by a strength."""

DERIVED: Mapping[str, Collection[str]] = {
    "chroma": (
        "test_batch_invariance.py::test_batching_changes_no_bit",
        "test_checkpoint.py::test_damaged_array_of_a_denoiser_is_named",
        "test_full_size.py::test_full_size_checkpoint_matches_the_readme",
        "test_generation.py::test_image_matches_diffusers",
        "test_matrix.py",
        "test_prompt_weights.py::test_weights_change_the_encoding",
        "test_suite.py",
    ),
}
"""Families with the blocks and the pipeline of others → their tests in the gate, or whole files.

Chroma has FLUX.1's blocks and the base pipeline of Qwen-Image and Z-Image, which the gate tests.
"""

MODELS: Mapping[str, Collection[str]] = {
    "test_adapters.py::test_batch_of_eight_adapters_matches_single_rows": FLUX,
    "test_adapters.py::test_loading_and_evicting_adapters_change_no_bit": FLUX,
    "test_adapters.py::test_image_resumes_in_another_engine_from_its_snapshot": (),
    "test_adapters.py::test_banks_without_adapters_change_no_bit": FLUX,
    "test_adapters.py::test_branch_with_an_adapter_has_it_from_its_first_step": FLUX,
    "test_adapters.py::test_fast_batching_differs_only_by_rounding": FLUX,
    "test_adapters.py::test_fast_batches_keep_adapters_in_step_caches": FLUX,
    "test_adapters.py::test_lokr_loha_and_dora_equal_merged_weights": FLUX,
    "test_adapters.py::test_adapters_change_the_encoding_of_every_chunk": (),
    "test_adapters_of_variants.py": (),
    "test_auditions.py": FLUX,
    "test_generation.py::test_slice_of_two_processes_matches_one_device": FLUX,
    "test_latent_upsamplers.py::test_other_families_have_no_latent_upsampler": FLUX,
    "test_executables.py": FLUX_AND_WAN,
    "test_finite.py::test_a_decoder_that_overflows_ends_the_job": FLUX_AND_WAN,
    "test_followers.py::test_a_fresh_pipeline_traces_the_steps_of_each_scheduler": (),
    "test_hires.py::test_both_passes_on_a_layout_match_one_device": (),
    "test_hires.py::test_others_do_not_have_it": WITHOUT_DRAFTS,
    "test_progressive.py": FLUX,
    "test_progressive.py::test_calibration_matches_the_engine": (),
    "test_progressive.py::test_progressive_passes_equal_separate_engine_passes": (),
    "test_progressive.py::test_others_do_not_have_it": WITHOUT_DRAFTS,
    "test_prompt_weights.py::test_chunks_on_a_layout_match_one_device": (),
    "test_token_buckets.py": FLUX,
    "test_upscaling.py::test_image_is_upscaled": FLUX_AND_WAN,
}
"""Models in the gate, by file or by file and test. Other tests have the families themselves."""

CASES: Mapping[str, int] = {
    "test_adapters.py::test_presets_and_images_combine_with_adapters[flux]": 2,
    "test_auditions.py::test_branch_continues_its_draft_with_other_fields[flux]": 2,
    "test_prompt_weights.py::test_layout_encodes_like_one_device[sdxl]": 3,
}
"""Number of a model's cases, where one is too few."""

PARAMETERS: Mapping[str, str] = {
    "test_adapters.py::test_adapters_match_merged_weights[ltx]": "one",
    "test_adapters.py::test_lokr_loha_and_dora_equal_merged_weights": "lokr",
    "test_batch_invariance.py::test_padded_batch_is_equal_at_every_position": "bfloat16",
    "test_batch_invariance.py::test_batching_changes_no_bit": "bfloat16",
    "test_generation.py::test_layout_matches_one_device[ltx]": "ring 2 of ulysses 4",
    "test_generation.py::test_slice_of_two_processes_matches_one_device": "elastic",
    "test_latent_upsamplers.py::test_two_passes_by_the_models_own_upscaler": "text",
}
"""Parameter of the gate's cases, of all models or of one model.

Sums in bfloat16 depend most on their order. An elastic batch uses parts of a slice. A ring with
other axes is met once. An adapter of one page and a request of text compile the fewest programs.
"""


def nightly(items: Iterable[pytest.Item]) -> Iterable[pytest.Item]:
    """Yield the cases that the gate leaves to `make test-all`."""
    cases: dict[str, dict[str, list[pytest.Item]]] = defaultdict(lambda: defaultdict(list))
    for item in items:
        _, _, case = item.name.removesuffix("]").partition("[")
        if isinstance(item, pytest.Function) and (models := models_of(case)):
            cases[f"{item.path.name}::{item.originalname}"][models[0]].append(item)
    for test, by_model in cases.items():
        chosen = _models(test, [*by_model])
        for number, (model, of_model) in enumerate(by_model.items()):
            if model in chosen:
                yield from _beyond(test, model, of_model, number)
            else:
                yield from of_model


def models_of(case: str) -> list[str]:
    """Return the entries of the suite that a case names, directly or by a checkpoint."""
    if published := [name for name, entry in EVERY.items() if case in entry.published]:
        return published
    words = f"-{case.replace(', ', '-')}-"
    named = [name for name in EVERY if f"-{name}-" in words]
    return [max(named, key=len)] if named else []


def _models(test: str, models: Sequence[str]) -> Collection[str]:
    """Return the models of a test that are in the gate, or the first model if it has only
    variants."""
    named = MODELS.get(test, MODELS.get(test.partition("::")[0]))
    if named is not None:
        return named
    if not SUITE.keys() & set(models):
        return models[:1]
    names = {test, test.partition("::")[0]}
    return [model for model in SUITE if model not in DERIVED or names & {*DERIVED[model]}]


def _beyond(
    test: str, model: str, items: Sequence[pytest.Item], number: int
) -> Sequence[pytest.Item]:
    """Return a model's cases that are not in the gate."""
    parameter = PARAMETERS.get(f"{test}[{model}]", PARAMETERS.get(test, ""))
    eligible = [item for item in items if parameter in item.name]
    count = CASES.get(f"{test}[{model}]", 1)
    stride = max(len(eligible) // count, 1)
    first = crc32(test.encode()) + number
    chosen = {eligible[(first + place * stride) % len(eligible)] for place in range(count)}
    return [item for item in items if item not in chosen]
