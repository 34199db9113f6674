"""Packing of latents into tokens, and conversion of outputs to pixels."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from models.interface.images import to_uint8
from models.vae.patches import pack, pack_by_pixel, unpack, unpack_by_pixel


def test_a_token_is_a_patch_ordered_channel_row_column() -> None:
    latents = np.arange(4 * 6 * 3, dtype=np.float32).reshape(4, 6, 3)
    packed = pack(jnp.asarray(latents))
    assert packed.shape == (6, 12)
    patch = latents[2:4, 4:6]  # second row of tokens, third column
    np.testing.assert_array_equal(packed[5], patch.transpose(2, 0, 1).reshape(-1))


def test_a_token_by_pixel_is_a_patch_ordered_row_column_channel() -> None:
    latents = np.arange(4 * 6 * 3, dtype=np.float32).reshape(4, 6, 3)
    packed = pack_by_pixel(jnp.asarray(latents))
    np.testing.assert_array_equal(packed[5], latents[2:4, 4:6].reshape(-1))


@pytest.mark.parametrize(
    ("pack", "unpack"), [(pack, unpack), (pack_by_pixel, unpack_by_pixel)], ids=["", "by pixel"]
)
def test_unpack_is_the_inverse(
    pack: Callable[[jax.Array], jax.Array], unpack: Callable[[jax.Array, int, int], jax.Array]
) -> None:
    latents = np.random.default_rng(0).normal(size=(4, 6, 5)).astype(np.float32)
    np.testing.assert_array_equal(unpack(pack(jnp.asarray(latents)), 4, 6), latents)


def test_pixels_are_clipped_and_rounded() -> None:
    levels = jnp.array([-9.0, -1.0, 0.0, 1.0, 7.0, 1.0])  # 0 becomes 127.5, rounded half to even
    pixels = to_uint8(levels.reshape(2, 1, 3)).reshape(-1)
    np.testing.assert_array_equal(pixels, [0, 0, 128, 255, 255, 255])
