"""FLUX.2: its checkpoints, and the configs of the published ones.

Source: black-forest-labs/FLUX.2-klein-4B, FLUX.2-klein-9B and FLUX.2-dev. The base models of klein
have the same shapes.
"""

from __future__ import annotations

from models.interface.family import Family, PublishedCheckpoint, SingleFiles, config_files
from models.sampling.published import SHIFTED_BY_TOKENS
from models.text.published import MISTRAL_SMALL_3, QWEN3_4B, QWEN3_8B
from models.vae.published import FLUX_2

KLEIN, DEV = "Flux2KleinPipeline", "Flux2Pipeline"
TRANSFORMER = {
    "num_layers": 5,
    "num_single_layers": 20,
    "num_attention_heads": 24,
    "joint_attention_dim": 7680,
    "guidance_embeds": False,
}
"""Fields of the transformer that differ from diffusers' defaults (`Flux2Config`)."""
KLEIN_4B = {"transformer": TRANSFORMER, "text_encoder": QWEN3_4B, "vae": FLUX_2}
KLEIN_9B = {
    "transformer": {
        **TRANSFORMER,
        "num_layers": 8,
        "num_single_layers": 24,
        "num_attention_heads": 32,
        "joint_attention_dim": 12288,
    },
    "text_encoder": QWEN3_8B,
    "vae": FLUX_2,
}
DEV_NETWORKS = {
    "transformer": {"guidance_embeds": True},
    "text_encoder": MISTRAL_SMALL_3,
    "vae": FLUX_2,
}
"""Networks of dev; its transformer has diffusers' defaults."""

FAMILY = Family(
    "flux2",
    "FLUX.2",
    dict.fromkeys((KLEIN, DEV), f"{__package__}.load"),
    options=frozenset({"token_buckets"}),
    single_files=SingleFiles(("text_encoder", "vae"), "double_blocks or transformer_blocks"),
    published={
        "flux2-dev": PublishedCheckpoint(config_files(DEV, SHIFTED_BY_TOKENS, DEV_NETWORKS)),
        **{
            f"flux2-klein-{size}": PublishedCheckpoint(
                config_files(KLEIN, SHIFTED_BY_TOKENS, networks, is_distilled="base" not in size)
            )
            for size, networks in (
                *(("4b", KLEIN_4B), ("base-4b", KLEIN_4B)),
                *(("9b", KLEIN_9B), ("base-9b", KLEIN_9B)),
            )
        },
    },
)
