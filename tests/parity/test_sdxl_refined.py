"""SDXL's base and refiner in one job compared with diffusers' two pipelines, chained by latents.

Bounds as in tests/parity/test_sdxl.py: latents of each step to a relative 1e-4, images to 60 dB and
two grey levels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import diffusers
import numpy as np
import pytest
import torch
from PIL import Image

from models import registry
from models.checkpoint.folder import CheckpointError
from models.interface.pipeline import PyTree
from models.spec.request import RequestError
from tests import coarse
from tests.models.sdxl.original_writer import write_refiner
from tests.parity.distances import png, psnr_db, relative
from tests.parity.programs import Programs
from tests.parity.sdxl_cases import BASE, CHECKPOINTS, EXACT, MASK, PICTURE, SEED
from tests.parity.step_latents import StepLatents
from tests.parity.tiny_sdxl import SCHEDULER, make_refiner, make_sdxl

# diffusers triggers NumPy's deprecation of torch tensors without the new `__array__` signature.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")

Drawn = tuple[list[np.ndarray], np.ndarray]
ODD = CHECKPOINTS["odd refiner"].arguments
MAKERS: Mapping[str, tuple[Callable[[Path], Path], Callable[[Path], Path]]] = {
    "plain": (make_sdxl, make_refiner),
    "odd": (
        CHECKPOINTS["deep"].make,
        lambda folder: make_refiner(
            folder,
            **{
                **ODD,
                "scheduler": diffusers.DDIMScheduler(
                    **SCHEDULER,
                    clip_sample=False,
                    set_alpha_to_one=False,
                    prediction_type="v_prediction",
                ),
            },
        ),
    ),
    "two bases": (make_sdxl, lambda folder: make_sdxl(folder, seed=20)),
}
"""Pairs of base and refiner, some with different networks or prediction types."""


@dataclass(frozen=True)
class Case:
    """Request, with the arguments that differ in diffusers."""

    checkpoint: str = "plain"
    fields: Mapping[str, Any] = field(default_factory=dict)
    switch: float = 0.8
    scheduler: str = ""
    image: Image.Image | None = None


STEPS = {"num_inference_steps": 7}
SCORED = {
    "original_size": [33, 1170],
    "crops_coords_top_left": [5, 917],
    "negative_original_size": [64, 20],
    "negative_crops_coords_top_left": [9, 2],
    "aesthetic_score": 7.25,
    "negative_aesthetic_score": 1.5,
    "negative_prompt": "a blue square",
}


def by(cls: str, name: str, switch: float, **more: Any) -> Case:
    return Case(fields={"scheduler": {"name": name, **more}}, scheduler=cls, switch=switch)


CASES: Mapping[str, Case] = {
    "at the default": Case(),
    "scores, sizes, four prompts": Case(
        fields={**SCORED, "prompt_2": "the yellow triangle", "clip_skip": 1}, switch=0.5
    ),
    "unguided": Case(fields={"guidance_scale": 1.0}, switch=0.4),
    "guidance rescaled": Case(fields={"guidance_rescale": 0.4}, switch=0.6),
    "all steps are the refiner's": Case(switch=0.001),
    "all steps are the base's": Case(switch=0.9999),
    "multistep": by("DPMSolverMultistepScheduler", "dpmpp_2m", 0.6),
    "karras": by("EulerDiscreteScheduler", "euler", 0.6, use_karras_sigmas=True),
    "unipc": by("UniPCMultistepScheduler", "unipc", 0.5),
    "noise in every step": by("EulerAncestralDiscreteScheduler", "euler_ancestral", 0.6),
    "lcm": by("LCMScheduler", "lcm", 0.6),
    "from an image": Case(fields={"strength": 0.7}, switch=0.7, image=PICTURE),
    "own timesteps": Case(fields={"timesteps": [901, 640, 333, 20]}, switch=0.5),
    "odd": Case("odd", {"width": 24, "height": 56}, switch=0.6),
    "odd, from an image": Case(
        "odd", {**SCORED, "strength": 0.8, "width": 24, "height": 56}, 0.6, image=PICTURE
    ),
    "two bases": Case("two bases", {"prompt_2": "the yellow triangle"}, switch=0.6),
}
OURS_ALONE = ("aesthetic_score", "negative_aesthetic_score")


class Pair:
    """Base and refiner, loaded by diffusers and by Atelier."""

    def __init__(self, root: Path, name: str) -> None:
        base, refiner = MAKERS[name]
        self.base, self.refiner = base(root / "base"), refiner(root / "refiner")

    @cached_property
    def programs(self) -> Programs:
        with coarse.compiled():
            loaded = registry.load("tiny", str(self.base), "float32", {}, refiner=str(self.refiner))
        return Programs(loaded, coarse.OPTIONS)

    def run_atelier(
        self, case: Case, spoil: Callable[[PyTree], PyTree] = lambda row: row, **more: Any
    ) -> Drawn:
        fields = BASE | STEPS | dict(case.fields) | {"refiner": {"switch": case.switch}} | more
        images = {} if case.image is None else {"image": png(case.image)}
        prepared = self.programs.pipeline.prepare(fields, images)
        return self.programs.drawn(prepared, spoil=spoil)

    def run_diffusers(self, case: Case) -> Drawn:
        """Run both pipelines with the base's autoencoder and one generator."""
        from_image = diffusers.StableDiffusionXLImg2ImgPipeline
        kind = diffusers.StableDiffusionXLPipeline if case.image is None else from_image
        base = kind.from_pretrained(self.base)
        refiner = from_image.from_pretrained(self.refiner, vae=base.vae)
        arguments = {
            name: tuple(value) if name.endswith(("size", "left")) else value
            for name, value in (BASE | STEPS | dict(case.fields)).items()
            if name not in ("seed", "scheduler")
        }
        size = arguments.pop("width"), arguments.pop("height")
        latents = StepLatents()

        for pipeline in (base, refiner):
            pipeline.set_progress_bar_config(disable=True)
            if case.scheduler:
                options = {
                    n: option for n, option in case.fields["scheduler"].items() if n != "name"
                }
                scheduler = getattr(diffusers, case.scheduler)
                pipeline.scheduler = scheduler.from_config(pipeline.scheduler.config, **options)
        common = {
            "generator": torch.Generator("cpu").manual_seed(SEED),
            "callback_on_step_end": latents.keep,
        }
        first = {name: value for name, value in arguments.items() if name not in OURS_ALONE}
        if case.image is None:
            first |= dict(zip(("width", "height"), size, strict=True))
        else:
            first["image"] = case.image.resize(size, Image.Resampling.LANCZOS)
        intermediate = base(
            **first, **common, denoising_end=case.switch, output_type="latent"
        ).images
        arguments_of_refiner = {
            name: value for name, value in arguments.items() if name != "strength"
        }
        output = refiner(
            **arguments_of_refiner, **common, image=intermediate, denoising_start=case.switch
        )
        return latents, np.asarray(output.images[0])


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Pair]:
    return cache(lambda name: Pair(tmp_path_factory.mktemp("refined"), name))


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_base_and_refiner_match_diffusers(
    pairs: Callable[[str], Pair], case: Case, record_property: Any
) -> None:
    pair = pairs(case.checkpoint)
    (latents, image), (diffusers_latents, diffusers_picture) = (
        pair.run_atelier(case),
        pair.run_diffusers(case),
    )
    gaps = [relative(a, b) for a, b in zip(latents, diffusers_latents, strict=True)]
    levels = np.abs(image.astype(int) - diffusers_picture).max()
    record_property("latents_relative", max(gaps))
    record_property("psnr_db", psnr_db(image, diffusers_picture))
    print(f"latents {max(gaps):.1e}, {psnr_db(image, diffusers_picture):.1f} dB, {levels}")
    assert max(gaps) <= EXACT.relative, gaps
    assert psnr_db(image, diffusers_picture) >= EXACT.psnr_db
    assert levels <= EXACT.grey_levels
    assert diffusers_picture.std() > 10, "a flat image proves nothing"


