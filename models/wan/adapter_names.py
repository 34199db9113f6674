"""Names of Wan's layers in files of adapters.

Source: Alibaba Wan Team, Wan2.1 (wan/modules/model.py) for the authors' names.
"""

from __future__ import annotations

from models.adapters.layer_names import Fused, Spelling
from models.spec.lora import Expert
from models.wan.key_mapping import RENAMES

_LAYERS = {"q": "to_q", "k": "to_k", "v": "to_v", "o": "to_out.0"}
_CONDITIONS = "condition_embedder"

_AUTHORS_NAMES: Fused = {
    **{f"blocks.{{}}.self_attn.{a}": (f"blocks.{{}}.attn1.{b}",) for a, b in _LAYERS.items()},
    **{f"blocks.{{}}.cross_attn.{a}": (f"blocks.{{}}.attn2.{b}",) for a, b in _LAYERS.items()},
    "blocks.{}.cross_attn.k_img": ("blocks.{}.attn2.add_k_proj",),
    "blocks.{}.cross_attn.v_img": ("blocks.{}.attn2.add_v_proj",),
    "blocks.{}.ffn.0": ("blocks.{}.ffn.net.0.proj",),
    "blocks.{}.ffn.2": ("blocks.{}.ffn.net.2",),
    "time_embedding.0": (f"{_CONDITIONS}.time_embedder.linear_1",),
    "time_embedding.2": (f"{_CONDITIONS}.time_embedder.linear_2",),
    "time_projection.1": (f"{_CONDITIONS}.time_proj",),
    "text_embedding.0": (f"{_CONDITIONS}.text_embedder.linear_1",),
    "text_embedding.2": (f"{_CONDITIONS}.text_embedder.linear_2",),
    "img_emb.proj.1": (f"{_CONDITIONS}.image_embedder.ff.net.0.proj",),
    "img_emb.proj.3": (f"{_CONDITIONS}.image_embedder.ff.net.2",),
    "head.head": ("proj_out",),
}


def _expert(network: str, expert: Expert) -> Spelling:
    return Spelling(
        network=network,
        renames=RENAMES,
        dotted=("transformer.", "diffusion_model.", "model.diffusion_model.", ""),
        underscored=("lora_unet_",),
        fused=lambda network: _AUTHORS_NAMES,
        expert=expert,
        unread=(
            *("norm", "modulation", r"(?:^|\.)patch_embedding(?:$|\.)"),
            r"img_emb\.proj\.[04](?:$|\.)",
        ),
        unread_alone=("time_projection", "time_proj$"),
    )


SPELLINGS = (_expert("transformer", "high"), _expert("transformer_2", "low"))
