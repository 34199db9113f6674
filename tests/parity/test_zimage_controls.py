"""Z-Image with ControlNets compared with diffusers' pipeline, in float32.

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
from diffusers import ZImageControlNetPipeline, ZImagePipeline

from models import registry
from models.loading.sources import ControlSource
from tests import coarse
from tests.parity.pairs import drawn_by, drawn_from
from tests.parity.programs import Programs
from tests.parity.test_flux import Result, assert_far, assert_same
from tests.parity.test_flux_controls import IMAGES
from tests.parity.test_zimage import BASE, CHECKPOINTS, LONG, tokens_of
from tests.parity.tiny_zimage import make_control, make_zimage

OWN: dict[str, Any] = {
    "control_refiner_layers_places": [0, 1],
    "add_control_noise_refiner": "control_noise_refiner",
    "control_in_dim": 9,
}
NETS: dict[str, dict[str, dict[str, Any]]] = {
    "base": {
        "1.0": {"control_layers_places": [0, 2]},
        "2.0": {**OWN, "add_control_noise_refiner": "control_layers"},
        "2.1": OWN,
    },
    "odd": {
        "1.0": {"control_layers_places": [0], "n_refiner_layers": 1, "norm_eps": 1e-2},
        "2.1": {**OWN, "n_refiner_layers": 3, "control_refiner_layers_places": []},
    },
}
"""Config overrides of ControlNets by checkpoint and name."""
GUIDED = {"prompt": LONG, "negative_prompt": "star", "guidance_scale": 3.0}
UNGUIDED = {"guidance_scale": 0.0}


@dataclass(frozen=True)
class Case:
    """Request with one control image."""

    net: str
    scale: float
    checkpoint: str = "base"
    fields: Mapping[str, Any] = field(default_factory=dict)


CASES: dict[str, Case] = {
    "2.1, guided": Case("2.1", 0.75, fields=GUIDED),
    "2.1": Case("2.1", 0.6, fields=UNGUIDED),
    "2.0, guidance ends early": Case("2.0", 0.5, fields={**GUIDED, "cfg_truncation": 0.4}),
    "1.0": Case("1.0", 0.9, fields=UNGUIDED),
    "odd 1.0, guided": Case("1.0", 0.8, "odd", {**GUIDED, "width": 64, "height": 32}),
    "odd 2.1": Case("2.1", 0.7, "odd", UNGUIDED),
}


class Pair:
    """One checkpoint with its ControlNets, loaded by diffusers and by Atelier."""

    def __init__(self, root: Path, name: str) -> None:
        folder = make_zimage(root / "model", **CHECKPOINTS[name])
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
        self.base = ZImagePipeline.from_pretrained(folder)

    def result(self, case: Case) -> Result:
        control = [{"name": case.net, "scale": case.scale}]
        images = {"control.0.image": IMAGES[0]}
        return drawn_from(self.atelier, {**BASE, **case.fields, "control": control}, images)

    def run_diffusers(self, case: Case) -> Result:
        net = self.nets[case.net]
        pipeline = ZImageControlNetPipeline(**self.base.components, controlnet=net)
        arguments = {**BASE, **case.fields, "controlnet_conditioning_scale": case.scale}
        return drawn_by(pipeline, arguments, tokens_of, control_image=IMAGES[0])


Pairs = Callable[[str], Pair]


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Pairs:
    """Pairs by checkpoint, each made once."""
    root = tmp_path_factory.mktemp("controls")
    return cache(lambda name: Pair(root / name, name))


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_control_matches_diffusers(pairs: Pairs, case: Case, record_property: Any) -> None:
    pair = pairs(case.checkpoint)
    assert_same(pair.result(case), pair.run_diffusers(case), record_property)


OTHERS: dict[str, tuple[str, dict[str, Any]]] = {
    "weaker": ("2.1", {"scale": 0.5}),
    "another": ("1.0", {"net": "2.1"}),
    "refined by the same layers": ("2.1", {"net": "2.0"}),
    "odd, weaker": ("odd 2.1", {"scale": 0.6}),
}


@pytest.mark.parametrize(("name", "changes"), OTHERS.values(), ids=OTHERS)
def test_other_control_breaks_parity(pairs: Pairs, name: str, changes: Any) -> None:
    case = CASES[name]
    pair = pairs(case.checkpoint)
    assert_far(pair.result(replace(case, **changes)), pair.run_diffusers(case))


def test_weights_are_all_read(pairs: Pairs) -> None:
    """The parameter count equals diffusers', so no parameter keeps its initial value."""
    pair = pairs("base")
    leaves = jax.tree.leaves(pair.atelier.pipeline.weights.controls)
    expected = sum(
        parameter.numel()
        for net in pair.nets.values()
        for name, parameter in net.named_parameters()
        if name.startswith("control_")
    )
    assert sum(leaf.size for leaf in leaves) == expected
