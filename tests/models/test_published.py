"""The memory that the README states for full-size checkpoints, and where the numbers come from."""

from __future__ import annotations

import re
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from models.published import CHECKPOINTS, gibibytes
from models.sdxl import published as sdxl
from models.sdxl.config import UNetConfig
from models.sdxl.unet import UNet
from models.text.clip import ClipConfig, ClipTextModel, ClipTextModelWithProjection
from models.text.umt5 import UMT5Config, UMT5Encoder
from models.vae.config import VaeConfig
from models.vae.image import AutoencoderKL
from models.vae.video import VideoAutoencoder
from models.vae.video_config import VideoVaeConfig
from models.wan import published as wan
from models.wan.config import WanConfig
from models.wan.transformer import WanTransformer

README = Path(__file__).parents[2] / "README.md"

WHOLE = {
    "SDXL base 1.0": [
        (UNet, UNetConfig.from_dict(sdxl.UNET), jnp.bfloat16),
        (ClipTextModel, ClipConfig.from_dict(sdxl.CLIP_L), jnp.bfloat16),
        (ClipTextModelWithProjection, ClipConfig.from_dict(sdxl.CLIP_BIG_G), jnp.bfloat16),
        (AutoencoderKL, VaeConfig.from_dict(sdxl.VAE), jnp.bfloat16),
    ],
    "Wan 2.2 I2V A14B": [
        (WanTransformer, WanConfig.from_dict(wan.I2V_A14B), jnp.bfloat16),
        (WanTransformer, WanConfig.from_dict(wan.I2V_A14B), jnp.bfloat16),
        (UMT5Encoder, UMT5Config.from_dict(wan.UMT5_XXL), jnp.bfloat16),
        (VideoAutoencoder, VideoVaeConfig.from_dict(wan.VAE_2_1), jnp.float32),
    ],
}


@pytest.mark.parametrize("name", WHOLE)
def test_memory_is_that_of_the_networks_shapes(name: str) -> None:
    modules = [
        nnx.eval_shape(lambda k=kind, c=config, d=dtype: k(c, rngs=nnx.Rngs(0), param_dtype=d))
        for kind, config, dtype in WHOLE[name]
    ]
    leaves = jax.tree.leaves([nnx.state(module, nnx.Param) for module in modules])
    size = sum(leaf.size * leaf.dtype.itemsize for leaf in leaves)
    assert gibibytes(name, jnp.bfloat16) == size / 2**30


def test_the_readme_states_them() -> None:
    rows = re.findall(r"^\| ([\w. ]+) \| ([\d.]+) B \| ([\d.]+) GiB \|", README.read_text(), re.M)
    stated = {name: (float(billions), float(size)) for name, billions, size in rows}
    assert stated == {
        name: (
            round(sum(count.total for count in parts.values()) / 1e9, 1),
            round(gibibytes(name, jnp.bfloat16), 1),
        )
        for name, parts in CHECKPOINTS.items()
    }
