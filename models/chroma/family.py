"""Chroma: its checkpoints, and the configs of the published ones.

Source: lodestones/Chroma1-HD and Chroma1-Base, whose transformer has diffusers' defaults
(`ChromaConfig`).
"""

from __future__ import annotations

from models.interface.family import Family, PublishedCheckpoint, SingleFiles, config_files
from models.sampling.published import FLOW_MATCH
from models.text.published import T5_XXL
from models.vae.published import FLUX_1

PIPELINES = ("ChromaPipeline", "ChromaImg2ImgPipeline", "ChromaInpaintPipeline")
NETWORKS = {"transformer": {}, "text_encoder": T5_XXL, "vae": FLUX_1}
SCHEDULER = {**FLOW_MATCH, "shift": 1.0, "use_dynamic_shifting": False, "use_beta_sigmas": True}

FAMILY = Family(
    "chroma",
    "Chroma",
    dict.fromkeys(PIPELINES, f"{__package__}.load"),
    options=frozenset({"token_buckets"}),
    single_files=SingleFiles(("text_encoder", "vae"), "double_blocks or transformer_blocks"),
    published={
        "chroma1-hd": PublishedCheckpoint(config_files(PIPELINES[0], SCHEDULER, NETWORKS)),
    },
)
