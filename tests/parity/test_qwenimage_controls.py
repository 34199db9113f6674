"""Qwen-Image with ControlNets compared with diffusers' pipeline, in float32.

Bounds as in test_flux.py: latents of each step to a relative 1e-4, images to 60 dB and two levels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import jax
import pytest
from diffusers import (
    QwenImageControlNetPipeline,
    QwenImageMultiControlNetModel,
    QwenImagePipeline,
)

from models import registry
from models.loading.sources import ControlSource
from tests import coarse
from tests.parity.distances import psnr_db, relative
from tests.parity.pairs import drawn_by, drawn_from
from tests.parity.programs import Programs
from tests.parity.test_flux import PSNR_DB, RELATIVE, Result, assert_same
from tests.parity.test_flux_controls import ALL, IMAGES
from tests.parity.test_qwenimage import BASE, CHECKPOINTS, LONG
from tests.parity.tiny_qwenimage import make_control, make_qwenimage

NETS: dict[str, dict[str, dict[str, Any]]] = {
    "published": {"edges": {}, "depth": {"num_layers": 3}},
    "odd": {
        "edges": {
            "num_layers": 3,
            "attention_head_dim": 10,
            "num_attention_heads": 7,
            "axes_dims_rope": (2, 4, 4),
        },
        "depth": {"num_layers": 1},
    },
}
"""Config overrides of ControlNets by checkpoint and name."""
GUIDED = {"prompt": LONG, "negative_prompt": "star", "true_cfg_scale": 3.0}
SMALL = {"width": 64, "height": 32}


@dataclass(frozen=True)
class Case:
    """Request: scale and share of the steps of each image of one ControlNet."""

    net: str
    control: tuple[tuple[float, float, float], ...]
    checkpoint: str = "published"
    fields: Mapping[str, Any] = field(default_factory=dict)


CASES: dict[str, Case] = {
    "shared by adjacent blocks, guided": Case("edges", ((0.9, *ALL),), fields=GUIDED),
    "one for each block, some steps": Case("depth", ((0.8, 0.2, 0.8),)),
    "two images": Case("edges", ((0.7, 0.0, 0.6), (0.5, *ALL)), fields=GUIDED),
    "odd, more blocks and other heads": Case("edges", ((0.8, *ALL),), "odd", SMALL),
    "odd, a single block, guided": Case("depth", ((0.8, *ALL),), "odd", {**SMALL, **GUIDED}),
    "odd, two images": Case("depth", ((0.6, 0.3, 1.0), (0.4, *ALL)), "odd", SMALL),
}


class Pair:
    """One checkpoint with its ControlNets, loaded by diffusers and by Atelier."""

    def __init__(self, root: Path, name: str) -> None:
        folder = make_qwenimage(root / "model", **CHECKPOINTS[name])
        self.nets = {
            net: make_control(root / net, folder, seed, **changes)
            for seed, (net, changes) in enumerate(NETS[name].items(), 5)
        }
        sources = {net: ControlSource(str(root / net)) for net in self.nets}
        with coarse.compiled():
            loaded = registry.load(
                "tiny", str(folder), "float32", {}, controls=sources, max_controls=2
            )
        self.atelier = Programs(loaded, coarse.OPTIONS)
        self.base = QwenImagePipeline.from_pretrained(folder)

    def result(self, case: Case) -> Result:
        names = ("name", "scale", "start", "end")
        entries = [dict(zip(names, (case.net, *entry), strict=True)) for entry in case.control]
        images = dict(zip((f"control.{i}.image" for i in range(2)), IMAGES, strict=False))
        images = dict([*images.items()][: len(entries)])
        return drawn_from(self.atelier, {**BASE, **case.fields, "control": entries}, images)

    def run_diffusers(self, case: Case) -> Result:
        scales, starts, ends = (list(values) for values in zip(*case.control, strict=True))
        is_multiple = len(scales) > 1
        net = self.nets[case.net]
        network = QwenImageMultiControlNetModel([net]) if is_multiple else net
        arguments = {
            **BASE,
            **case.fields,
            "controlnet_conditioning_scale": scales if is_multiple else scales[0],
            "control_guidance_start": starts,
            "control_guidance_end": ends,
        }
        pipeline = QwenImageControlNetPipeline(**self.base.components, controlnet=network)
        images: Any = IMAGES[: len(scales)] if is_multiple else IMAGES[0]
        return drawn_by(pipeline, arguments, control_image=images)


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


OTHERS: dict[str, tuple[str, dict[str, Any]]] = {
    "one is left out": ("two images", {"control": ((0.7, 0.0, 0.6),)}),
    "a step more": ("two images", {"control": ((0.7, 0.0, 0.8), (0.5, *ALL))}),
    "weaker": ("shared by adjacent blocks, guided", {"control": ((0.8, *ALL),)}),
    "another": ("one for each block, some steps", {"net": "edges"}),
    "odd, another": ("odd, a single block, guided", {"net": "edges"}),
}


@pytest.mark.parametrize(("name", "changes"), OTHERS.values(), ids=OTHERS)
def test_other_controls_break_parity(pairs: Pairs, name: str, changes: Any) -> None:
    case = CASES[name]
    pair = pairs(case.checkpoint)
    wrong, expected = pair.result(replace(case, **changes)), pair.run_diffusers(case)
    worst = max(relative(a, b) for a, b in zip(wrong.latents, expected.latents, strict=True))
    decibels = psnr_db(wrong.image, expected.image)
    print(f"latents {worst:.1e}, {decibels:.1f} dB")
    assert worst > 10 * RELATIVE
    assert decibels < PSNR_DB


def test_weights_are_all_read(pairs: Pairs) -> None:
    """The parameter count equals diffusers', so no parameter keeps its initial value."""
    pair = pairs("published")
    leaves = jax.tree.leaves(pair.atelier.pipeline.weights.controls)
    expected = sum(p.numel() for net in pair.nets.values() for p in net.parameters())
    assert sum(leaf.size for leaf in leaves) == expected
