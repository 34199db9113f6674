"""Page docs/design/families.md: the tests of each mechanism with each model, as collected by
pytest.

The collection is the only source, so that no cell claims a test that does not exist. To regenerate
the page: `python -m tests.families.test_matrix`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from models.loading.sources import SHAPES
from models.spec.model_spec import ModelSpec
from tests.families.covering import DERIVED, models_of
from tests.families.suite import EVERY, SUITE, loaded
from tests.families.test_suite import LINES

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "design" / "families.md"
HERE = "tests/families"
VARIANTS = f"{HERE}/test_adapters_of_variants.py"
HOSTS = "tests/workers/multihost/test_generation.py"
COLLECT_S = 600.0
"""Timeout for the imports of all modules, on a busy machine."""
OTHER_KINDS = "LoKr/LoHa/DoRA"
COSTLY = ("two hosts", "upscaler", OTHER_KINDS)
"""Mechanisms that the gate tests with one or two families.

Two processes compile the model separately. An upscaler reads only pixels, whatever model drew them.
Other kinds of adapters use the layers and pages of a LoRA.
"""
IN_GATE, HELD, REASONED = "gate", "yes", "no"
COLLECT = (
    *("-q", "-s", "--collect-only", "-o", "addopts=--strict-markers", "-p", "no:faulthandler"),
    *("-W", "ignore::pytest.PytestAssertRewriteWarning"),  # modules that are already imported
)


@dataclass(frozen=True)
class Mechanism:
    """Column of the table."""

    test: str
    """Path of the test's file below the root, and the test's name."""
    of_variants: str = ""
    """The same of the test for the models that the first test omits."""
    absent: str = ""
    """Reason why a model may lack the mechanism, or empty."""
    is_served: Callable[[ModelSpec], bool] | None = None
    """Function that returns whether a model's spec has the mechanism, or None."""

    @property
    def models(self) -> Mapping[str, bool]:
        """Models with a test of it, and whether the gate has a case."""
        return {**collected()[self.test], **collected().get(self.of_variants, {})}


MECHANISMS: Mapping[str, Mechanism] = {
    "same image as diffusers": Mechanism(
        f"{HERE}/test_generation.py::test_image_matches_diffusers"
    ),
    "every mesh axis": Mechanism(f"{HERE}/test_generation.py::test_layout_matches_one_device"),
    "two hosts": Mechanism(f"{HOSTS}::test_slice_of_two_processes_matches_one_device"),
    "followers": Mechanism(
        f"{HERE}/test_followers.py::test_a_fresh_pipeline_traces_any_step_from_its_key"
    ),
    "batching, snapshots": Mechanism(
        f"{HERE}/test_batch_invariance.py::test_batching_changes_no_bit"
    ),
    "padded batches": Mechanism(
        f"{HERE}/test_batch_invariance.py::test_padded_batch_is_equal_at_every_position"
    ),
    "LoRA": Mechanism(
        f"{HERE}/test_adapters.py::test_adapters_match_merged_weights",
        f"{VARIANTS}::test_two_adapters_match_merged_weights",
    ),
    OTHER_KINDS: Mechanism(
        f"{HERE}/test_adapters.py::test_lokr_loha_and_dora_equal_merged_weights",
        f"{VARIANTS}::test_lokr_loha_and_dora_equal_merged_weights",
    ),
    "LoRA by step": Mechanism(
        f"{HERE}/test_adapters.py::test_scales_by_steps_are_those_of_each_step",
        f"{VARIANTS}::test_scales_by_steps_are_those_of_each_step",
    ),
    "presets": Mechanism(
        f"{HERE}/test_adapters.py::test_presets_and_images_combine_with_adapters",
        f"{VARIANTS}::test_presets_and_images_combine_with_adapters",
    ),
    "upscaler": Mechanism(f"{HERE}/test_upscaling.py::test_image_is_upscaled"),
    "hires fix": Mechanism(
        f"{HERE}/test_hires.py::test_two_passes_are_two_requests",
        f"{HERE}/test_latent_upsamplers.py::test_two_passes_by_the_models_own_upscaler",
        absent="no image-to-image with a strength, and no network that enlarges latents",
        is_served=lambda spec: "hires" in spec.fields,
    ),
    "prompt weights": Mechanism(
        f"{HERE}/test_prompt_weights.py::test_weights_change_the_encoding",
        absent="the text encoder is a chat model, which reads sentences",
        is_served=lambda spec: "prompt_syntax" in spec.fields,
    ),
    "price of images": Mechanism(
        f"{HERE}/test_prices.py::test_a_buckets_volume_is_in_proportion_to_tokens",
        absent="the steps read no images, or the family does not count tokens",
    ),
    "damaged files": Mechanism(
        f"{HERE}/test_checkpoint.py::test_damaged_array_of_a_denoiser_is_named"
    ),
    "size of full checkpoint": Mechanism(
        f"{HERE}/test_full_size.py::test_full_size_checkpoint_matches_the_readme"
    ),
    "planner": Mechanism(f"{HERE}/test_planner.py::test_a_slice_of_eight_chips_is_planned"),
}


