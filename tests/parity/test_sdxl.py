"""SDXL compared with diffusers' pipelines in the same process, on small checkpoints of odd shapes.

Bounds: latents of each step to a relative 1e-4, images to 60 dB and two grey levels. On these
checkpoints rounding (float32 against float64) stays above 76 dB, and a wrong term below 50. The
largest errors are those of zero terminal SNR (tests/parity/test_schedulers.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import diffusers
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from jax import Array
from PIL import Image

from models import registry
from models.interface import solver_step
from models.interface.pipeline import PreparedRow, PyTree, denoise
from models.interface.step_program import StepProgram
from models.sampling.guidance import of_first_prompt
from models.sdxl.compatibility import SCORE
from models.sdxl.conditioning import guidance_embedding
from models.sdxl.pipeline import SdxlNetworks, SdxlPipeline
from models.spec.request import RequestError
from tests import coarse
from tests.parity.distances import png, psnr_db, relative
from tests.parity.sdxl_cases import (
    BASE,
    CHECKPOINTS,
    DPM,
    EXACT,
    IMAGES,
    MASK,
    MASKS,
    NIGHTLY,
    PICTURE,
    REFINED,
    SCHEDULERS,
    SEED,
    WORDS,
    Case,
    Checkpoint,
)
from tests.parity.step_latents import StepLatents

# diffusers triggers NumPy's deprecation of torch tensors without the new `__array__` signature.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")

UNREAD = ("denoised", "history", "clean", "noise")
"""Entries of a row that the UNet does not read."""
TOLD = ("timestep", "input_scale", "guidance_scale", "guidance_rescale")
"""Values of a step that the UNet and guidance read."""


@dataclass(frozen=True)
class Result:
    latents: list[np.ndarray]
    """Latents after each step, [h, w, c]."""
    image: np.ndarray


AS_USERS = (WORDS["four prompts"], IMAGES["default strength"], MASKS["full strength"])
"""Cases whose programs are compiled with production options; all others compile coarsely."""


@pytest.fixture(scope="module", autouse=True)
def compiled_coarsely() -> None:
    """Override the folder's fixture: compile options depend on the case."""


class AtelierRunner:
    """Programs of a pipeline, with UNet and scheduler compiled separately.

    Args:
        options: of the compiler; None for production options.
    """

    def __init__(self, pipeline: SdxlPipeline, options: Mapping[str, Any] | None) -> None:
        self.pipeline = pipeline
        jit = partial(jax.jit, compiler_options=None if options is None else dict(options))
        self._encode, self._decode = jit(pipeline.encode), jit(pipeline.decode)
        self._predict = jit(self._guided)
        self._advance = jit(pipeline.advance, static_argnums=0)

    def __call__(
        self, prepared: PreparedRow, change: Callable[[PyTree], PyTree] = lambda row: row
    ) -> Result:
        """Run the loop of `models.interface.pipeline.denoise`; `change` modifies the first row."""
        row = change(self._begin(prepared.inputs))
        latents = []
        for step in prepared.steps:
            values = {name: np.asarray(value)[None] for name, value in step.values.items()}
            rows = self._step(step.program, jax.tree.map(lambda leaf: leaf[None], row), values)
            row = jax.tree.map(lambda leaf: leaf[0], rows)
            latents.append(np.asarray(row["latents"]))
        return Result(latents, np.asarray(self._decode(self.pipeline.weights, row)))

    def _begin(self, inputs: Mapping[str, np.ndarray]) -> PyTree:
        """Run `pipeline.encode`, compiled once for all schedulers' histories."""
        other_inputs = {
            n: leaf for n, leaf in inputs.items() if not n.startswith(solver_step.HISTORY)
        }
        row = self._encode(self.pipeline.weights, other_inputs)
        row["history"] = solver_step.history(inputs, row["latents"])
        return row

    def _step(self, program: StepProgram, rows: PyTree, values: Mapping[str, np.ndarray]) -> PyTree:
        """Run `pipeline.step` in two halves, so the UNet compiles once for all schedulers."""
        unread = UNREAD if "masked" in rows else (*UNREAD, "mask")
        unet_rows = {name: leaf for name, leaf in rows.items() if name not in unread}
        if not program.guided:
            unet_rows = of_first_prompt(unet_rows, *SdxlPipeline.PROMPTS)
        unet_values = {name: value for name, value in values.items() if name in TOLD}
        output = self._predict(self.pipeline.weights, unet_rows, unet_values)
        return {**rows, **self._advance(program, rows, output, values)._asdict()}

    def _guided(self, weights: SdxlNetworks, rows: PyTree, values: Mapping[str, Array]) -> Array:
        """Any step program gives the same result: their differences do not affect the UNet."""
        output = self.pipeline.predict(StepProgram("unet"), weights, rows, values, None, None)
        return self.pipeline.guide(output, values)


