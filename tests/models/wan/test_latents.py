from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from models.interface.images import to_frames
from models.sampling.torch_rng import TorchGenerator
from models.spec.request import RequestError, read_request
from models.vae.normalisation import Normalisation
from models.wan.latents import Grid, draw_noise
from models.wan.request import WanRequest
from tests.models.wan.test_request import FIELDS

GRID = Grid(frame=4, pixel=8, patch=(1, 2, 2), max_tokens=32)


def request(**changes: Any) -> WanRequest:
    return read_request(WanRequest, FIELDS | changes)


def test_video_of_1_and_4k_frames_has_1_and_k_latents() -> None:
    assert GRID.latents(request(num_frames=9, width=80, height=48)) == (3, 6, 10)
    assert GRID.latents(request(num_frames=1)) == (1, 6, 10)


@pytest.mark.parametrize(("count", "message"), [(15, "13 or 17, not 15"), (2, "1 or 5, not 2")])
def test_invalid_frame_count_names_the_nearest_ones(count: int, message: str) -> None:
    with pytest.raises(RequestError, match=message) as error:
        GRID.latents(request(num_frames=count))
    assert error.value.field == "num_frames"


def test_temporal_patches_need_whole_latents() -> None:
    grid = Grid(frame=4, pixel=8, patch=(2, 2, 2), max_tokens=32)
    assert [grid.frames_near(count) for count in (5, 9, 13)] == [(5, 5), (5, 13), (13, 13)]
    assert grid.max_frames == 4 * 63 + 1


@pytest.mark.parametrize(
    ("field", "value"),
    [("width", 72), ("height", 8), ("width", 33 * 16), ("num_frames", 4 * 32 + 1)],
)
def test_sizes_that_do_not_divide_or_pass_the_end_of_rope_are_refused(
    field: str, value: int
) -> None:
    with pytest.raises(RequestError) as error:
        GRID.latents(request(**{field: value}))
    assert error.value.field == field


def test_noise_is_generated_channel_by_channel() -> None:
    noise = draw_noise(TorchGenerator(3), (2, 3, 4), 5)
    values = TorchGenerator(3).randn((5, 2, 3, 4))
    assert noise.shape == (2, 3, 4, 5)
    np.testing.assert_array_equal(noise[1, 2, 3], values[:, 1, 2, 3])


def test_frames_are_cut_off_not_rounded() -> None:
    grey = np.array([-2.0, -1.0, 0.0, 0.999, 1.0, 2.0], np.float32)
    assert to_frames(jnp.asarray(grey)).tolist() == [0, 0, 127, 254, 255, 255]


def test_normalisation_undoes_itself() -> None:
    normalisation = Normalisation((0.5, -1.0), (2.0, 0.25))
    latents = jnp.asarray([[1.0, 2.0], [-3.0, 0.5]])
    normalised = normalisation.apply(latents)
    np.testing.assert_array_equal(normalised, [[0.25, 12.0], [-1.75, 6.0]])
    np.testing.assert_array_equal(normalisation.undo(normalised), latents)
