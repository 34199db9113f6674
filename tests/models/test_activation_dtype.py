"""Weights in one dtype, activations in another: as if the weights had been rounded beforehand."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from models import catalog
from models.pipeline import Pipeline, denoise
from tests.parity.tiny import make_flux
from tests.parity.tiny_sdxl import make_sdxl
from tests.parity.tiny_wan import make_wan

pytestmark = pytest.mark.usefixtures("coarse")

FIELDS: dict[str, Any] = {"prompt": "a red circle", "seed": 3, "num_inference_steps": 2}
SMALL: dict[str, dict[str, Any]] = {
    "flux": {"width": 32, "height": 48},
    "sdxl": {"width": 32, "height": 48, "guidance_scale": 3.0},
    "wan": {"width": 32, "height": 48, "num_frames": 5, "guidance_scale": 3.0},
}
MAKE: dict[str, Callable[[Path], Path]] = {"flux": make_flux, "sdxl": make_sdxl, "wan": make_wan}
KEPT = 1e-4
"""Relative: the same numbers in another program."""


@pytest.fixture(scope="module", params=MAKE)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return MAKE[request.param](tmp_path_factory.mktemp("dtypes") / request.param)


def load(folder: Path, dtype: str, activation_dtype: str | None = None) -> Pipeline:
    return catalog.load(folder.name, str(folder), dtype, {}, activation_dtype=activation_dtype)


def latents(pipeline: Pipeline) -> np.ndarray:
    family = pipeline.spec.family
    fields = {**pipeline.spec.defaults, **SMALL[family], **FIELDS}
    *_, row = denoise(pipeline, pipeline.prepare(fields, {}))
    return np.asarray(row["latents"], np.float32)


def rounded(pipeline: Pipeline, like: Pipeline) -> Pipeline:
    """Its weights, to the precision that they have in another one."""

    def through(mine: nnx.Variable, other: nnx.Variable) -> nnx.Variable:
        return mine.replace(mine[...].astype(other.dtype).astype(mine.dtype))

    is_leaf = lambda leaf: isinstance(leaf, nnx.Variable)  # noqa: E731
    pipeline.weights = jax.tree.map(through, pipeline.weights, like.weights, is_leaf=is_leaf)
    return pipeline


def test_weights_are_stored_small_and_used_in_full(folder: Path) -> None:
    mixed = load(folder, "bfloat16", "float32")
    stored = {leaf.dtype for leaf in jax.tree.leaves(mixed.weights[0])}
    assert jnp.dtype(jnp.bfloat16) in stored
    expected = latents(rounded(load(folder, "float32"), mixed))
    found = latents(mixed)
    assert np.abs(found - expected).max() <= KEPT * np.abs(expected).max()
    exact = latents(load(folder, "float32"))
    assert np.abs(found - exact).max() > 10 * KEPT * np.abs(exact).max(), "nothing was rounded"


def test_activations_may_be_coarser_than_weights(folder: Path) -> None:
    mixed = load(folder, "float32", "bfloat16")
    stored = {leaf.dtype for leaf in jax.tree.leaves(mixed.weights[0])}
    assert stored == {jnp.dtype(jnp.float32)}
    expected = latents(load(folder, "bfloat16"))
    gap = np.abs(latents(mixed) - expected).max() / np.abs(expected).max()
    assert gap <= KEPT, "the same as casting the weights once"
