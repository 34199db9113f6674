"""Layer names of Wan in adapter files."""

from __future__ import annotations

from models.adapters.layer_names import DOTTED, Spelling
from models.spec.lora import Expert
from models.wan.authors_names import LAYERS
from models.wan.key_mapping import RENAMES

_EMBEDDER = "condition_embedder.image_embedder.ff.net"
_OF_IMAGES = (
    *(f"blocks.{{}}.attn2.add_{letter}_proj" for letter in "kv"),
    *(f"blocks.{{}}.cross_attn.{letter}_img" for letter in "kv"),
    *(f"{_EMBEDDER}.0.proj", f"{_EMBEDDER}.2", "img_emb.proj.1", "img_emb.proj.3"),
)
"""Layers that only image to video of Wan 2.1 has."""


def _expert(network: str, expert: Expert) -> Spelling:
    return Spelling(
        network=network,
        renames=RENAMES,
        dotted=(*DOTTED, ""),
        fused=lambda network: LAYERS,
        expert=expert,
        unread=(
            *("norm", "modulation", r"\.diff_m$", r"(?:^|\.)patch_embedding(?:$|\.)"),
            r"img_emb\.proj\.[04](?:$|\.)",
        ),
        unread_alone=("time_projection", "time_proj$"),
        absent=_OF_IMAGES,
    )


SPELLINGS = (_expert("transformer", "high"), _expert("transformer_2", "low"))