def test_each_network_has_its_share_of_the_steps(pairs: Callable[[str], Pair]) -> None:
    pipeline = pairs("plain").programs.pipeline
    fields = BASE | STEPS | {"refiner": {}}
    networks = [step.program.network for step in pipeline.prepare(fields, {}).steps]
    assert networks == ["unet"] * 5 + ["refiner"] * 2
    unrefined = pipeline.prepare(fields | {"refiner": {"switch": 1.0}}, {})
    plain = pipeline.prepare(BASE | STEPS, {})
    assert {step.program.network for step in unrefined.steps} == {"unet"}
    assert (unrefined.bucket, unrefined.inputs.keys()) == (plain.bucket, plain.inputs.keys())


def assert_far(output: Drawn, expected: Drawn) -> None:
    """Assert that both bounds are exceeded tenfold."""
    assert max(map(relative, output[0], expected[0])) > 10 * EXACT.relative
    assert psnr_db(output[1], expected[1]) < EXACT.psnr_db - 10


@pytest.mark.parametrize("other", [0.4, 0.999])
def test_other_switch_step_breaks_parity(pairs: Callable[[str], Pair], other: float) -> None:
    pair = pairs("plain")
    assert_far(
        pair.run_atelier(CASES["at the default"], refiner={"switch": other}),
        pair.run_diffusers(Case()),
    )


