"""LTX-2: its checkpoints, and what its loader accepts."""

from __future__ import annotations

from models.interface.family import Family, PublishedCheckpoint, SingleFiles, config_files
from models.ltx.published import LTX_2, LTX_2_3, SCHEDULER

PIPELINES = ("LTX2Pipeline", "LTX2ImageToVideoPipeline")

FAMILY = Family(
    "ltx",
    "LTX-2",
    dict.fromkeys(PIPELINES, f"{__package__}.load"),
    options=frozenset({"latent_upsampler"}),
    single_files=SingleFiles(
        ("text_encoder", "connectors", "vae", "audio_vae", "vocoder", "latent_upsampler"),
        "audio_patchify_proj or audio_proj_in",
    ),
    published={
        name: PublishedCheckpoint(config_files(PIPELINES[0], SCHEDULER, networks))
        for name, networks in (("ltx-2.3", LTX_2_3), ("ltx-2", LTX_2))
    },
)
