"""Flux with ControlNets and unions compared with diffusers' pipelines, in float32.

Bounds as in test_flux.py: latents of each step to a relative 1e-4, images to 60 dB and two levels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import diffusers
import numpy as np
import pytest
import torch
from diffusers import FluxControlNetModel, FluxMultiControlNetModel, FluxPipeline
from PIL import Image

from models import registry
from models.loading.sources import ControlSource
from tests import coarse
from tests.parity.distances import png, psnr_db, relative
from tests.parity.programs import Programs
from tests.parity.step_latents import StepLatents
from tests.parity.test_flux import BASE, PICTURE, PSNR_DB, RELATIVE, Checkpoint, Result, assert_same
from tests.parity.tiny import SHARED
from tests.parity.tiny_flux_controls import make_control

CHECKPOINTS = {
    "dev": Checkpoint({"num_layers": 2, "num_single_layers": 3}),
    "odd": Checkpoint(
        transformer={
            "guidance_embeds": False,
            "num_layers": 3,
            "num_single_layers": 5,
            "attention_head_dim": 16,
            "num_attention_heads": 5,
            "axes_dims_rope": (4, 4, 8),
        },
        vae={"use_quant_conv": True, "latent_channels": 6},
        scheduler={"shift": 1.0, "use_dynamic_shifting": False},
    ),
}
NETS: dict[str, dict[str, dict[str, Any]]] = {
    "dev": {
        "edges": {},
        "depth": {},
        "double": {"num_layers": 2, "num_single_layers": 0, "guidance_embeds": False},
        "union": {"num_mode": 7},
    },
    "odd": {
        "edges": {"num_layers": 2, "num_single_layers": 3},
        "depth": {"num_layers": 2, "num_single_layers": 3},
        "double": {
            "num_layers": 3,
            "num_single_layers": 0,
            "attention_head_dim": 20,
            "num_attention_heads": 4,
            "axes_dims_rope": (8, 8, 4),
            "guidance_embeds": True,
        },
        "union": {"num_mode": 3, "num_layers": 0, "num_single_layers": 2},
    },
}
"""Config overrides of ControlNets by checkpoint and name."""
MODES = {"canny": 0, "tile": 1, "depth-map": 2}
"""Names of a union's kinds."""


def picture(width: int, height: int, seed: int) -> Image.Image:
    fields = np.random.default_rng(seed).integers(0, 256, (5, 4, 3), dtype=np.uint8)
    return Image.fromarray(fields).resize((width, height), Image.Resampling.NEAREST)


IMAGES = [picture(90, 70, 1), picture(31, 57, 2), picture(48, 80, 3)]


@dataclass(frozen=True)
class Case:
    """Request: controls by name, each with its scale and its share of the steps."""

    control: tuple[tuple[str, float, float, float], ...]
    checkpoint: str = "dev"
    fields: Mapping[str, Any] = field(default_factory=dict)
    image: Image.Image | None = None


ALL = (0.0, 1.0)
TWO = (("edges", 0.7, 0.0, 0.6), ("depth", 0.5, *ALL))
UNIONS = (("canny", 0.8, 0.3, 1.0), ("tile", 0.5, *ALL))
GUIDED = {"true_cfg_scale": 2.5, "negative_prompt": "a green square"}
SMALL = {"width": 40, "height": 56, "guidance_scale": 2.5}
CASES: dict[str, Case] = {
    "one": Case((("edges", 0.9, *ALL),)),
    "two, one of which ends early": Case(TWO),
    "the same one twice, true cfg": Case(
        (("edges", 0.7, *ALL), ("edges", 0.3, 0.4, 1.0)), fields=GUIDED
    ),
    "double blocks alone": Case((("double", 0.8, 0.2, 0.8),)),
    "union": Case((("tile", 0.8, *ALL),)),
    "two of a union": Case(UNIONS),
    "from an image": Case((("edges", 0.7, 0.0, 0.6),), image=PICTURE, fields={"strength": 0.7}),
    "two of a union, from an image": Case(UNIONS, image=PICTURE, fields={"strength": 0.8}),
    "odd": Case(TWO, "odd", SMALL),
    "odd, double blocks alone, guided": Case((("double", 0.8, *ALL),), "odd", {**SMALL, **GUIDED}),
    "odd union of single blocks": Case((("depth-map", 0.8, *ALL),), "odd", SMALL),
}


