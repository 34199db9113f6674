"""Weights in one dtype, activations in another: equal to weights rounded in advance."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from models import registry
from models.interface.pipeline import Pipeline, PyTree
from tests.parity.programs import Programs
from tests.parity.tiny import make_flux
from tests.parity.tiny_sdxl import make_sdxl
from tests.parity.tiny_wan import make_wan

FIELDS: dict[str, Any] = {"prompt": "a red circle", "seed": 3, "num_inference_steps": 2}
SMALL: dict[str, dict[str, Any]] = {
    "flux": {"width": 32, "height": 48},
    "sdxl": {"width": 32, "height": 48, "guidance_scale": 3.0},
    "wan": {"width": 32, "height": 48, "num_frames": 5, "guidance_scale": 3.0},
}
MAKE: dict[str, Callable[[Path], Path]] = {"flux": make_flux, "sdxl": make_sdxl, "wan": make_wan}
KEPT = 1e-4
"""Relative tolerance: the same numbers computed by another program."""


@pytest.fixture(scope="module", params=MAKE)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return MAKE[request.param](tmp_path_factory.mktemp("dtypes") / request.param)


def load(folder: Path, dtype: str, activation_dtype: str | None = None) -> Pipeline:
    return registry.load(folder.name, str(folder), dtype, {}, activation_dtype=activation_dtype)


def latents(pipeline: Pipeline, *others: PyTree) -> list[np.ndarray]:
    """Return the last latents of the pipeline's weights and of others run by the same programs."""
    family = pipeline.spec.family
    fields = {**pipeline.spec.defaults, **SMALL[family], **FIELDS}
    prepared, programs = pipeline.prepare(fields, {}), Programs(pipeline)
    last = [
        list(programs.denoise(prepared, weights))[-1] for weights in (pipeline.weights, *others)
    ]
    return [np.asarray(row["latents"], np.float32) for row in last]


def rounded(weights: PyTree, like: PyTree) -> PyTree:
    """Round weights to the precision of another pipeline's weights."""

    def through(parameter: nnx.Variable, other: nnx.Variable) -> nnx.Variable:
        return parameter.replace(parameter[...].astype(other.dtype).astype(parameter.dtype))

    return jax.tree.map(through, weights, like, is_leaf=lambda leaf: isinstance(leaf, nnx.Variable))


def test_weights_are_stored_small_and_used_in_full(folder: Path) -> None:
    mixed, full = load(folder, "bfloat16", "float32"), load(folder, "float32")
    stored = {leaf.dtype for leaf in jax.tree.leaves(mixed.weights[0])}
    assert jnp.dtype(jnp.bfloat16) in stored
    exact, expected = latents(full, rounded(full.weights, mixed.weights))
    (output,) = latents(mixed)
    assert np.abs(output - expected).max() <= KEPT * np.abs(expected).max()
    assert np.abs(output - exact).max() > 10 * KEPT * np.abs(exact).max(), "nothing was rounded"


def test_activations_may_be_coarser_than_weights(folder: Path) -> None:
    mixed = load(folder, "float32", "bfloat16")
    stored = {leaf.dtype for leaf in jax.tree.leaves(mixed.weights[0])}
    assert stored == {jnp.dtype(jnp.float32)}
    (expected,), (output,) = latents(load(folder, "bfloat16")), latents(mixed)
    gap = np.abs(output - expected).max() / np.abs(expected).max()
    assert gap <= KEPT, "the same as casting the weights once"