@pytest.mark.parametrize("leaf", ["prompt_embeds", "pooled_embeds", "time_ids"])
def test_refiner_conditioning_changes_the_image(pairs: Callable[[str], Pair], leaf: str) -> None:
    pair, name, case = pairs("plain"), f"refiner_{leaf}", Case(switch=0.2)
    spoiled = pair.run_atelier(case, lambda row: {**row, name: row[name][::-1]})
    assert_far(spoiled, pair.run_diffusers(case))


def test_continued_multistep_history_fails(pairs: Callable[[str], Pair]) -> None:
    """The refiner's first step ignores the base's history, like diffusers' second scheduler."""
    pair, case = pairs("plain"), CASES["multistep"]
    pipeline = pair.programs.pipeline
    fields = BASE | STEPS | dict(case.fields) | {"refiner": {"switch": case.switch}}
    refined, plain = (
        pipeline.prepare(request_fields, {})
        for request_fields in (
            fields,
            {name: value for name, value in fields.items() if name != "refiner"},
        )
    )
    switch_step = sum(step.program.network == "unet" for step in refined.steps)
    values = [
        prepared.steps[switch_step].values["solver.difference_1"] for prepared in (refined, plain)
    ]
    assert values[0] == 0 != values[1]


def test_single_refiner_file_matches_diffusers(
    pairs: Callable[[str], Pair], tmp_path: Path
) -> None:
    pair = pairs("plain")
    (tmp_path / "refiner").symlink_to(pair.refiner)
    file = write_refiner(pair.refiner, tmp_path / "refiner.safetensors")
    loaded = registry.load("tiny", str(pair.base), "float32", {}, refiner=str(file))
    for name in ("refiner", "refiner_clip_2"):
        output, expected = (
            getattr(source.weights, name) for source in (loaded, pair.programs.pipeline)
        )
        assert _equal(output, expected)


def _equal(a: Any, b: Any) -> bool:
    import jax

    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return all(np.array_equal(x, y) for x, y in pairs)


def test_a_mask_leaves_the_refiner_out(pairs: Callable[[str], Pair]) -> None:
    pipeline = pairs("plain").programs.pipeline
    images = {"image": png(PICTURE), "mask_image": png(MASK)}
    prepared = pipeline.prepare(BASE | {"refiner": {}, "strength": 0.9}, images)
    assert {step.program.network for step in prepared.steps} == {"unet"}
    assert pipeline.spec.needs["refiner"][0].among == ("text-to-image", "image-to-image")


def test_missing_refiner_names_the_setting(
    pairs: Callable[[str], Pair],
) -> None:
    plain = registry.load("tiny", str(pairs("plain").base), "float32", {})
    assert "refiner" not in plain.spec.fields
    assert plain.spec.fingerprint != pairs("plain").programs.pipeline.spec.fingerprint
    with pytest.raises(RequestError, match="refiner: this model has no refiner"):
        plain.prepare(BASE | {"refiner": {}}, {})


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"vae": {"scaling_factor": 0.2}}, r"vae scaling_factor is 0\.2, but the model's is 0\.13"),
        (
            {"scheduler": diffusers.EulerDiscreteScheduler(**{**SCHEDULER, "beta_end": 0.02})},
            r"beta_end is 0\.02, but the model's is 0\.012",
        ),
        ({"unet": {"time_cond_proj_dim": 8}}, "the refiner has distilled guidance"),
        ({"unet": {"in_channels": 9}}, "in_channels is 9"),
    ],
)
def test_a_refiner_that_does_not_fit_is_refused_by_name(
    pairs: Callable[[str], Pair], tmp_path: Path, change: dict[str, Any], named: str
) -> None:
    other = make_refiner(tmp_path / "other", **change)
    with pytest.raises(CheckpointError, match=rf"refiner: .*{named}"):
        registry.load("tiny", str(pairs("plain").base), "float32", {}, refiner=str(other))
