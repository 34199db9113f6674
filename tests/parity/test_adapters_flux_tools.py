"""Adapters on Flux tools compared with diffusers: made for the tool, or for the plain model.

A tool's transformer may read more channels per token than the plain one. For an adapter of the
plain model, diffusers pads the input layer with zeros after the latents' channels. Each tool runs
on two checkpoints and requests. The odd ones have other heads and ranks, no guidance or no double
blocks, and a number of latent channels that is no power of two.
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
from models.adapters.adaptable_layers import names_of
from models.adapters.files.adapter import AdapterError
from models.adapters.files.formats import inspect
from models.interface.pipeline import Pipeline
from models.loading.sources import SHAPES
from tests.parity.adapter_files import (
    AtelierRunner,
    Changes,
    LoadedAdapter,
    assert_far,
    assert_same,
    diffusers_pixels,
    peft,
    random_changes,
    write,
)
from tests.parity.distances import png, psnr_db
from tests.parity.lazy_dict import LazyDict
from tests.parity.test_adapters_flux import plain
from tests.parity.test_flux import BASE
from tests.parity.test_flux_tools import CASES, REQUESTS, Case, Request
from tests.parity.tiny import make_flux

# diffusers triggers NumPy's deprecation of torch tensors without the new `__array__` signature.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")

INPUT = "x_embedder"
"""The transformer's input layer."""
STEPS = {"num_inference_steps": 3}
HEADS = {"num_attention_heads": 5, "attention_head_dim": 12, "axes_dims_rope": (2, 4, 6)}
"""Heads of the odd checkpoints, whose transformers have the same width of 60 as the others."""
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
    """A tool's checkpoint, loaded by diffusers and by Atelier."""

    name: str
    folder: Path

    @property
    def case(self) -> Case:
        return MADE[self.name]

    @property
    def request(self) -> Request:
        return REQUESTS[ASKED[self.name]]

    @cached_property
    def run_diffusers(self) -> Any:
        pipeline = self.case.kind.from_pretrained(self.folder)
        pipeline.set_progress_bar_config(disable=True)
        return pipeline

    @cached_property
    def run_atelier(self) -> AtelierRunner:
        return AtelierRunner(self.folder)

    @cached_property
    def changes(self) -> Changes:
        """Changes of all layers of the tool's transformer."""
        rank = 5 if "odd" in self.name else 4
        return random_changes(self.run_diffusers.transformer, 4, rank, size=0.05)

    @cached_property
    def of_plain(self) -> Changes:
        """The same changes, made for the plain checkpoint."""
        of_input, latents = self.changes[INPUT], 4 * self.case.vae["latent_channels"]
        return {**self.changes, INPUT: replace(of_input, down=of_input.down[:, :latents])}

    def drawn(self, adapters: list[LoadedAdapter]) -> np.ndarray:
        request = self.request
        images = {name: png(image) for name, image in request.images.items()}
        return self.run_atelier.pixels({**BASE, **request.fields, **STEPS}, adapters, images)

    def drawn_by_diffusers(self, adapters: list[LoadedAdapter]) -> np.ndarray:
        return diffusers_pixels(self.run_diffusers, adapters, self._run)

    def _run(self, pipeline: Any) -> np.ndarray:
        request = self.request
        fields = {**BASE, **request.fields, **STEPS, **request.of_reference, **request.images}
        generator = torch.Generator("cpu").manual_seed(fields.pop("seed"))
        return np.asarray(pipeline(**fields, generator=generator).images[0])


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Tool]:
    root = tmp_path_factory.mktemp("tools")
    return LazyDict(lambda name: Tool(name, MADE[name].make(root / name)))


