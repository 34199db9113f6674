"""Non-finite outputs of finite latents: each stage fails its image and is named in the error."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from models.interface.finite import IMAGE, SOUND, decode_checked, record_finite
from models.interface.pipeline import PyTree
from models.parallel.axis_rules import Layout
from models.vae.video import in_chunks
from tests.workers.sound_toy import SoundingToy
from tests.workers.toy import DEFAULTS
from tests.workers.upscaler import upscalers
from workers.engine.engine import Engine
from workers.engine.errors import NON_FINITE, GenerationFailed
from workers.engine.upscaling import TilePrograms, Upscaling


class BrokenToy(SoundingToy):
    """Toy pipeline with non-finite output in one part."""

    def __init__(self, part: str) -> None:
        super().__init__()
        self.part = part

    def decode(self, weights: PyTree, row: PyTree) -> Any:
        record_finite(row["latents"])
        record_finite(jnp.log(-jnp.ones(2)), self.part)
        return super().decode(weights, row)


@pytest.mark.parametrize(
    ("part", "stage"), [(IMAGE, "the VAE's decoder"), (SOUND, "the decoder of its sound")]
)
async def test_a_decoder_is_named(layout: Layout, part: str, stage: str) -> None:
    engine = Engine(BrokenToy(part), layout, slots=1)
    try:
        with pytest.raises(GenerationFailed, match=rf"{stage}.*models.*dtype") as failure:
            await engine.generate({**DEFAULTS, "num_frames": 5}, {})
    finally:
        engine.close()
    assert failure.value.error.code == NON_FINITE


def test_a_tile_of_an_upscaler_is_checked() -> None:
    loaded = upscalers()["twice"]
    kernel = loaded.network.conv_last.kernel
    kernel.set_value(kernel.get_value() * jnp.nan)
    upscaling = Upscaling(TilePrograms("toy", loaded), np.zeros((8, 8, 3), np.uint8), 2)
    with pytest.raises(GenerationFailed, match=r"the upscaler.*dtype"):
        for work in upscaling.tile_tasks():
            work()


@pytest.mark.parametrize("bad", [0, 1, 4])
def test_single_frame_of_a_video_is_sufficient(bad: int) -> None:
    """Frames are decoded in the body of a loop, which passes on the result of its check."""

    def frames(chunk: jax.Array, cache: object) -> jax.Array:
        record_finite(chunk)
        return chunk

    for value, is_finite in ((1.0, True), (jnp.inf, False), (jnp.nan, False)):
        video = jnp.ones((1, 5, 2, 2, 3)).at[0, bad, 1, 1, 2].set(value)
        output = jax.jit(lambda video: decode_checked(in_chunks, frames, video, 1, 1))(video)
        assert bool(output.finite[IMAGE]) is is_finite
        assert (output.non_finite_part is None) is is_finite