class Pair:
    """One checkpoint, loaded by diffusers and by Atelier. Each of Atelier's programs compiles
    once.
    """

    def __init__(self, folder: Path, checkpoint: Checkpoint) -> None:
        self.folder = checkpoint.make(folder)
        self.reference = diffusers.DiffusionPipeline.from_pretrained(self.folder)
        with coarse.compiled():
            loaded = registry.load("tiny", str(self.folder), "float32", {})
        assert isinstance(loaded, SdxlPipeline)
        self.pipeline = loaded
        self.atelier, self.as_users = (
            AtelierRunner(loaded, coarse.OPTIONS),
            AtelierRunner(loaded, None),
        )

    def prepare(self, case: Case) -> PreparedRow:
        pictures = {"image": case.image, "mask_image": case.mask}
        images = {name: png(image) for name, image in pictures.items() if image is not None}
        return self.pipeline.prepare(BASE | dict(case.fields), images)

    def run_diffusers(self, case: Case) -> Result:
        pipeline = self._diffusers_pipeline(case)
        latents = StepLatents()

        output = pipeline(
            **self._diffusers_arguments(case),
            generator=torch.Generator("cpu").manual_seed(SEED),
            callback_on_step_end=latents.keep,
        )
        return Result(latents, np.asarray(output.images[0]))

    def _diffusers_pipeline(self, case: Case) -> Any:
        kind = {
            (False, False): diffusers.StableDiffusionXLPipeline,
            (True, False): diffusers.StableDiffusionXLImg2ImgPipeline,
            (True, True): diffusers.StableDiffusionXLInpaintPipeline,
        }[case.image is not None, case.mask is not None]
        config = self.reference.config
        pipeline = kind(
            **self.reference.components,
            force_zeros_for_empty_prompt=config.force_zeros_for_empty_prompt,
            **({SCORE: True} if config.get(SCORE) else {}),
        )
        if case.scheduler:
            options = dict(case.fields["scheduler"])
            del options["name"]
            pipeline.scheduler = getattr(diffusers, case.scheduler).from_config(
                pipeline.scheduler.config, **options, **case.reference_options
            )
        pipeline.set_progress_bar_config(disable=True)
        return pipeline

    def _diffusers_arguments(self, case: Case) -> dict[str, Any]:
        fields = BASE | dict(case.fields)
        arguments = {
            name: tuple(value) if name.endswith(("size", "left")) else value
            for name, value in fields.items()
            if name not in ("seed", "scheduler")
        }
        if case.image is not None and case.mask is None:
            # Only this pipeline uses the size of its image.
            size = arguments.pop("width"), arguments.pop("height")
            arguments["image"] = case.image.resize(size, Image.Resampling.LANCZOS)
        elif case.image is not None:
            arguments |= {"image": case.image, "mask_image": case.mask}
        return arguments


class Pairs(dict[str, Pair]):
    """Pairs by checkpoint, each made on first access."""

    def __init__(self, root: Path) -> None:
        super().__init__()
        self.root = root

    def __missing__(self, name: str) -> Pair:
        self[name] = Pair(self.root / str(len(self)), CHECKPOINTS[name])
        return self[name]


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Pairs:
    return Pairs(tmp_path_factory.mktemp("sdxl"))


