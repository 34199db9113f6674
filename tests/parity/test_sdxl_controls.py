"""SDXL with ControlNets and unions compared with diffusers' pipelines, in float32.

Bounds as in test_sdxl.py: latents of each step to a relative 1e-4, images to 60 dB and two levels.
diffusers supports several unions per request, or several plain ControlNets, but no mixture. It runs
several images of one union in one pass, like Atelier.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import diffusers
import jax
import numpy as np
import pytest
import torch
from diffusers import ControlNetModel, ControlNetUnionModel
from PIL import Image

from models.interface.pipeline import Pipeline, denoise
from models.loading.sources import ControlSource, Reading
from models.sdxl.load import load
from tests.parity.distances import png, psnr_db, relative
from tests.parity.sdxl_cases import (
    BASE,
    CHECKPOINTS,
    EXACT,
    MASK,
    PICTURE,
    SEED,
    Checkpoint,
    noise_picture,
)
from tests.parity.step_latents import StepLatents
from tests.parity.test_sdxl import Result, assert_far
from tests.parity.tiny_sdxl import make_control

# diffusers triggers NumPy's deprecation of torch tensors without the new `__array__` signature.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")

ODD_UNET = {**CHECKPOINTS["deep"].arguments["unet"], "layers_per_block": 2}
MADE = {
    **CHECKPOINTS,
    "odd": Checkpoint({**CHECKPOINTS["deep"].arguments, "unet": ODD_UNET}),
}
"""Checkpoints; diffusers' ControlNets have equally many blocks in each level."""
MODES = {
    **{name: ("union", mode) for name, mode in {"openpose": 0, "hed": 2, "normal": 4}.items()},
    "scribble": ("another", 2),
}
"""Names of unions' controls, with the checkpoint and the kind."""
HINTS = [noise_picture(90, 70, 1), noise_picture(31, 57, 2), noise_picture(48, 40, 3)]
NETS: dict[str, dict[str, dict[str, Any]]] = {
    "base": {
        "folder": {},
        "file": {},
        "low": {"down_block_types": ("DownBlock2D",) * 2, "mid_block_type": "UNetMidBlock2D"},
        "union": {"num_control_type": 6, "num_trans_head": 2},
        "another": {"num_control_type": 4, "num_trans_head": 4},
    },
    "odd": {
        "folder": {"transformer_layers_per_block": (0, 0, 0)},
        "file": {},
        "low": {"controlnet_conditioning_channel_order": "bgr"},
        "union": {"num_control_type": 5, "num_trans_head": 3, "num_trans_layer": 2},
    },
    "inpainting": {"folder": {}, "file": {}, "union": {"num_control_type": 6, "num_trans_head": 4}},
}
"""Config overrides of ControlNets by checkpoint and name."""
SHAPES: dict[str, dict[str, Any]] = {
    "base": {},
    "odd": {
        "block_out_channels": (9, 18, 15),
        "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D", "DownBlock2D"),
        "layers_per_block": 2,
        "transformer_layers_per_block": (1, 2, 1),
        "attention_head_dim": (1, 2, 3),
        "use_linear_projection": False,
        "norm_num_groups": 3,
        "conditioning_embedding_out_channels": (3, 5, 4),
    },
    "inpainting": {},
}


@dataclass(frozen=True)
class Case:
    """Request: controls by name, each with its scale and its share of the steps."""

    control: tuple[tuple[str, float, float, float], ...]
    checkpoint: str = "base"
    fields: Mapping[str, Any] = field(default_factory=dict)
    image: Image.Image | None = None
    mask: Image.Image | None = None
    hints: Sequence[Image.Image] = tuple(HINTS)


