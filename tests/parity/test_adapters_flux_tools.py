"""Adapters on Flux's tools against diffusers: made for the tool, and made for the plain model.

A tool's transformer may see more channels of a token than the plain one. Of an adapter for the
latter diffusers fills the input layer up with zeros, behind the latents' channels. Each tool is
held on two checkpoints and requests: the odd ones have other heads and ranks, no guidance or no
double blocks, and latents whose channels are no power of two.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from models import registry
from models.adapters.files.adapter import AdapterError
from models.adapters.files.formats import inspect
from models.adapters.names_of import names_of
from models.interface.pipeline import Pipeline
from models.loading.sources import SHAPES
from tests.parity.adapter_files import (
    Changes,
    Loaded,
    Ours,
    assert_far,
    assert_same,
    peft,
    psnr_db,
    random_changes,
    their_pixels,
    write,
)
from tests.parity.lazily import Lazily
from tests.parity.test_adapters_flux import plain
from tests.parity.test_flux import BASE, png
from tests.parity.test_flux_tools import CASES, REQUESTS, Case, Request
from tests.parity.tiny import make_flux

# torch and NumPy do not agree on this yet; it is the reference that meets it.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")

INPUT = "x_embedder"
"""The transformer's input layer."""
STEPS = {"num_inference_steps": 3}
HEADS = {"num_attention_heads": 5, "attention_head_dim": 12, "axes_dims_rope": (2, 4, 6)}
"""Heads of the odd checkpoints, whose transformers are 60 wide, as the others."""
MADE = {
    name: replace(case, transformer={**case.transformer, **HEADS}) if "odd" in name else case
    for name, case in CASES.items()
}
ASKED = {
    **{name: name for name in ("fill", "control", "kontext")},
    "fill, odd": "fill, weak, wide",
    "control, odd": "control, wide",
    "kontext, odd": "kontext, true cfg",
}
"""Request by checkpoint."""


@dataclass(frozen=True)
class Tool:
    """A tool's checkpoint, loaded by diffusers and by us."""

    name: str
    folder: Path

    @property
    def case(self) -> Case:
        return MADE[self.name]

    @property
    def request(self) -> Request:
        return REQUESTS[ASKED[self.name]]

    @cached_property
    def theirs(self) -> Any:
        pipeline = self.case.kind.from_pretrained(self.folder)
        pipeline.set_progress_bar_config(disable=True)
        return pipeline

    @cached_property
    def ours(self) -> Ours:
        return Ours(self.folder)

    @cached_property
    def changes(self) -> Changes:
        """Changes of all of its transformer's layers."""
        rank = 5 if "odd" in self.name else 4
        return random_changes(self.theirs.transformer, 4, rank, size=0.05)

    @cached_property
    def of_plain(self) -> Changes:
        """The same, made for the plain checkpoint."""
        own, latents = self.changes[INPUT], 4 * self.case.vae["latent_channels"]
        return {**self.changes, INPUT: replace(own, down=own.down[:, :latents])}

    def drawn(self, adapters: list[Loaded]) -> np.ndarray:
        request = self.request
        images = {name: png(image) for name, image in request.images.items()}
        return self.ours.pixels({**BASE, **request.fields, **STEPS}, adapters, images)

    def drawn_by_diffusers(self, adapters: list[Loaded]) -> np.ndarray:
        return their_pixels(self.theirs, adapters, self._run)

    def _run(self, pipeline: Any) -> np.ndarray:
        request = self.request
        fields = {**BASE, **request.fields, **STEPS, **request.of_theirs, **request.images}
        generator = torch.Generator("cpu").manual_seed(fields.pop("seed"))
        return np.asarray(pipeline(**fields, generator=generator).images[0])


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Tool]:
    root = tmp_path_factory.mktemp("tools")
    return Lazily(lambda name: Tool(name, MADE[name].make(root / name)))


