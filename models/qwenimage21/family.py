"""Qwen-Image 2.1: its checkpoints, and the config of the published one.

Source: Qwen/Qwen-Image-2.1, whose transformer and autoencoder have diffusers' defaults
(`QwenImage21Config`, `FrameVaeConfig`).
"""

from __future__ import annotations

from collections.abc import Mapping

from models.interface.family import (
    Config,
    Family,
    PublishedCheckpoint,
    SingleFiles,
    config_files,
)
from models.sampling.published import FLOW_MATCH
from models.text.published import QWEN3_VL_8B
from models.vision.preprocess import FILE as PREPROCESSOR

PIPELINE = "QwenImage21Pipeline"
NETWORKS: Mapping[str, Config] = {"transformer": {}, "text_encoder": QWEN3_VL_8B, "vae": {}}
PROCESSOR = {
    "size": {"shortest_edge": 65536, "longest_edge": 16777216},
    "patch_size": 16,
    "temporal_patch_size": 2,
    "merge_size": 2,
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
}
"""Image processor of the text encoder."""
SCHEDULER = {
    **FLOW_MATCH,
    "shift": 1.0,
    "use_dynamic_shifting": True,
    "max_image_seq_len": 8192,
    "max_shift": 0.9,
    "shift_terminal": 0.02,
}

FAMILY = Family(
    "qwenimage21",
    "Qwen-Image 2.1",
    {PIPELINE: f"{__package__}.edit.load"},
    single_files=SingleFiles(("text_encoder", "vae"), "transformer_blocks and txt_in"),
    published={
        "qwen-image-2.1": PublishedCheckpoint(
            {
                **config_files(PIPELINE, SCHEDULER, NETWORKS),
                f"processor/{PREPROCESSOR}": PROCESSOR,
            }
        ),
    },
)
