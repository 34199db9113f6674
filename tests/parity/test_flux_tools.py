"""Flux tools compared with diffusers' pipelines, each on two small checkpoints.

Bounds as in test_flux.py; each tool also runs with its images misread. diffusers runs in double
precision, with noise in single precision. In single precision its own rounding alone reaches the
bound of the latents: 4e-5 to 1e-4 after three guided steps, where Atelier's is 1e-6.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import jax.numpy as jnp
import numpy as np
import pytest
import torch
from diffusers import (
    DiffusionPipeline,
    FluxControlPipeline,
    FluxFillPipeline,
    FluxKontextPipeline,
)
from PIL import Image

from models import registry
from models.interface.pipeline import PyTree
from tests import coarse
from tests.parity.distances import png, psnr_db, relative
from tests.parity.lazy_dict import LazyDict
from tests.parity.programs import Programs
from tests.parity.step_latents import StepLatents
from tests.parity.test_flux import BASE, PICTURE, PSNR_DB, RELATIVE, Result, assert_same
from tests.parity.tiny import make_flux

MASK = Image.fromarray(
    np.repeat(np.random.default_rng(6).integers(0, 256, (9, 7), dtype=np.uint8), 11, axis=1)
)
EVEN = {"latent_channels": 4}
ODD: dict[str, Any] = {
    "block_out_channels": (6, 6, 12, 18),
    "layers_per_block": 2,
    "latent_channels": 6,
    "norm_num_groups": 3,
    "use_quant_conv": True,
}


DEEP = {"block_out_channels": (4, 4, 4, 4, 8, 8), "norm_num_groups": 2, "layers_per_block": 1}
"""Small latents for the million pixels of Kontext's references."""


@dataclass(frozen=True)
class Case:
    """A tool on one checkpoint."""

    kind: type[DiffusionPipeline]
    further: int
    """Channels of a latent pixel in addition to the latents."""
    vae: Mapping[str, Any]
    transformer: Mapping[str, Any] = field(default_factory=dict)
    scheduler: Mapping[str, Any] = field(default_factory=dict)

    def make(self, folder: Path) -> Path:
        latent = self.vae["latent_channels"]
        channels = {"in_channels": 4 * (latent + self.further), "out_channels": 4 * latent}
        return make_flux(
            folder,
            kind=self.kind,
            transformer={**channels, **self.transformer},
            vae=dict(self.vae),
            scheduler=dict(self.scheduler),
        )


CASES = {
    "fill": Case(FluxFillPipeline, further=4 + 16, vae=EVEN),
    "fill, odd": Case(
        FluxFillPipeline,
        further=6 + 64,
        vae=ODD,
        transformer={"num_layers": 1, "num_single_layers": 1, "guidance_embeds": False},
        scheduler={"use_dynamic_shifting": False, "shift": 2.0},
    ),
}

CASES |= {
    "control": Case(FluxControlPipeline, further=4, vae=EVEN),
    "control, odd": Case(
        FluxControlPipeline,
        further=6,
        vae=ODD,
        transformer={"num_layers": 0, "num_single_layers": 2, "axes_dims_rope": (6, 6, 8)},
    ),
    "kontext": Case(FluxKontextPipeline, further=0, vae=EVEN | DEEP),
    "kontext, odd": Case(
        FluxKontextPipeline,
        further=0,
        vae={**ODD, **DEEP, "block_out_channels": (6, 6, 6, 6, 12), "norm_num_groups": 3},
        transformer={"num_layers": 1, "num_single_layers": 1, "guidance_embeds": False},
        scheduler={"use_dynamic_shifting": False, "shift": 2.0},
    ),
}

Images = dict[str, Image.Image]


@dataclass(frozen=True)
class Request:
    """Fields and images of a request to a tool."""

    tool: str
    fields: Mapping[str, Any]
    images: Images
    of_reference: Mapping[str, Any] = field(default_factory=dict)
    """Arguments that only diffusers' call has."""


REQUESTS = {
    "fill": Request("fill", {"guidance_scale": 30.0}, {"image": PICTURE, "mask_image": MASK}),
    "fill, weak, wide": Request(
        "fill",
        {
            "guidance_scale": 4.0,
            "strength": 0.55,
            "width": 80,
            "height": 48,
            "prompt_2": "the yellow triangle",
        },
        {"image": PICTURE, "mask_image": MASK.convert("RGB").rotate(90, expand=True)},
    ),
}

