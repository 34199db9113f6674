"""Krea 2: its checkpoints, and the configs of the published ones.

Source: krea/Krea-2-Raw and krea/Krea-2-Turbo, whose transformer has diffusers' defaults
(`Krea2Config`); Turbo is distilled to few steps.
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
from models.text.published import QWEN3_VL_4B
from models.vae.published import QWEN_IMAGE

PIPELINE = "Krea2Pipeline"
NETWORKS: Mapping[str, Config] = {
    "transformer": {},
    "text_encoder": QWEN3_VL_4B,
    "vae": QWEN_IMAGE,
}
SCHEDULER = {
    **FLOW_MATCH,
    "shift": 1.0,
    "use_dynamic_shifting": True,
    "max_image_seq_len": 6400,
}

FAMILY = Family(
    "krea2",
    "Krea 2",
    {PIPELINE: f"{__package__}.load"},
    single_files=SingleFiles(("text_encoder", "vae"), "blocks and txtfusion"),
    published={
        name: PublishedCheckpoint(
            config_files(PIPELINE, SCHEDULER, NETWORKS, is_distilled=is_distilled)
        )
        for name, is_distilled in (("krea-2-raw", False), ("krea-2-turbo", True))
    },
)
