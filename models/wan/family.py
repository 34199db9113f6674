"""Wan 2.1 and 2.2, VACE and Animate: their checkpoints, and what their loader accepts."""

from __future__ import annotations

from typing import Any

from models.interface.family import (
    Config,
    Family,
    PublishedCheckpoint,
    SingleFiles,
    config_files,
)
from models.vision.preprocess import FILE as PREPROCESSOR
from models.wan import published

TEXT_TO_VIDEO, FROM_IMAGE = "WanPipeline", "WanImageToVideoPipeline"
VACE, ANIMATE = "WanVACEPipeline", "WanAnimatePipeline"


def _checkpoint(
    shift: float,
    *experts: Config,
    pipeline: str = TEXT_TO_VIDEO,
    vae: Config = published.VAE_2_1,
    **index: Any,
) -> PublishedCheckpoint:
    """Return the published configs of a Wan checkpoint with one or two experts.

    Args:
        shift: of the schedule.
        index: further entries of `model_index.json`.
    """
    networks = dict(zip(("transformer", "transformer_2"), experts, strict=False))
    networks |= {"text_encoder": published.UMT5_XXL, "vae": vae}
    preprocessor = {}
    if experts[0]["image_dim"] is not None:
        networks["image_encoder"] = published.CLIP_VIT_H
        preprocessor = {f"image_processor/{PREPROCESSOR}": {"size": {"shortest_edge": 224}}}
    scheduler = {**published.SCHEDULER, "flow_shift": shift}
    files = config_files(pipeline, scheduler, networks, **index)
    return PublishedCheckpoint({**files, **preprocessor})


FAMILY = Family(
    "wan",
    "Wan",
    dict.fromkeys((TEXT_TO_VIDEO, FROM_IMAGE, VACE, ANIMATE), f"{__package__}.load"),
    options=frozenset({"swap_experts", "token_buckets"}),
    single_files=SingleFiles(("text_encoder", "vae", "image_encoder")),
    published={
        "wan2.1-1.3b": _checkpoint(3.0, published.T2V_1_3B),
        "wan2.1-14b": _checkpoint(5.0, published.T2V_14B),
        "wan2.1-i2v-14b": _checkpoint(5.0, published.I2V_14B, pipeline=FROM_IMAGE),
        "wan2.1-vace-1.3b": _checkpoint(3.0, published.VACE_1_3B, pipeline=VACE),
        "wan2.1-vace-14b": _checkpoint(5.0, published.VACE_14B, pipeline=VACE),
        "wan2.2-animate-14b": _checkpoint(5.0, published.ANIMATE_14B, pipeline=ANIMATE),
        "wan2.2-a14b": _checkpoint(
            12.0, published.T2V_14B, published.T2V_14B, boundary_ratio=0.875
        ),
        "wan2.2-i2v-a14b": _checkpoint(
            5.0,
            published.I2V_A14B,
            published.I2V_A14B,
            pipeline=FROM_IMAGE,
            boundary_ratio=0.9,
        ),
        "wan2.2-5b": _checkpoint(
            5.0, published.TI2V_5B, vae=published.VAE_2_2, expand_timesteps=True
        ),
    },
)