class CollectionRecorder:
    """Pytest plugin that records each test's models, and whether the gate has a case of them."""

    def __init__(self) -> None:
        self.found: dict[str, dict[str, bool]] = defaultdict(dict)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Record each case's models and tier."""
        for item in session.items:
            test, _, case = item.nodeid.removesuffix("]").partition("[")
            for model in models_of(case):
                is_in_gate = item.get_closest_marker("nightly") is None
                self.found[test][model] = self.found[test].get(model, False) or is_in_gate


@cache
def collected() -> Mapping[str, Mapping[str, bool]]:
    """Return the models of each test, and whether the gate has a case of them.

    Pytest collects again in this process, since the current run may be partial.
    """
    plugin = CollectionRecorder()
    code = pytest.main([*COLLECT, *(str(ROOT / place) for place in (HERE, HOSTS))], [plugin])
    assert code == 0 and plugin.found, f"pytest ended with {code!r}"
    return plugin.found


def page() -> str:
    """Return the text of the page."""
    return "\n".join(lines()) + "\n"


def lines() -> Iterator[str]:
    """Yield the lines of the page."""
    yield from (
        "# Families and mechanisms",
        "",
        "The first table lists the mechanisms that the conformance suite tests with each model. A "
        "model is served only if it passes these tests.",
        "",
        "- `gate`: `make test` runs a test of the cell. It covers each family with each mechanism, "
        f"except for {', '.join(COSTLY[:-1])} and {COSTLY[-1]}, which it covers with one or two "
        f"families, and for {', '.join(DERIVED)}, whose blocks and pipeline are those of other "
        "families.",
        "- `yes`: only `make test-all` runs the cell's tests. It covers all layouts, dtypes and "
        "forms.",
        "- `no`: the model does not have the mechanism, for the reason in the second table.",
        "",
        "`python -m tests.families.test_matrix` generates this page from the tests that pytest "
        "collects. A test compares the page with them.",
        "",
        f"| model | {' | '.join(MECHANISMS)} |",
        f"|---|{'---|' * len(MECHANISMS)}",
    )
    for model in EVERY:
        yield f"| {model} | {' | '.join(cells(model))} |"
    yield from ("", "| mechanism | tests | reason for `no` |", "|---|---|---|")
    for name, mechanism in MECHANISMS.items():
        tests = ", ".join(f"`{test}`" for test in (mechanism.test, mechanism.of_variants) if test)
        yield f"| {name} | {tests} | {mechanism.absent} |"
    yield from new_family()


