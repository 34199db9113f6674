"""Planned UNet steps: a whole step equals the plain one; a skipped step reuses the inner levels."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from models.loading.abstract import abstract_module
from models.nn.layers.step_cache import PlannedStep, blank_plan
from models.parallel.trace_options import TraceOptions
from models.sdxl.config import UNetConfig
from models.sdxl.network import UNet
from models.spec.quality_presets import WEIGHTS
from tests.models.nn.layers.test_conv_strips import drawn
from tests.models.sdxl.test_config import SDXL_BASE

SIZE, PROMPTS, ROWS = 8, 2, 2
SMALL = {
    "block_out_channels": (8, 16),
    "down_block_types": ("CrossAttnDownBlock2D",) * 2,
    "up_block_types": ("CrossAttnUpBlock2D",) * 2,
    "layers_per_block": 1,
    "attention_head_dim": (1, 2),
    "transformer_layers_per_block": 1,
    "cross_attention_dim": 12,
    "norm_num_groups": 4,
    "addition_time_embed_dim": 4,
    "projection_class_embeddings_input_dim": 24 + 6,
}
"""The outermost level has transformers, unlike SDXL's."""
WHOLE, REUSE = (0.0,), (1.0,)


@pytest.fixture(scope="module")
def unet() -> UNet:
    network = drawn(abstract_module(UNet, UNetConfig.from_dict(SDXL_BASE | SMALL)))
    assert isinstance(network, UNet)
    return network


def inputs(unet: UNet, seed: int) -> list[jax.Array]:
    """Latents of all prompts of all rows, and the network's conditioning."""
    keys = jax.random.split(jax.random.key(seed), 4)
    batch = ROWS * PROMPTS
    return [
        jax.random.normal(keys[0], (batch, SIZE, SIZE, 4)),
        jnp.full((batch,), 900.0 - 40 * seed),
        jax.random.normal(keys[1], (batch, 7, unet.config.text_features)),
        jax.random.normal(keys[2], (batch, 6)),
        jnp.ones((batch, 6)),
    ]


def kept(unet: UNet) -> dict[str, jax.Array]:
    row = blank_plan(1, PROMPTS, SIZE * SIZE, unet.config.inner_features, jnp.float32)
    return jax.tree.map(lambda leaf: jnp.stack([leaf] * ROWS), row)


def step(
    unet: UNet, cached: dict[str, jax.Array], weights: Any, network_inputs: list[jax.Array]
) -> tuple[np.ndarray, dict[str, jax.Array]]:
    """Run one planned step; return the prediction and the rows' caches."""
    prediction, after = _planned(unet, cached, jnp.array(weights), network_inputs)
    return np.asarray(prediction), after


def plain(unet: UNet, arguments: list[jax.Array]) -> np.ndarray:
    """Return the prediction of the network without a plan, as currently patched."""
    return np.asarray(jax.jit(lambda *arguments: unet(*arguments))(*arguments))


@nnx.jit
def _planned(
    unet: UNet, cached: dict[str, jax.Array], weights: jax.Array, arguments: list[jax.Array]
) -> tuple[jax.Array, dict[str, jax.Array]]:
    cache = PlannedStep("planned", cached, {WEIGHTS: weights})
    return unet(*arguments, cache=cache), cache.after


def test_a_whole_step_is_the_plain_one(unet: UNet) -> None:
    arguments = inputs(unet, 1)
    prediction, after = step(unet, kept(unet), [WHOLE, WHOLE], arguments)
    np.testing.assert_allclose(prediction, plain(unet, arguments), rtol=1e-5, atol=1e-5)
    assert np.abs(after["residual"]).min() < np.abs(after["residual"]).max()


def test_skipped_step_runs_only_the_outermost_level(
    unet: UNet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The inner levels' output comes from the row's last whole step."""
    earlier, now = inputs(unet, 1), inputs(unet, 2)
    _, after = step(unet, kept(unet), [WHOLE, WHOLE], earlier)
    prediction, caches = step(unet, after, [REUSE, WHOLE], now)
    exact = plain(unet, now)
    first_row = slice(0, PROMPTS)
    assert np.abs(prediction[first_row] - exact[first_row]).max() > 1e-3
    np.testing.assert_allclose(prediction[PROMPTS:], exact[PROMPTS:], rtol=1e-5, atol=1e-5)
    assert np.array_equal(caches["residual"][0], after["residual"][0])
    captured: list[Any] = []
    inner = unet.inner
    monkeypatch.setattr(
        unet, "inner", lambda *arguments: captured.append(inner(*arguments)) or captured[-1]
    )
    inner_output = jax.jit(lambda *arguments: (unet(*arguments), captured.pop())[1])(*earlier)
    monkeypatch.setattr(unet, "inner", lambda *arguments: inner_output)
    expected = plain(unet, now)
    np.testing.assert_allclose(prediction[first_row], expected[first_row], rtol=1e-5, atol=1e-5)


def test_strips_are_split_and_joined_around_the_cache(
    unet: UNet, monkeypatch: pytest.MonkeyPatch
) -> None:
    earlier, now = inputs(unet, 1), inputs(unet, 2)
    _, after = step(unet, kept(unet), [WHOLE, WHOLE], earlier)
    expected, _ = step(unet, after, [REUSE, WHOLE], now)
    monkeypatch.setattr(unet, "_strips", lambda *sizes: 2)
    with TraceOptions().active():
        prediction, caches = step(unet, after, [REUSE, WHOLE], now)
    np.testing.assert_allclose(prediction, expected, rtol=1e-4, atol=1e-4)
    assert caches["residual"].shape == after["residual"].shape
