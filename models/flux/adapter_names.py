"""Layer names of Flux in adapter files.

Source: Black Forest Labs, FLUX.1 (flux/model.py) for the original names; XLabs, x-flux
(src/flux/modules/layers.py) for those of its processors.
"""

from __future__ import annotations

from models.adapters.clip_names import clip_spelling
from models.adapters.layer_names import Spelling
from models.checkpoint.authors_names import Fused
from models.flow.joint_names import DOUBLE, IMAGE_QKV, SINGLE, SWAPPED, TEXT_QKV
from models.flux.authors_names import JOINED, LAYERS
from models.flux.key_mapping import RENAMES

_XLABS_NAMES: Fused = {
    "double_blocks.{}.qkv_lora1": IMAGE_QKV,
    "double_blocks.{}.qkv_lora2": TEXT_QKV,
    "double_blocks.{}.proj_lora1": (f"{DOUBLE}attn.to_out.0",),
    "double_blocks.{}.proj_lora2": (f"{DOUBLE}attn.to_add_out",),
    "single_blocks.{}.qkv_lora": JOINED,
    "single_blocks.{}.proj_lora": (f"{SINGLE}proj_out",),
}

_OF_GUIDANCE = (
    *(f"time_text_embed.guidance_embedder.linear_{number}" for number in (1, 2)),
    *(f"guidance_in.{end}_layer" for end in ("in", "out")),
)
"""Layers that schnell lacks."""

TRANSFORMER = Spelling(
    RENAMES,
    fused=lambda network: {**LAYERS, **_XLABS_NAMES},
    swapped=SWAPPED,
    narrow=lambda network: {"x_embedder": 4 * network.config.latent_channels},
    unread=("norm",),
    absent=_OF_GUIDANCE,
)

SPELLINGS = (TRANSFORMER, clip_spelling("clip", "text_encoder", ("lora_te1", "lora_te"), "clip_l"))