@pytest.mark.parametrize(
    ("name", "made_for"),
    [
        ("fill", "the tool"),
        ("fill", "the plain model"),
        ("control", "the tool"),
        ("control", "the plain model"),
        ("kontext", "both"),  # both read the same channels
        ("fill, odd", "the tool"),
        ("fill, odd", "the plain model"),
        ("control, odd", "the tool"),
        ("control, odd", "the plain model"),
        ("kontext, odd", "both"),
    ],
)
def test_adapter_matches_diffusers(
    name: str,
    made_for: str,
    tools: Mapping[str, Tool],
    tmp_path: Path,
    record_property: Any,
) -> None:
    tool = tools[name]
    changes = tool.of_plain if made_for == "the plain model" else tool.changes
    loras = [LoadedAdapter(write(peft({"transformer": changes}), tmp_path / "a.safetensors"))]
    expected = tool.drawn_by_diffusers(loras)
    assert_same(tool.drawn(loras), expected, record_property)
    assert psnr_db(expected, tool.drawn([])) < 40, "the adapter must change the image"


@pytest.mark.parametrize("name", [name for name in ASKED if "odd" in name])
def test_other_scale_or_adapter_breaks_parity(
    name: str, tools: Mapping[str, Tool], tmp_path: Path
) -> None:
    tool = tools[name]
    other = random_changes(tool.run_diffusers.transformer, 9, 5, size=0.05)
    trained, unrelated = (
        write(peft({"transformer": changes}), tmp_path / f"{number}.safetensors")
        for number, changes in enumerate((tool.changes, other))
    )
    expected = tool.drawn_by_diffusers([LoadedAdapter(trained)])
    assert_far(tool.drawn([LoadedAdapter(trained, 0.6)]), expected)
    assert_far(tool.drawn([LoadedAdapter(unrelated)]), expected)


def test_the_authors_name_of_the_input_layer(tools: Mapping[str, Tool], tmp_path: Path) -> None:
    """diffusers reads these files only at the published sizes, so PEFT's file is the reference."""
    tool = tools["fill"]
    changes = {INPUT: replace(tool.of_plain[INPUT], up=8 * tool.of_plain[INPUT].up)}
    files = (
        write(peft({"transformer": changes}), tmp_path / "peft.safetensors"),
        write(plain("", {"img_in": changes[INPUT]}), tmp_path / "authors.safetensors"),
    )
    first, second = (tool.drawn([LoadedAdapter(file)]) for file in files)
    np.testing.assert_array_equal(first, second)
    assert psnr_db(first, tool.drawn([])) < 40


def test_prepended_zeros_break_parity(tools: Mapping[str, Tool], tmp_path: Path) -> None:
    """The layer's last inputs belong to the control image."""
    tool = tools["control"]
    changes = {INPUT: replace(tool.of_plain[INPUT], up=8 * tool.of_plain[INPUT].up)}
    down = torch.nn.functional.pad(changes[INPUT].down, (4 * tool.case.vae["latent_channels"], 0))
    wrong = {INPUT: replace(changes[INPUT], down=down)}
    right, far = (
        LoadedAdapter(write(peft({"transformer": content}), tmp_path / f"{number}.safetensors"))
        for number, content in enumerate((changes, wrong))
    )
    assert_far(tool.drawn([far]), tool.drawn_by_diffusers([right]))


def test_a_file_that_widens_the_input_is_refused(tools: Mapping[str, Tool], tmp_path: Path) -> None:
    """Canny and Depth are published as files of this kind for the plain model, with norms."""
    norm = {"double_blocks.0.img_attn.norm.query_norm.scale": torch.ones(8)}
    tensors = plain("", {"img_in": tools["control"].changes[INPUT]})
    file = write(tensors | norm, tmp_path / "a.safetensors")
    names = names_of(shapes(make_flux(tmp_path / "plain")))
    with pytest.raises(
        AdapterError, match="img_in reads 32 channels there and 16 in this model: the"
    ):
        inspect(file, names)


def test_adapter_of_a_tool_is_rejected_by_a_wider_one(
    tools: Mapping[str, Tool], tmp_path: Path
) -> None:
    file = write(peft({"transformer": tools["control"].changes}), tmp_path / "a.safetensors")
    with pytest.raises(AdapterError, match=f"{INPUT} is a layer from 32 .* another base model"):
        inspect(file, names_of(shapes(tools["fill"].folder)))


def shapes(folder: Path) -> Pipeline:
    return registry.load("m", str(folder), "float32", {}, reader=SHAPES)
