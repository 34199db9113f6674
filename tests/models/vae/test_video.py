"""Video autoencoder: chunks equal the whole video but need less memory; half precision."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from models.loading.abstract import abstract_module
from models.parallel.jax_internals import subjaxprs
from models.vae.video import VideoAutoencoder
from models.vae.video_blocks import RmsNorm, by_volumes, convolve_frames, over_time
from models.vae.video_config import VideoVaeConfig
from tests import coarse

CONFIG = VideoVaeConfig(
    base_dim=6,
    z_dim=3,
    dim_mult=(1, 2),
    num_res_blocks=1,
    temperal_downsample=(True,),
    latents_mean=(0.0,) * 3,
    latents_std=(1.0,) * 3,
)
ROUNDING = 1e-5  # float32, of values of about 1


@pytest.fixture(scope="module")
def vae() -> VideoAutoencoder:
    """Autoencoder with random weights that keep activations near 1."""
    rng = np.random.default_rng(0)

    def drawn(leaf: jax.ShapeDtypeStruct) -> np.ndarray:
        if leaf.ndim == 1 or leaf.shape[1:] == (1,) * (leaf.ndim - 1):
            return rng.uniform(0.5, 1, leaf.shape).astype(leaf.dtype)
        spread = np.prod(leaf.shape[:-1]) ** -0.5
        return rng.normal(0, spread, leaf.shape).astype(leaf.dtype)

    graph, state = nnx.split(abstract_module(VideoAutoencoder, CONFIG))
    return nnx.merge(graph, jax.tree.map(drawn, state))


LATENTS = np.random.default_rng(1).normal(size=(1, 3, 2, 3, 3)).astype(np.float32)


@pytest.fixture(scope="module")
def decoded(vae: VideoAutoencoder) -> np.ndarray:
    return np.asarray(run(VideoAutoencoder.decode, vae, LATENTS))


def compiled(
    method: Callable[..., Any], vae: VideoAutoencoder, x: Any
) -> tuple[jax.stages.Compiled, nnx.State]:
    graph, state = nnx.split(vae)
    lowered = jax.jit(lambda state, x: method(nnx.merge(graph, state), x)).lower(state, x)
    return lowered.compile(compiler_options=coarse.OPTIONS), state


def run(method: Callable[..., Any], vae: VideoAutoencoder, x: jax.Array) -> Any:
    program, state = compiled(method, vae, x)
    return program(state, x)


def test_chunked_latents_match_the_whole_video(vae: VideoAutoencoder) -> None:
    pixels = np.random.default_rng(2).uniform(-1, 1, (2, 9, 6, 4, 3)).astype(np.float32)
    mean, log_variance = run(VideoAutoencoder.encode, vae, pixels)
    whole_mean, whole_variance = run(VideoAutoencoder.encode_whole, vae, pixels)
    assert mean.shape == (2, 5, 3, 2, 3)
    np.testing.assert_allclose(mean, whole_mean, atol=ROUNDING)
    np.testing.assert_allclose(log_variance, whole_variance, atol=ROUNDING)


def test_chunked_pixels_match_the_whole_video(vae: VideoAutoencoder, decoded: np.ndarray) -> None:
    """The comparison precedes clipping. No frame depends on later frames."""
    program, state = compiled(VideoAutoencoder.decode_whole, vae, LATENTS)
    unchunked = np.asarray(program(state, LATENTS))
    assert unchunked.shape == (1, 5, 4, 6, 3)
    assert np.abs(unchunked).max() > 1.1
    np.testing.assert_allclose(decoded, np.clip(unchunked, -1, 1), atol=ROUNDING)
    changed = LATENTS.copy()
    changed[:, 2] = 0
    output_of_changed = np.asarray(program(state, changed))
    np.testing.assert_array_equal(unchunked[:, :3], output_of_changed[:, :3])
    assert np.abs(unchunked[:, 3] - output_of_changed[:, 3]).max() > 0.01


def test_each_chunk_may_leave_as_bytes(vae: VideoAutoencoder, decoded: np.ndarray) -> None:
    def to_bytes(pixels: jax.Array) -> jax.Array:
        return jnp.rint(127.5 * pixels + 127.5).astype(jnp.uint8)

    frames = run(lambda vae, x: vae.decode(x, finish=to_bytes), vae, LATENTS)
    assert frames.dtype == np.uint8
    assert np.abs(frames - (127.5 * decoded + 127.5)).max() < 0.51


def test_memory_does_not_grow_with_the_video(vae: VideoAutoencoder) -> None:
    """Memory in addition to the pixels. Decoding the whole video at once needs more."""

    def working_bytes(method: Callable[..., Any], frames: int) -> int:
        shape = jax.ShapeDtypeStruct((1, frames, 16, 16, 3), jnp.float32)
        memory = compiled(method, vae, shape)[0].memory_analysis()
        assert memory is not None
        return int(memory.temp_size_in_bytes)

    sizes = [working_bytes(VideoAutoencoder.decode, frames) for frames in (5, 21)]
    one_frame = 32 * 32 * 3 * 4
    assert max(sizes) - min(sizes) <= one_frame
    assert working_bytes(VideoAutoencoder.decode_whole, 21) > 8 * max(sizes)


def test_a_vae_with_too_many_halvings_in_time_encodes_single_frames_only() -> None:
    """The reference also runs out of chunks of four frames. Decoding supports videos."""
    flags = {"dim_mult": (1, 1, 1, 1), "temperal_downsample": (True,) * 3}
    config = VideoVaeConfig(base_dim=2, z_dim=1, latents_mean=(0.0,), latents_std=(1.0,), **flags)

    def shapes(method: Callable[..., Any], frames: int, side: int, channels: int) -> Any:
        def call() -> Any:
            vae = VideoAutoencoder(config, rngs=nnx.Rngs(0))
            return method(vae, jnp.zeros((1, frames, side, side, channels)))

        return jax.eval_shape(call)

    assert shapes(VideoAutoencoder.encode, 1, 8, 3)[0].shape == (1, 1, 1, 1, 1)
    assert shapes(VideoAutoencoder.decode, 3, 1, 1).shape == (1, 17, 8, 8, 3)
    with pytest.raises(ValueError, match="temperal_downsample"):
        shapes(VideoAutoencoder.encode, 9, 8, 3)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_is_kept(dtype: str) -> None:
    """All products use it; the norms' sums and the attention's logits are float32."""

    def call(frames: jax.Array) -> jax.Array:
        vae = VideoAutoencoder(CONFIG, rngs=nnx.Rngs(0), param_dtype=jnp.dtype(dtype))
        mean, _ = vae.encode(frames)
        return vae.decode(mean)

    frames = jnp.zeros((1, 9, 4, 4, 3), dtype)
    program, out = jax.make_jaxpr(call, return_shape=True)(frames)
    assert out.dtype == jnp.dtype(dtype)
    assert operand_dtypes(program.jaxpr) == {jnp.dtype(dtype)}
    assert sum_dtypes(program.jaxpr) == {jnp.dtype("float32")}


def operand_dtypes(jaxpr: Any) -> set[np.dtype]:
    """Operand dtypes of every convolution and product; float32 would reveal a silent promotion."""
    names = ("conv_general_dilated", "dot_general")
    dtypes = {v.aval.dtype for e in jaxpr.eqns if e.primitive.name in names for v in e.invars}
    return dtypes.union(*(operand_dtypes(inner) for inner in subjaxprs(jaxpr)))


def sum_dtypes(jaxpr: Any) -> set[np.dtype]:
    dtypes = {e.invars[0].aval.dtype for e in jaxpr.eqns if e.primitive.name == "reduce_sum"}
    return dtypes.union(*(sum_dtypes(inner) for inner in subjaxprs(jaxpr)))


@pytest.mark.parametrize(("window", "stride"), [((3, 3, 3), 1), ((3, 1, 1), 2)])
def test_both_forms_of_a_convolution_over_time_agree(window: tuple, stride: int) -> None:
    x = jax.random.normal(jax.random.key(4), (2, 7, 4, 5, 3))
    kernel = jax.random.normal(jax.random.key(5), (*window, 3, 2))
    volumes, frames = by_volumes(x, kernel, stride), convolve_frames(x, kernel, stride)
    assert volumes.shape == (2, 5 if stride == 1 else 3, 4, 5, 2)
    np.testing.assert_allclose(volumes, frames, atol=10 * ROUNDING)


@pytest.mark.parametrize(("platform", "axes"), [("cpu", 4), ("tpu", 5), ("cuda", 5)])
def test_an_accelerator_convolves_volumes(platform: str, axes: int) -> None:
    x, kernel = jnp.zeros((1, 4, 5, 6, 3)), jnp.zeros((3, 3, 3, 3, 2))
    traced = jax.jit(over_time, static_argnums=2).trace(x, kernel, 1)
    text = traced.lower(lowering_platforms=(platform,)).as_text()
    (line,) = (line for line in text.splitlines() if "stablehlo.convolution" in line)
    result = line.rpartition("->")[2].partition("<")[2].partition(">")[0]
    assert len(result.split("x")) - 1 == axes


def test_rms_norm_of_zeros_is_zero_with_finite_gradient() -> None:
    """The gradient is finite too: padding consists of zeros, and training differentiates through
    them.
    """
    norm = RmsNorm(3, 2, rngs=nnx.Rngs(0))
    zeros = jnp.zeros((1, 1, 1, 1, 3))
    assert not np.asarray(norm(zeros)).any()
    assert np.isfinite(jax.grad(lambda x: norm(x).sum())(zeros)).all()