@pytest.mark.parametrize(
    ("name", "made_for"),
    [
        ("fill", "the tool"),
        ("fill", "the plain model"),
        ("control", "the tool"),
        ("control", "the plain model"),
        ("kontext", "both"),  # which see the same channels
        ("fill, odd", "the tool"),
        ("fill, odd", "the plain model"),
        ("control, odd", "the tool"),
        ("control, odd", "the plain model"),
        ("kontext, odd", "both"),
    ],
)
def test_an_adapter_draws_what_diffusers_draws(
    name: str,
    made_for: str,
    tools: Mapping[str, Tool],
    tmp_path: Path,
    record_property: Any,
) -> None:
    tool = tools[name]
    changes = tool.of_plain if made_for == "the plain model" else tool.changes
    asked = [Loaded(write(peft({"transformer": changes}), tmp_path / "a.safetensors"))]
    expected = tool.drawn_by_diffusers(asked)
    assert_same(tool.drawn(asked), expected, record_property)
    assert psnr_db(expected, tool.drawn([])) < 40, "an adapter that does not show proves nothing"


@pytest.mark.parametrize("name", [name for name in ASKED if "odd" in name])
def test_another_strength_or_adapter_fails_by_far(
    name: str, tools: Mapping[str, Tool], tmp_path: Path
) -> None:
    tool = tools[name]
    other = random_changes(tool.theirs.transformer, 9, 5, size=0.05)
    own, another = (
        write(peft({"transformer": changes}), tmp_path / f"{number}.safetensors")
        for number, changes in enumerate((tool.changes, other))
    )
    expected = tool.drawn_by_diffusers([Loaded(own)])
    assert_far(tool.drawn([Loaded(own, 0.6)]), expected)
    assert_far(tool.drawn([Loaded(another)]), expected)


def test_the_authors_name_of_the_input_layer(tools: Mapping[str, Tool], tmp_path: Path) -> None:
    """diffusers reads such files of the published sizes alone: held against PEFT's."""
    tool = tools["fill"]
    own = {INPUT: replace(tool.of_plain[INPUT], up=8 * tool.of_plain[INPUT].up)}
    files = (
        write(peft({"transformer": own}), tmp_path / "peft.safetensors"),
        write(plain("", {"img_in": own[INPUT]}), tmp_path / "authors.safetensors"),
    )
    first, second = (tool.drawn([Loaded(file)]) for file in files)
    np.testing.assert_array_equal(first, second)
    assert psnr_db(first, tool.drawn([])) < 40


def test_zeros_in_front_of_the_latents_fail_by_far(
    tools: Mapping[str, Tool], tmp_path: Path
) -> None:
    """The layer's last inputs are a control image's."""
    tool = tools["control"]
    own = {INPUT: replace(tool.of_plain[INPUT], up=8 * tool.of_plain[INPUT].up)}
    down = torch.nn.functional.pad(own[INPUT].down, (4 * tool.case.vae["latent_channels"], 0))
    wrong = {INPUT: replace(own[INPUT], down=down)}
    right, far = (
        Loaded(write(peft({"transformer": one}), tmp_path / f"{number}.safetensors"))
        for number, one in enumerate((own, wrong))
    )
    assert_far(tool.drawn([far]), tool.drawn_by_diffusers([right]))


def test_a_file_that_widens_the_input_is_refused(tools: Mapping[str, Tool], tmp_path: Path) -> None:
    """Canny and Depth are published as such files for the plain model, norms among them."""
    norm = {"double_blocks.0.img_attn.norm.query_norm.scale": torch.ones(8)}
    own = plain("", {"img_in": tools["control"].changes[INPUT]})
    file = write(own | norm, tmp_path / "a.safetensors")
    names = names_of(shapes(make_flux(tmp_path / "plain")))
    with pytest.raises(
        AdapterError, match="img_in reads 32 channels there and 16 in this model: the"
    ):
        inspect(file, names)


def test_a_tools_adapter_is_not_for_one_that_sees_even_more(
    tools: Mapping[str, Tool], tmp_path: Path
) -> None:
    file = write(peft({"transformer": tools["control"].changes}), tmp_path / "a.safetensors")
    with pytest.raises(AdapterError, match=f"{INPUT} is a layer from 32 .* another base model"):
        inspect(file, names_of(shapes(tools["fill"].folder)))


def shapes(folder: Path) -> Pipeline:
    return registry.load("m", str(folder), "float32", {}, reader=SHAPES)
