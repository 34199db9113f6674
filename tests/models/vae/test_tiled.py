"""VAE tiling in every family's pipeline."""

from __future__ import annotations

from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import jax
import pytest
from PIL import Image

from models import registry
from models.checkpoint.folder import CheckpointError
from models.interface.pipeline import Pipeline
from models.parallel.jax_internals import subjaxprs
from models.vae.config import Tiling
from tests.parity.tiny import make_flux
from tests.parity.tiny_sdxl import make_sdxl
from tests.parity.tiny_wan import make_wan

MAKE: dict[str, Callable[[Path], Path]] = {
    "flux": make_flux,
    "sdxl": make_sdxl,
    "wan": lambda folder: make_wan(folder, from_image=True),
}
TILING = Tiling(32, 16)
ONE_TILE, MANY_TILES = 32, 64
"""Sides in pixels. The large side has tiles of 32, 32, 32 and 16, so the last tile has its own
size.
"""


@pytest.fixture(scope="module", params=MAKE)
def checkpoint(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, str]:
    return request.param, str(MAKE[request.param](tmp_path_factory.mktemp("tiled") / "checkpoint"))


def test_encoding_and_decoding_are_tiled(checkpoint: tuple[str, str]) -> None:
    """The program contains the autoencoder once per tile size: four sizes here, or one."""
    name, folder = checkpoint
    pipeline = registry.load(name, folder, "float32", {}, vae_tiling=TILING)
    counts = [convolutions(pipeline, side) for side in (ONE_TILE, MANY_TILES)]
    for single, tiled in zip(*counts, strict=True):
        assert tiled == 4 * single > 0


def convolutions(pipeline: Pipeline, side: int) -> tuple[int, int]:
    """Count the convolutions in the traced programs that encode and decode an image."""
    fields = {**pipeline.spec.defaults, "width": side, "height": side, "num_inference_steps": 2}
    fields |= {"prompt": "a red circle", "seed": 3}
    if pipeline.spec.family == "wan":
        fields["num_frames"] = 5
    file = BytesIO()
    Image.new("RGB", (side, side), "red").save(file, "PNG")
    prepared = pipeline.prepare(fields, {"image": file.getvalue()})
    inputs = dict(prepared.inputs)
    row = jax.eval_shape(pipeline.encode, pipeline.weights, inputs)
    programs = (
        jax.make_jaxpr(pipeline.encode)(pipeline.weights, inputs),
        jax.make_jaxpr(pipeline.decode)(pipeline.weights, row),
    )
    return tuple(counted(program.jaxpr) for program in programs)


def counted(program: Any) -> int:
    count = sum(equation.primitive.name == "conv_general_dilated" for equation in program.eqns)
    return count + sum(counted(inner) for inner in subjaxprs(program))


def test_tiles_of_no_whole_latents_are_refused_at_load(checkpoint: tuple[str, str]) -> None:
    name, folder = checkpoint
    with pytest.raises(CheckpointError, match="must be multiples of"):
        registry.load(name, folder, "float32", {}, vae_tiling=Tiling(31, 17))