ALL = (0.0, 1.0)
TWO = (("folder", 0.7, 0.0, 0.6), ("file", 0.5, *ALL))
UNIONS = (("openpose", 0.8, 0.3, 1.0), ("normal", 0.4, 0.0, 0.7))
THREE = (("normal", 0.5, 0.0, 0.6), ("openpose", 0.8, 0.2, 1.0), ("hed", 0.3, *ALL))
APART = (("openpose", 0.8, 0.0, 0.3), ("normal", 0.6, 0.7, 1.0))
SMALL = {"width": 24, "height": 56}
CASES: dict[str, Case] = {
    "one": Case((("file", 1.0, *ALL),)),
    "two, one of which ends early": Case(TWO),
    "three, each in a share of its own": Case(
        (("low", 0.9, 0.2, 0.8), ("folder", 0.7, 0.0, 0.35), ("file", 0.6, 0.5, 1.0))
    ),
    "the same one twice": Case((("folder", 0.7, *ALL), ("folder", 0.3, 0.4, 1.0))),
    "without guidance": Case(TWO, fields={"guidance_scale": 1.0}),
    "odd": Case((*TWO, ("low", 0.5, 0.2, 0.9)), "odd", SMALL),
    "from an image": Case(TWO, image=PICTURE, fields={"strength": 0.7}),
    "odd, from an image": Case(TWO, "odd", {**SMALL, "strength": 0.8}, PICTURE),
    "inpainting": Case(TWO, image=PICTURE, mask=MASK, fields={"strength": 0.9999}),
    "inpainting by channels": Case(TWO, "inpainting", {"strength": 1.0}, PICTURE, MASK),
    "union": Case((("hed", 0.8, 0.2, 0.8),)),
    "two unions": Case((UNIONS[0], ("scribble", 0.6, 0.0, 0.5))),
    "two of a union": Case(UNIONS),
    "three of a union": Case(THREE),
    "two of a union at full strength": Case((("normal", 1.0, *ALL), ("hed", 1.0, *ALL))),
    "of a union, one kind twice": Case((("hed", 0.8, *ALL), ("hed", 0.5, 0.0, 0.5))),
    "of a union, one of no strength": Case((("openpose", 0.0, *ALL), ("hed", 0.7, *ALL))),
    "two of a union, neither in the middle": Case(APART),
    "two of a union, without guidance": Case(UNIONS, fields={"guidance_scale": 1.0}),
    "odd union": Case((("hed", 0.8, *ALL),), "odd", SMALL),
    "two of an odd union": Case(UNIONS, "odd", SMALL),
    "three of an odd union": Case(THREE, "odd", SMALL),
    "union, from an image": Case(UNIONS[:1], image=PICTURE, fields={"strength": 0.7}),
    "two of a union, from an image": Case(UNIONS, image=PICTURE, fields={"strength": 0.7}),
    "three of an odd union, from an image": Case(THREE, "odd", {**SMALL, "strength": 0.8}, PICTURE),
    "two of a union, inpainting": Case(
        UNIONS, image=PICTURE, mask=MASK, fields={"strength": 0.9999}
    ),
}


