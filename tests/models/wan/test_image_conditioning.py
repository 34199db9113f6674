from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from models.wan.image_conditioning import (
    conditioning_video,
    join,
    known_frames,
    token_timesteps,
    with_first_frame,
)


def test_the_first_frame_fills_its_latent_and_the_last_one_a_quarter_of_its_own() -> None:
    mask = known_frames(3, 4, with_last=False)
    assert mask.tolist() == [[1, 1, 1, 1], [0, 0, 0, 0], [0, 0, 0, 0]]
    mask = known_frames(3, 4, with_last=True)
    assert mask.tolist() == [[1, 1, 1, 1], [0, 0, 0, 0], [0, 0, 0, 1]]
    joined = join(mask, jnp.full((3, 2, 2, 5), 7.0))
    assert joined.shape == (3, 2, 2, 9)
    assert joined[2, 1, 0].tolist() == [0, 0, 0, 1, 7, 7, 7, 7, 7]


def test_between_the_pictures_there_is_grey() -> None:
    first, last = jnp.full((2, 2, 3), -1.0), jnp.ones((2, 2, 3))
    means = conditioning_video(first, last, 5).mean(axis=(1, 2, 3))
    assert means.tolist() == [-1, 0, 0, 0, 1]
    assert conditioning_video(first, None, 5).mean(axis=(1, 2, 3)).tolist() == [-1, 0, 0, 0, 0]
    assert conditioning_video(first, None, 1).shape == (1, 2, 2, 3)


def test_tokens_of_the_first_frame_are_at_timestep_0() -> None:
    times = token_timesteps(jnp.asarray([10.0, 20.0]), (3, 1, 2))
    np.testing.assert_array_equal(times, [[0, 0, 10, 10, 10, 10], [0, 0, 20, 20, 20, 20]])


def test_the_picture_takes_the_place_of_the_first_frame_in_rows_and_in_one_row() -> None:
    latents, first = jnp.zeros((2, 3, 1, 1, 1)), jnp.ones((2, 1, 1, 1, 1))
    rows = with_first_frame(latents, first)
    assert rows[:, :, 0, 0, 0].tolist() == [[1, 0, 0], [1, 0, 0]]
    np.testing.assert_array_equal(with_first_frame(latents[0], first[0]), rows[0])
