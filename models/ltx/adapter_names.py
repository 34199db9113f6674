"""Layer names of LTX-2 in adapter files.

Source: diffusers, loaders/lora_conversion_utils.py, _convert_non_diffusers_ltx2_lora_to_diffusers.
"""

from __future__ import annotations

from typing import Any

from models.adapters.layer_names import Spelling
from models.checkpoint.authors_names import Fused
from models.ltx.authors_names import LAYERS
from models.ltx.key_mapping import TRANSFORMER as RENAMES
from models.ltx.key_mapping import connector_renames

TRANSFORMER = Spelling(RENAMES, fused=lambda network: LAYERS)


def _projections(network: Any) -> Fused:
    """Return the original names of the text projections, and diffusers' name of a shared one."""
    video, audio = "video_text_proj_in", "audio_text_proj_in"
    if network.config.per_modality_projections:
        return {"video_aggregate_embed": (video,), "audio_aggregate_embed": (audio,)}
    return {"aggregate_embed": (video,), "text_proj_in": (video,)}


CONNECTORS = Spelling(
    (*connector_renames(per_modality=True), *connector_renames(per_modality=False)),
    network="connectors",
    dotted=("connectors.", "text_embedding_projection."),
    underscored=(),
    fused=_projections,
)

SPELLINGS = (TRANSFORMER, CONNECTORS)