def assert_same(pairs: Pairs, case: Case, record: Any) -> None:
    pair = pairs[case.checkpoint]
    run = pair.as_users if any(case is other for other in AS_USERS) else pair.atelier
    output, expected = run(pair.prepare(case)), pair.run_diffusers(case)
    steps = [relative(a, b) for a, b in zip(output.latents, expected.latents, strict=True)]
    levels = np.abs(output.image.astype(int) - expected.image).max()
    decibels = psnr_db(output.image, expected.image)
    record("latents_relative", max(steps))
    record("psnr_db", decibels)
    print(f"latents {max(steps):.1e}, {decibels:.1f} dB, {levels}")
    assert max(steps) <= EXACT.relative, steps
    assert decibels >= EXACT.psnr_db
    assert levels <= EXACT.grey_levels
    assert expected.image.std() > 10, "a flat image proves nothing"


@pytest.mark.parametrize("case", SCHEDULERS.values(), ids=SCHEDULERS)
def test_schedulers(pairs: Pairs, case: Case, record_property: Any) -> None:
    assert_same(pairs, case, record_property)


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore:__array_wrap__:DeprecationWarning")
@pytest.mark.parametrize("case", NIGHTLY.values(), ids=NIGHTLY)
def test_more_schedulers(pairs: Pairs, case: Case, record_property: Any) -> None:
    assert_same(pairs, case, record_property)


@pytest.mark.parametrize("case", WORDS.values(), ids=WORDS)
def test_text_to_image(pairs: Pairs, case: Case, record_property: Any) -> None:
    assert_same(pairs, case, record_property)


@pytest.mark.parametrize("case", IMAGES.values(), ids=IMAGES)
def test_image_to_image(pairs: Pairs, case: Case, record_property: Any) -> None:
    assert_same(pairs, case, record_property)


@pytest.mark.parametrize("case", MASKS.values(), ids=MASKS)
def test_inpainting(pairs: Pairs, case: Case, record_property: Any) -> None:
    assert_same(pairs, case, record_property)


@pytest.mark.parametrize("case", REFINED.values(), ids=REFINED)
def test_refiners(pairs: Pairs, case: Case, record_property: Any) -> None:
    assert_same(pairs, case, record_property)


@pytest.mark.parametrize("name", ["aesthetic_score", "negative_aesthetic_score"])
def test_other_score_breaks_parity(pairs: Pairs, name: str) -> None:
    pair, right = pairs["refiner"], REFINED["a refiner, scores and sizes"]
    default = replace(right, fields={n: v for n, v in right.fields.items() if n != name})
    assert_far(pair.atelier(pair.prepare(default)), pair.run_diffusers(right))


def test_wrong_negative_crop_breaks_parity(pairs: Pairs) -> None:
    """The crop affects a refiner, but not a base model with an image."""
    name, of_prompt = "negative_crops_coords_top_left", "crops_coords_top_left"
    pair, right = pairs["refiner"], REFINED["a refiner, scores and sizes"]
    wrong = replace(right, fields={**right.fields, name: right.fields[of_prompt]})
    assert_far(pair.atelier(pair.prepare(wrong)), pair.run_diffusers(right))


def test_the_plain_loop_over_whole_steps(pairs: Pairs) -> None:
    """The engine passes history and noise with the inputs of `encode`."""
    case = Case("lcm", {"num_inference_steps": 3, "guidance_scale": 3.0, "width": 16, "height": 16})
    case = replace(
        case,
        fields=case.fields
        | {"scheduler": {"name": "dpmpp_2m_sde", "algorithm_type": "sde-dpmsolver++"}},
        scheduler=DPM,
    )
    pair = pairs["lcm"]
    with coarse.compiled():
        *_, row = denoise(pair.pipeline, pair.prepare(case))
    assert (
        relative(np.asarray(row["latents"]), pair.run_diffusers(case).latents[-1]) <= EXACT.relative
    )