class Pair:
    """One checkpoint with its ControlNets, loaded by diffusers and by Atelier."""

    def __init__(self, root: Path, name: str) -> None:
        folder = CHECKPOINTS[name].make(root / "model")
        self.nets = {
            net: make_control(root / net, folder, seed, **changes)
            for seed, (net, changes) in enumerate(NETS[name].items(), 5)
        }
        sources = {net: ControlSource(str(root / net)) for net in NETS[name] if net != "union"}
        sources |= {
            mode: ControlSource(str(root / "union"), str(kind)) for mode, kind in MODES.items()
        }
        with coarse.compiled():
            loaded = registry.load(
                "tiny", str(folder), "float32", {}, controls=sources, max_controls=3
            )
        self.atelier = Programs(loaded, coarse.OPTIONS)
        self.base = FluxPipeline.from_pretrained(folder)

    def result(self, case: Case) -> Result:
        images = {f"control.{i}.image": png(image) for i, image in enumerate(IMAGES)}
        images = dict(list(images.items())[: len(case.control)])
        if case.image is not None:
            images["image"] = png(case.image)
        prepared = self.atelier.pipeline.prepare(fields_of(case), images)
        return Result(*self.atelier.drawn(prepared))

    def run_diffusers(self, case: Case) -> Result:
        names, scales, starts, ends = zip(*case.control, strict=True)
        modes = [MODES.get(name) for name in names]
        nets = [self.nets["union" if name in MODES else name] for name in names]
        joined: Any = nets[0] if len(nets) == 1 else FluxMultiControlNetModel(unique(nets))
        task = "" if case.image is None else "Img2Img"
        kind: Any = getattr(diffusers, f"FluxControlNet{task}Pipeline")
        arguments: Any = {name: value for name, value in {**BASE, **case.fields}.items()}
        generator = torch.Generator("cpu").manual_seed(arguments.pop("seed"))
        if case.image is not None:
            arguments["image"] = case.image
        is_multiple = len(nets) > 1
        arguments |= {
            "control_image": IMAGES[: len(nets)] if is_multiple else IMAGES[0],
            "control_mode": modes if is_multiple else modes[0],
            "controlnet_conditioning_scale": [*scales] if is_multiple else scales[0],
            "control_guidance_start": [*starts],
            "control_guidance_end": [*ends],
        }
        parts = {name: self.base.components[name] for name in SHARED}
        pipeline = kind(**parts, controlnet=joined)
        pipeline.set_progress_bar_config(disable=True)
        latents = StepLatents()

        output = pipeline(**arguments, generator=generator, callback_on_step_end=latents.keep)
        return Result(latents, np.asarray(output.images[0]))


def unique(nets: list[FluxControlNetModel]) -> list[FluxControlNetModel]:
    """Return a single net if all are the same, because diffusers runs a union's images together."""
    return nets[:1] if all(net is nets[0] for net in nets) else nets


def fields_of(case: Case) -> dict[str, Any]:
    names = ("name", "scale", "start", "end")
    control = [dict(zip(names, entry, strict=True)) for entry in case.control]
    return {"guidance_scale": 7.0, **BASE, **case.fields, "control": control}


Pairs = Callable[[str], Pair]


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Pairs:
    """Pairs by checkpoint, each made once."""
    root = tmp_path_factory.mktemp("controls")
    return cache(lambda name: Pair(root / name, name))


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_controls_match_diffusers(pairs: Pairs, case: Case, record_property: Any) -> None:
    pair = pairs(case.checkpoint)
    assert_same(pair.result(case), pair.run_diffusers(case), record_property)


@pytest.mark.parametrize(
    ("name", "control"),
    [
        ("two, one of which ends early", TWO[1:]),
        ("two, one of which ends early", (("edges", 0.7, 0.0, 0.8), TWO[1])),
        ("two, one of which ends early", (("edges", 0.6, 0.0, 0.6), TWO[1])),
        ("one", (("depth", 0.9, *ALL),)),
        ("union", (("canny", 0.8, *ALL),)),
        ("odd", (("double", 0.7, 0.0, 0.6), TWO[1])),
    ],
    ids=["one is left out", "a step more", "weaker", "another", "another mode", "odd, another"],
)
def test_other_controls_break_parity(pairs: Pairs, name: str, control: Any) -> None:
    case = CASES[name]
    pair = pairs(case.checkpoint)
    wrong, expected = pair.result(replace(case, control=control)), pair.run_diffusers(case)
    worst = max(relative(a, b) for a, b in zip(wrong.latents, expected.latents, strict=True))
    decibels = psnr_db(wrong.image, expected.image)
    print(f"latents {worst:.1e}, {decibels:.1f} dB")
    assert worst > 10 * RELATIVE
    assert decibels < PSNR_DB