class Pair:
    """A checkpoint with its ControlNets, loaded by diffusers and by Atelier."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder = MADE[name].make(folder / "sdxl")
        self.nets: dict[str, Any] = {
            net: make_control(folder / net, self.folder, seed, **{**SHAPES[name], **config})
            for seed, (net, config) in enumerate(NETS[name].items(), 5)
        }
        file = folder / "file" / "diffusion_pytorch_model.safetensors"
        places = {net: str(folder / net) for net in self.nets} | {"file": str(file)}
        self.atelier = loaded(self.folder, places)

    def result(self, case: Case) -> Result:
        prepared = self.atelier.prepare(fields_of(case), images_of(case))
        _, *rows = denoise(self.atelier, prepared)
        pixels = jax.jit(self.atelier.decode)(self.atelier.weights, rows[-1])
        return Result([np.asarray(row["latents"]) for row in rows], np.asarray(pixels))

    def run_diffusers(self, case: Case, *, each_alone: bool = False) -> Result:
        """Generate with diffusers.

        Args:
            each_alone: run each image of one union separately.
        """
        nets = [self.net(name) for name, *_ in case.control]
        is_single = len(nets) == 1 or (len({*map(id, nets)}) == 1 and not each_alone)
        controlnet = nets[0] if case.control[0][0] in MODES and is_single else nets
        pipeline = diffusers_pipeline(case).from_pretrained(self.folder, controlnet=controlnet)
        pipeline.set_progress_bar_config(disable=True)
        latents = StepLatents()

        output = pipeline(
            **diffusers_arguments(case),
            generator=torch.Generator("cpu").manual_seed(SEED),
            callback_on_step_end=latents.keep,
        )
        return Result(latents, np.asarray(output.images[0]))

    def net(self, name: str) -> ControlNetModel | ControlNetUnionModel:
        return self.nets[MODES[name][0] if name in MODES else name]


def loaded(folder: Path, places: Mapping[str, str]) -> Pipeline:
    """Load Atelier's pipeline; plain ControlNets have their own name, unions those of their
    modes.
    """
    unions = {union for union, _ in MODES.values()}
    sources = {net: ControlSource(path) for net, path in places.items() if net not in unions}
    sources |= {
        mode: ControlSource(places[union], mode)
        for mode, (union, _) in MODES.items()
        if union in places
    }
    return load("sdxl", folder, "float32", {}, reading=Reading(controls=sources, max_controls=3))


def fields_of(case: Case) -> dict[str, Any]:
    names = ("name", "scale", "start", "end")
    control = [dict(zip(names, entry, strict=True)) for entry in case.control]
    return {**BASE, **case.fields, "control": control}


def images_of(case: Case) -> dict[str, bytes]:
    hints = {f"control.{i}.image": image for i, image in enumerate(case.hints[: len(case.control)])}
    files = {"image": case.image, "mask_image": case.mask, **hints}
    return {name: png(source) for name, source in files.items() if source is not None}


def diffusers_pipeline(case: Case) -> Any:
    union = "Union" if case.control[0][0] in MODES else ""
    task = "" if case.image is None else "Img2Img" if case.mask is None else "Inpaint"
    return getattr(diffusers, f"StableDiffusionXLControlNet{union}{task}Pipeline")


def diffusers_arguments(case: Case) -> dict[str, Any]:
    """Arguments of diffusers' call; text-to-image with plain ControlNets names control images
    `image`.
    """
    arguments = {name: value for name, value in {**BASE, **case.fields}.items() if name != "seed"}
    images = {"image": case.image, "mask_image": case.mask}
    arguments |= {name: image for name, image in images.items() if image is not None}
    names, scales, starts, ends = zip(*case.control, strict=True)
    is_union = names[0] in MODES
    if is_union:
        arguments["control_mode"] = [MODES[name][1] for name in names]
    return arguments | {
        "image" if case.image is None and not is_union else "control_image": [
            *case.hints[: len(names)]
        ],
        "controlnet_conditioning_scale": [*scales],
        "control_guidance_start": [*starts],
        "control_guidance_end": [*ends],
    }


Pairs = Callable[[str], Pair]


@pytest.fixture(scope="module", autouse=True)
def compiled_coarsely(coarse: None) -> None:
    """Compile with coarse options: these tests check results, not speed."""


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Pairs:
    """Pairs by checkpoint, each made once."""
    root = tmp_path_factory.mktemp("controls")
    return cache(lambda name: Pair(root / name, name))


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_controls_match_diffusers(pairs: Pairs, case: Case, record_property: Any) -> None:
    pair = pairs(case.checkpoint)
    result, expected = pair.result(case), pair.run_diffusers(case)
    worst = max(relative(a, b) for a, b in zip(result.latents, expected.latents, strict=True))
    levels = np.abs(result.image.astype(int) - expected.image).max()
    decibels = psnr_db(result.image, expected.image)
    record_property("latents_relative", worst)
    record_property("psnr_db", decibels)
    print(f"latents {worst:.1e}, {decibels:.1f} dB, {levels}")
    assert worst <= EXACT.relative
    assert decibels >= EXACT.psnr_db and levels <= EXACT.grey_levels
    assert expected.image.std() > 10, "a flat image proves nothing"


@pytest.mark.parametrize(
    ("case", "control"),
    [
        (CASES["two, one of which ends early"], TWO[1:]),
        (CASES["two, one of which ends early"], (("folder", 0.7, 0.0, 0.8), TWO[1])),
        (CASES["two, one of which ends early"], (("folder", 0.7, 0.2, 0.6), TWO[1])),
        (CASES["two, one of which ends early"], (("folder", 0.6, 0.0, 0.6), TWO[1])),
        (CASES["one"], (("low", 1.0, *ALL),)),
        (CASES["union"], (("normal", 0.8, 0.2, 0.8),)),
        (CASES["two of a union"], UNIONS[:1]),
        (CASES["two of a union"], (("openpose", 0.8, 0.1, 1.0), UNIONS[1])),
        (CASES["two of a union at full strength"], (("normal", 0.5, *ALL), ("hed", 1.0, *ALL))),
        (CASES["two of a union"], (("hed", 0.8, 0.3, 1.0), UNIONS[1])),
        (CASES["three of a union"], (THREE[1], THREE[0], THREE[2])),
        (CASES["of a union, one of no strength"], (("hed", 0.7, *ALL),)),
    ],
    ids=[
        *("one is left out", "a step more", "a step less", "weaker", "another", "another mode"),
        *("one of a union is left out", "of a union, a step more", "of a union, weaker"),
        *("of a union, another mode", "of a union, images changed round"),
        "of a union, the one of no strength is left out",
    ],
)
def test_other_controls_break_parity(pairs: Pairs, case: Case, control: Any) -> None:
    pair = pairs(case.checkpoint)
    assert_far(pair.result(replace(case, control=control)), pair.run_diffusers(case))


def test_union_images_with_another_network(pairs: Pairs) -> None:
    """diffusers refuses these requests, so a hook adds the other network's output to the
    union's.
    """
    pair, other = pairs("base"), ("folder", 0.7, *ALL)
    size = BASE["width"], BASE["height"]
    hint = torch.from_numpy(np.array(HINTS[0].resize(size, Image.Resampling.LANCZOS)))
    hint = hint.permute(2, 0, 1)[None].float() / 255

    def with_others(_: Any, positional: Any, named: dict[str, Any], union_output: Any) -> Any:
        shared = {key: named[key] for key in ("encoder_hidden_states", "added_cond_kwargs")}
        both_prompts = hint.repeat(2, 1, 1, 1)
        down, middle = pair.nets[other[0]](
            *positional, controlnet_cond=both_prompts, return_dict=False, **shared
        )
        sums = [
            residual + other[1] * addend
            for residual, addend in zip(union_output[0], down, strict=True)
        ]
        return sums, union_output[1] + other[1] * middle

    hook = pair.nets["union"].register_forward_hook(with_others, with_kwargs=True)
    try:
        expected = pair.run_diffusers(Case(UNIONS, hints=HINTS[1:]))
    finally:
        hook.remove()
    result = pair.result(Case((other, *UNIONS)))
    assert max(map(relative, result.latents, expected.latents)) <= EXACT.relative
    assert psnr_db(result.image, expected.image) >= EXACT.psnr_db
    assert_far(pair.result(Case(UNIONS, hints=HINTS[1:])), expected)


@pytest.mark.parametrize("name", ["two of a union", "three of an odd union"])
def test_separate_union_runs_break_parity(pairs: Pairs, name: str) -> None:
    """Control: diffusers gives another image if the union is listed several times."""
    case = CASES[name]
    pair = pairs(case.checkpoint)
    assert_far(pair.result(case), pair.run_diffusers(case, each_alone=True))