def new_family() -> Iterator[str]:
    """Yield the lines about adding a family."""
    yield from (
        "",
        "## Models without a family",
        "",
        "`workers/diffusers` serves any pipeline of diffusers that takes a prompt, on "
        "torch: see [the guide](../guides/models.md#any-diffusers-pipeline). It has no "
        "column here, because none of the mechanisms applies. `tests/workers/diffusers` "
        "compares eight classes with direct calls, byte for byte: Stable Diffusion 1.5 "
        "and 3.5, PixArt-Sigma, Sana, Chroma, Krea 2, HunyuanVideo 1.5 and CogVideoX. A "
        "new model can be served this way on the day of its release, and natively later, as "
        "Chroma and Krea 2 are.",
        "",
        "The pool reaches both kinds of workers through one interface, "
        "`workers/engine/backend.py`.",
        "",
        "## Plan for LTX-2.5",
        "",
        "LTX-2.5 (diffusers' `LTX25ModularPipeline`; its parts also run in "
        "`LTX2Pipeline`) is not served. It differs from LTX-2.3 in:",
        "",
        "1. The text encoder is Gemma 4 (`Gemma4UnifiedForConditionalGeneration`). It needs a"
        " module next to `models/text/gemma3.py`, with parity tests. This is the largest "
        "part.",
        "2. The transformer has values of fields that `models/ltx/config.py` reads "
        "(`ff_bias`, `use_prompt_adaln_single`), and `use_keyframes_abs_pos_embedding`: one "
        "array that `LTX2Pipeline` never uses, since it passes no `video_keyframes_mask`. To "
        "serve text to video, its key can be ignored.",
        "3. `LTX2VideoDiffusionDecoderModel` decodes the video: neighborhood attention and "
        "pixels denoised in one step. It reads the latents of the convolutional VAE, which "
        "can decode them at first.",
        "4. `LTX2DurationHead` predicts `num_frames` from the connectors' output if the "
        "request has none. A request that states `num_frames` does not need it.",
        "5. Images that condition the video are compressed by H.264 with CRF 18 instead of "
        "33, by default.",
        "6. `prompt_enhancer` (Gemma 4 E2B) and Diffusion Fidelity Rendering "
        "(`LTX2DFRPipeline`, with keyframes) are optional.",
        "",
        "## Adding a family",
        "",
        "1. Describe it in `models/<family>/family.py` (about 35 lines): a `Family` value "
        "(`models/interface/family.py`) with diffusers' pipeline classes, the options that `load` "
        "accepts, support for single files, and the published checkpoints. Add the value to "
        "`FAMILIES` in `models/registry.py`, and its request class to `models/requests.py`.",
        "2. Write the network: `config.py` (70), `network.py` (80 to 240, from the blocks in "
        "`models/nn/blocks`), and `key_mapping.py` (45 to 75), the names of its arrays in "
        "checkpoints, single files and adapters.",
        "3. Write the request's fields in `request.py` and the tasks, defaults and limits in "
        "`spec.py` (90 together).",
        "4. Subclass a pipeline of `models/flow` in `pipeline.py` (40 to 70), and read checkpoints "
        "in `load.py` (50) with the parts of `models/flow/parts.py`.",
        "5. Describe network, checkpoint, implementation and verification in `README.md`.",
        "6. Write tiny checkpoints with diffusers in `tests/parity/tiny_<family>.py`, and the "
        "suite's entry in `tests/families/suite/<family>.py` (35).",
        "7. Add the family and the sizes of its published checkpoints to `docs/guides/models.md`, "
        "and run `python -m tests.families.test_matrix`.",
        "",
        "Lines of Python in a family's folder, with its suite entries, are at most "
        "(`tests/families/test_suite.py`):",
        "",
        "| folder | lines |",
        "|---|---|",
        *(f"| `models/{folder}` | {most} |" for folder, most in LINES.items()),
    )


def cells(model: str) -> Iterator[str]:
    """Yield the cells of a model's row."""
    for mechanism in MECHANISMS.values():
        if model in mechanism.models:
            yield IN_GATE if mechanism.models[model] else HELD
        else:
            yield REASONED


@pytest.mark.timeout(COLLECT_S)
def test_no_cell_is_empty() -> None:
    holes = [
        (model, name)
        for name, mechanism in MECHANISMS.items()
        for model in EVERY
        if not mechanism.absent and model not in mechanism.models
    ]
    assert not holes


@pytest.mark.timeout(COLLECT_S)
@pytest.mark.parametrize("model", EVERY)
def test_served_mechanisms_have_a_test(model: str, tmp_path: Path) -> None:
    """A model does not serve a mechanism that it has no test of."""
    spec = loaded(model, EVERY[model].least(tmp_path / model), "float32", reader=SHAPES).spec
    served = {
        name: mechanism.is_served(spec)
        for name, mechanism in MECHANISMS.items()
        if mechanism.is_served
    }
    assert served == {name: model in MECHANISMS[name].models for name in served}


@pytest.mark.timeout(COLLECT_S)
def test_each_family_meets_each_mechanism_in_the_gate() -> None:
    nightly = [
        (model, name)
        for name, mechanism in MECHANISMS.items()
        for model, is_in_gate in mechanism.models.items()
        if model in SUITE.keys() - DERIVED.keys() and not is_in_gate and name not in COSTLY
    ]
    assert not nightly


def test_page_matches_the_collected_tests() -> None:
    assert PAGE.read_text() == page(), "python -m tests.families.test_matrix"


def test_a_case_names_the_longest_model() -> None:
    """A variant's name begins with its family's."""
    assert models_of("float32-flux-fill") == ["flux-fill"]
    assert models_of("flux-two at once") == ["flux"]
    assert models_of("wan2.1-14b") == ["wan"]
    assert models_of("experts") == []


if __name__ == "__main__":
    PAGE.write_text(page())
