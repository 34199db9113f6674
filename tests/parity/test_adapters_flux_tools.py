"""Adapters on Flux's tools against diffusers: made for the tool, and made for the plain model.

A tool's transformer may see more channels of a token than the plain one. Of an adapter for the
latter diffusers fills the input layer up with zeros, behind the latents' channels.
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
from tests.parity.test_adapters_flux import plain
from tests.parity.test_flux import BASE, png
from tests.parity.test_flux_tools import CASES, REQUESTS
from tests.parity.tiny import make_flux

# torch and NumPy do not agree on this yet; it is the reference that meets it.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")

INPUT, LATENTS = "x_embedder", 16
"""The transformer's input layer, and a token's channels in the plain checkpoint."""
STEPS = {"num_inference_steps": 3}


@dataclass(frozen=True)
class Tool:
    """A tool's checkpoint, loaded by diffusers and by us."""

    name: str
    folder: Path

    @cached_property
    def theirs(self) -> Any:
        pipeline = CASES[self.name].kind.from_pretrained(self.folder)
        pipeline.set_progress_bar_config(disable=True)
        return pipeline

    @cached_property
    def ours(self) -> Ours:
        return Ours(self.folder)

    @cached_property
    def changes(self) -> Changes:
        """Changes of all of its transformer's layers."""
        return random_changes(self.theirs.transformer, 4, size=0.05)

    @cached_property
    def of_plain(self) -> Changes:
        """The same, made for the plain checkpoint."""
        own = self.changes[INPUT]
        return {**self.changes, INPUT: replace(own, down=own.down[:, :LATENTS])}

    def drawn(self, adapters: list[Loaded]) -> np.ndarray:
        request = REQUESTS[self.name]
        images = {name: png(image) for name, image in request.images.items()}
        return self.ours.pixels({**BASE, **request.fields, **STEPS}, adapters, images)

    def drawn_by_diffusers(self, adapters: list[Loaded]) -> np.ndarray:
        return their_pixels(self.theirs, adapters, self._run)

    def _run(self, pipeline: Any) -> np.ndarray:
        request = REQUESTS[self.name]
        fields = {**BASE, **request.fields, **STEPS, **request.of_theirs, **request.images}
        generator = torch.Generator("cpu").manual_seed(fields.pop("seed"))
        return np.asarray(pipeline(**fields, generator=generator).images[0])


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Tool]:
    root = tmp_path_factory.mktemp("tools")
    return {
        name: Tool(name, CASES[name].make(root / name)) for name in ("fill", "control", "kontext")
    }


@pytest.mark.parametrize(
    ("name", "made_for"),
    [
        ("fill", "the tool"),
        ("fill", "the plain model"),
        ("control", "the tool"),
        ("control", "the plain model"),
        ("kontext", "both"),  # which see the same channels
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
    down = torch.nn.functional.pad(own[INPUT].down, (LATENTS, 0))
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
