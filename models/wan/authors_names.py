"""Original array names of the Wan transformer, as used in single files.

Source: Alibaba Wan Team, Wan2.1 (wan/modules/model.py).
"""

from __future__ import annotations

from models.checkpoint.authors_names import Fused, authors_renames
from models.checkpoint.key_mapping import Renames
from models.wan.key_mapping import RENAMES

_PROJECTIONS = {"q": "to_q", "k": "to_k", "v": "to_v", "o": "to_out.0"}
_CONDITIONS = "condition_embedder"

_LAYERS: Fused = {
    **{f"blocks.{{}}.self_attn.{a}": (f"blocks.{{}}.attn1.{b}",) for a, b in _PROJECTIONS.items()},
    **{f"blocks.{{}}.cross_attn.{a}": (f"blocks.{{}}.attn2.{b}",) for a, b in _PROJECTIONS.items()},
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
_NORMS: Fused = {
    "blocks.{}.self_attn.norm_q": ("blocks.{}.attn1.norm_q",),
    "blocks.{}.self_attn.norm_k": ("blocks.{}.attn1.norm_k",),
    "blocks.{}.cross_attn.norm_q": ("blocks.{}.attn2.norm_q",),
    "blocks.{}.cross_attn.norm_k": ("blocks.{}.attn2.norm_k",),
    "blocks.{}.cross_attn.norm_k_img": ("blocks.{}.attn2.norm_added_k",),
    "blocks.{}.norm3": ("blocks.{}.norm2",),
    "img_emb.proj.0": (f"{_CONDITIONS}.image_embedder.norm1",),
    "img_emb.proj.4": (f"{_CONDITIONS}.image_embedder.norm2",),
    "face_adapter.fuser_blocks.{}.q_norm": ("face_adapter.{}.norm_q",),
    "face_adapter.fuser_blocks.{}.k_norm": ("face_adapter.{}.norm_k",),
}


def _control(layers: Fused) -> Fused:
    """Return the authors' layer names of VACE's control blocks, derived from the main blocks'."""
    return {
        f"vace_{source}": tuple(f"vace_{target}" for target in targets)
        for source, targets in layers.items()
        if source.startswith("blocks.")
    }


LAYERS: Fused = {
    **_LAYERS,
    **_control(_LAYERS),
    "vace_blocks.0.before_proj": ("vace_blocks.0.proj_in",),
    "vace_blocks.{}.after_proj": ("vace_blocks.{}.proj_out",),
    "face_adapter.fuser_blocks.{}.linear1_q": ("face_adapter.{}.to_q",),
    "face_adapter.fuser_blocks.{}.linear1_kv": ("face_adapter.{}.to_k", "face_adapter.{}.to_v"),
    "face_adapter.fuser_blocks.{}.linear2": ("face_adapter.{}.to_out",),
}
_EMBEDDINGS: Fused = {
    name: (name,) for name in ("patch_embedding", "vace_patch_embedding", "pose_patch_embedding")
}
_ALL: Fused = {**_EMBEDDINGS, **LAYERS, **_NORMS, **_control(_NORMS)}

AUTHORS_RENAMES: Renames = (
    *authors_renames(_ALL, RENAMES),
    (r"blocks\.(\d+)\.modulation", r"blocks.scale_shift_table[\1]"),
    (r"vace_blocks\.(\d+)\.modulation", r"control_blocks.scale_shift_table[\1]"),
    (r"head\.modulation", "scale_shift_table"),
    (r"img_emb\.emb_pos", "image_in.positions"),
    (r"(?:motion|face)_encoder\..+", ""),  # a separate network
)
