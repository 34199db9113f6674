"""Half precision: weights and network use it; schedule, solver and latents use float32."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from models import registry
from models.interface.pipeline import denoise, stack_rows
from models.parallel.jax_internals import subjaxprs
from models.spec.request import RequestError
from tests.parity.tiny import make_flux

REQUEST = {
    "prompt": "a red circle",
    "negative_prompt": "a star",
    "true_cfg_scale": 2.0,
    "guidance_scale": 3.5,
    "width": 32,
    "height": 16,
    "num_inference_steps": 2,
    "max_sequence_length": 8,
    "seed": 3,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_flux(tmp_path_factory.mktemp("flux"))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_image_in_each_dtype(folder: Path, dtype: str) -> None:
    pipeline = registry.load("tiny", str(folder), dtype, {})
    networks = pipeline.weights._replace(preview=None)
    assert {leaf.dtype for leaf in jax.tree.leaves(networks)} == {jnp.dtype(dtype)}
    prepared = pipeline.prepare(REQUEST, {})
    rows = list(denoise(pipeline, prepared))
    image = np.asarray(jax.jit(pipeline.decode)(pipeline.weights, rows[-1]))
    preview = np.asarray(jax.jit(pipeline.preview)(pipeline.weights, rows[-1]))
    assert {row["latents"].dtype for row in rows} == {jnp.dtype("float32")}
    assert all(bool(jnp.isfinite(row["latents"]).all()) for row in rows)
    assert image.shape == (16, 32, 3) and image.std() > 0
    assert preview.shape == (4, 8, 3)
    values = {name: value[None] for name, value in prepared.steps[0].values.items()}
    step = jax.make_jaxpr(pipeline.step, static_argnums=0)(
        prepared.steps[0].program, pipeline.weights, stack_rows(rows[:1]), values
    )
    assert operand_dtypes(step.jaxpr) == {jnp.dtype(dtype)}


def operand_dtypes(jaxpr: Any) -> set[np.dtype]:
    """Operand dtypes of every matrix product; float32 would reveal a silent promotion."""
    products = (e for e in jaxpr.eqns if e.primitive.name == "dot_general")
    dtypes = {variable.aval.dtype for product in products for variable in product.invars}
    for inner in subjaxprs(jaxpr):
        dtypes |= operand_dtypes(inner)
    return dtypes


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"width": 33}, "width"),
        ({"height": 0}, "height"),
        ({"prompt": None}, "prompt"),
        ({"num_inference_steps": 0}, "num_inference_steps"),
        ({"max_sequence_length": 513}, "max_sequence_length"),
        ({"sigmas": [0.5, 0.7]}, "sigmas"),
        ({"sigmas": []}, "sigmas"),
        ({"sigmas": [1.0, 0.0]}, "sigmas"),
        ({"strength": 0.0}, "strength"),
    ],
)
def test_a_request_out_of_range_is_refused_by_its_field(
    folder: Path, change: dict, field: str
) -> None:
    pipeline = registry.load("tiny", str(folder), "float32", {})
    with pytest.raises(RequestError) as error:
        pipeline.prepare(REQUEST | change, {})
    assert error.value.field == field


def test_unreadable_image_is_rejected(folder: Path) -> None:
    pipeline = registry.load("tiny", str(folder), "float32", {})
    with pytest.raises(RequestError) as error:
        pipeline.prepare(REQUEST | {"strength": 0.5}, {"image": b"GIF89a and then nothing"})
    assert error.value.field == "image"