def assert_far(output: Result, expected: Result) -> None:
    """Assert that both bounds are exceeded tenfold, beyond any plausible tolerance."""
    assert max(map(relative, output.latents, expected.latents)) > 10 * EXACT.relative
    assert psnr_db(output.image, expected.image) < EXACT.psnr_db - 10


def test_wrong_pooled_text_breaks_parity(pairs: Pairs) -> None:
    pair = pairs["base"]
    prepared = pair.prepare(Case())
    ids, clip = prepared.inputs["ids"], pair.reference.text_encoder
    with torch.no_grad():
        wrong = clip(torch.tensor(ids, dtype=torch.long)).pooler_output.numpy()

    def swap(row: PyTree) -> PyTree:
        right = row["pooled_embeds"]
        return {**row, "pooled_embeds": jnp.asarray(wrong[:, : right.shape[1]]).at[1].set(0)}

    assert_far(pair.atelier(prepared, swap), pair.run_diffusers(Case()))


def test_last_hidden_layer_breaks_parity(pairs: Pairs) -> None:
    pair = pairs["base"]
    prepared = pair.prepare(Case())
    last = {**prepared.inputs, "layers": np.zeros_like(prepared.inputs["layers"])}
    assert_far(pair.atelier(replace(prepared, inputs=last)), pair.run_diffusers(Case()))


@pytest.mark.parametrize("name", ["crops_coords_top_left", "original_size"])
def test_swapped_coordinates_break_parity(pairs: Pairs, name: str) -> None:
    pair, right = pairs["base"], WORDS["sizes"]
    swapped = replace(right, fields={**right.fields, name: right.fields[name][::-1]})
    assert_far(pair.atelier(pair.prepare(swapped)), pair.run_diffusers(right))


def test_the_guidance_embedding_is_the_references(pairs: Pairs) -> None:
    for scale in (1.0, 4.4, 7.5, 8.25):
        expected = pairs["lcm"].reference.get_guidance_scale_embedding(
            torch.tensor([scale - 1]), 11
        )
        np.testing.assert_allclose(guidance_embedding(scale, 11), expected[0].numpy(), atol=1e-6)


def test_alpha_is_composited_on_white_and_palettes_are_expanded(pairs: Pairs) -> None:
    """diffusers' `load_image` drops alpha instead, and keeps colours that are never visible."""
    pair, right = pairs["base"], MASKS["full strength"]
    alpha = PICTURE.convert("RGBA")
    alpha.putalpha(MASK.convert("L").resize(PICTURE.size))
    assert right.mask is not None
    palette = right.mask.quantize(8)
    network_inputs = pair.prepare(replace(right, image=alpha, mask=palette)).inputs
    white = Image.alpha_composite(Image.new("RGBA", alpha.size, "white"), alpha).convert("RGB")
    plain = pair.prepare(replace(right, image=white, mask=palette.convert("RGB"))).inputs
    for name in ("image", "mask"):
        np.testing.assert_array_equal(network_inputs[name], plain[name])


@pytest.mark.parametrize(
    ("case", "named"),
    [
        (Case("inpainting"), "mask_image"),
        (Case("refiner"), "image"),
        (Case("inpainting", image=PICTURE), "mask_image"),
        (Case(mask=MASK), "image"),
        (Case(fields={"strength": 0.1}, image=PICTURE), "strength"),
        (Case(fields={"clip_skip": 3}), "clip_skip"),
        (Case(fields={"scheduler": {"name": "restart"}}), "scheduler.name"),
        (Case(fields={"scheduler": {"name": "ddim"}, "sigmas": [1.0, 0.0]}), "sigmas"),
        (Case(fields={"width": 47}), "width"),
    ],
)
def test_invalid_field_is_named(pairs: Pairs, case: Case, named: str) -> None:
    with pytest.raises(RequestError) as error:
        pairs[case.checkpoint].prepare(case)
    assert error.value.field == named
