"""Layer names of Wan in adapter files."""

from __future__ import annotations

from models.adapters.layer_names import Spelling
from models.spec.lora import Expert
from models.wan.authors_names import LAYERS
from models.wan.key_mapping import RENAMES


def _expert(network: str, expert: Expert) -> Spelling:
    return Spelling(
        network=network,
        renames=RENAMES,
        dotted=("transformer.", "diffusion_model.", "model.diffusion_model.", ""),
        underscored=("lora_unet_",),
        fused=lambda network: LAYERS,
        expert=expert,
        unread=(
            *("norm", "modulation", r"(?:^|\.)patch_embedding(?:$|\.)"),
            r"img_emb\.proj\.[04](?:$|\.)",
        ),
        unread_alone=("time_projection", "time_proj$"),
    )


SPELLINGS = (_expert("transformer", "high"), _expert("transformer_2", "low"))