WIDE = Image.fromarray(np.random.default_rng(8).integers(0, 256, (9, 13, 3), dtype=np.uint8))
REQUESTS |= {
    "control": Request("control", {"guidance_scale": 3.5}, {"control_image": PICTURE}),
    "control, wide": Request(
        "control",
        {"guidance_scale": 10.0, "width": 80, "height": 48, "prompt_2": "star below"},
        {"control_image": PICTURE.rotate(90, expand=True)},
    ),
    "kontext": Request(
        "kontext",
        {"guidance_scale": 2.5, "width": 128, "height": 192},
        {"image": PICTURE},
        of_reference={"max_area": 128 * 192},
    ),
    "kontext, true cfg": Request(
        "kontext",
        {
            "guidance_scale": 3.5,
            "true_cfg_scale": 2.5,
            "negative_prompt": "a green square",
            "width": 192,
            "height": 128,
            "num_inference_steps": 3,
        },
        {"image": WIDE.resize((97, 130))},
        of_reference={"max_area": 128 * 192},
    ),
    "kontext, no image": Request(
        "kontext",
        {"guidance_scale": 3.5, "width": 64, "height": 64},
        {},
        of_reference={"max_area": 64 * 64},
    ),
}


class Pair:
    """One checkpoint, loaded by diffusers and by Atelier."""

    def __init__(self, folder: Path, case: Case) -> None:
        checkpoint = case.make(folder)
        self.diffusers = case.kind.from_pretrained(checkpoint).to(torch.float64)
        with coarse.compiled():
            loaded = registry.load("tiny", str(checkpoint), "float32", {})
        self.atelier = Programs(loaded, coarse.OPTIONS)


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Pair]:
    root = tmp_path_factory.mktemp("tools")
    return LazyDict(lambda name: Pair(root / name, CASES[name]))


randn = torch.randn


def noise(*shape: Any, dtype: torch.dtype, **further: Any) -> torch.Tensor:
    """Draw noise in single precision, then convert to the requested dtype."""
    return randn(*shape, dtype=torch.float32, **further).to(dtype)


def run_diffusers(pipeline: DiffusionPipeline, request: Request) -> Result:
    pipeline.set_progress_bar_config(disable=True)
    latents = StepLatents()

    fields = {**BASE, **request.fields, **request.of_reference, **request.images}
    generator = torch.Generator("cpu").manual_seed(fields.pop("seed"))
    with patch("torch.randn", noise):
        output = pipeline(**fields, generator=generator, callback_on_step_end=latents.keep)
    return Result(latents, np.asarray(output.images[0]))


def run_atelier(
    programs: Programs, request: Request, spoil: Callable[[PyTree], PyTree] = lambda row: row
) -> Result:
    images = {name: png(image) for name, image in request.images.items()}
    prepared = programs.pipeline.prepare({**BASE, **request.fields}, images)
    return Result(*programs.drawn(prepared, spoil=spoil))


@pytest.mark.parametrize("request_name", REQUESTS)
@pytest.mark.parametrize("variant", ["", ", odd"])
def test_tools_match_diffusers(
    pairs: Mapping[str, Pair], request_name: str, variant: str, record_property: Any
) -> None:
    request = REQUESTS[request_name]
    pair = pairs[request.tool + variant]
    assert_same(
        run_atelier(pair.atelier, request), run_diffusers(pair.diffusers, request), record_property
    )


def without_mask(row: PyTree) -> PyTree:
    """Clear the mask, so the network regenerates no area."""
    masked = CASES["fill"].vae["latent_channels"] * 4
    return {**row, "channels": row["channels"].at[:, masked:].set(0)}


def mask_by_column(row: PyTree) -> PyTree:
    """Swap the order of a latent's pixels in the mask."""
    masked = CASES["fill"].vae["latent_channels"] * 4
    image, mask = jnp.split(row["channels"], [masked], axis=-1)
    swapped = mask.reshape(-1, 4, 4, 4).swapaxes(1, 2).reshape(mask.shape)
    return {**row, "channels": jnp.concatenate([image, swapped], axis=-1)}


def without_masked_image(row: PyTree) -> PyTree:
    masked = CASES["fill"].vae["latent_channels"] * 4
    return {**row, "channels": row["channels"].at[:, :masked].set(0)}


def without_control(row: PyTree) -> PyTree:
    return {**row, "channels": jnp.zeros_like(row["channels"])}


def without_reference(row: PyTree) -> PyTree:
    return {**row, "reference": jnp.zeros_like(row["reference"])}


def turned_reference(row: PyTree) -> PyTree:
    """Swap the rows and columns of the reference's positions."""
    return {**row, "reference_grid": row["reference_grid"].swapaxes(0, 1)}


WRONG: dict[str, tuple[str, Callable[[PyTree], PyTree]]] = {
    "no mask": ("fill", without_mask),
    "a latent's pixels by column": ("fill", mask_by_column),
    "no masked image": ("fill", without_masked_image),
    "no control image": ("control", without_control),
    "no reference": ("kontext", without_reference),
    "a reference turned over": ("kontext", turned_reference),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_interpretation_of_the_images_breaks_parity(
    pairs: Mapping[str, Pair], wrong: str
) -> None:
    name, spoil = WRONG[wrong]
    pair, request = pairs[name], REQUESTS[name]
    spoiled, expected = (
        run_atelier(pair.atelier, request, spoil),
        run_diffusers(pair.diffusers, request),
    )
    assert max(map(relative, spoiled.latents, expected.latents)) > 10 * RELATIVE
    assert psnr_db(spoiled.image, expected.image) < PSNR_DB - 10
