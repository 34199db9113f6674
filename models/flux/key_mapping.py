"""Maps array names of Flux checkpoints, single files and adapters to paths in its networks.

Source: diffusers' FluxTransformer2DModel and FluxControlNetModel; Black Forest Labs, FLUX.1
(flux/model.py, flux/modules/layers.py) for the original names; ComfyUI (comfy/supported_models.py,
class Flux) for the prefixes in single files; XLabs, x-flux (src/flux/modules/layers.py) for the
names of its adapters.
"""

from __future__ import annotations

from models.adapters.clip_names import clip_spelling
from models.adapters.layer_names import Spelling
from models.checkpoint.authors_names import Fused
from models.checkpoint.key_mapping import Renames, layer_renames
from models.checkpoint.single_file import TRANSFORMER_PREFIXES, Naming
from models.flow.joint_control import OWN_RENAMES
from models.flow.joint_names import (
    BLOCKS,
    DOUBLE,
    GELU_FEED_FORWARD,
    IMAGE_QKV,
    SINGLE,
    SINGLE_BLOCKS,
    SINGLE_LAYERS,
    SINGLE_QKV,
    SINGLE_RENAMES,
    SWAPPED,
    TEXT_QKV,
    authors_layers,
    authors_table,
    double_renames,
    outer_layers,
)
from models.flow.parts import in_encoders
from models.text import clip

_EMBEDDERS = {
    r"time_text_embed\.timestep": "time_in",
    r"time_text_embed\.guidance": "guidance_in",
    r"time_text_embed\.text": "pooled_in",
}

RENAMES: Renames = (
    *layer_renames(outer_layers("x_embedder", "context_embedder", _EMBEDDERS)),
    *layer_renames(
        {
            r"norm1\.linear": "image_modulation.linear",
            r"norm1_context\.linear": "text_modulation.linear",
        },
        stack=(BLOCKS, "conditions"),
    ),
    *double_renames(GELU_FEED_FORWARD),
    *layer_renames(
        {r"norm\.linear": "single_modulation.linear"}, stack=(SINGLE_BLOCKS, "conditions")
    ),
    *SINGLE_RENAMES,
)
CONTROL_RENAMES: Renames = (
    *RENAMES,
    *OWN_RENAMES,
    (r"controlnet_mode_embedder\.weight", "kinds.embedding"),
)
"""Keys of a Flux ControlNet → paths in `FluxControlNet`."""

LAYERS: Fused = {
    **authors_layers("time_text_embed", "net.0.proj", "net.2"),
    "vector_in.in_layer": ("time_text_embed.text_embedder.linear_1",),
    "vector_in.out_layer": ("time_text_embed.text_embedder.linear_2",),
    "double_blocks.{}.img_mod.lin": (f"{DOUBLE}norm1.linear",),
    "double_blocks.{}.txt_mod.lin": (f"{DOUBLE}norm1_context.linear",),
    "single_blocks.{}.modulation.lin": (f"{SINGLE}norm.linear",),
    **SINGLE_LAYERS,
}
AUTHORS_RENAMES: Renames = authors_table(LAYERS, RENAMES)
"""Keys of Flux with the authors' names → paths."""

NAMINGS = (
    Naming(TRANSFORMER_PREFIXES, "img_in.weight", AUTHORS_RENAMES),
    Naming(TRANSFORMER_PREFIXES, "x_embedder.weight", RENAMES),
)
"""Array naming schemes of the transformer in single files."""
CLIP_NAMINGS = (
    Naming(in_encoders("clip_l"), "text_model.final_layer_norm.weight", clip.UNPROJECTED_RENAMES),
)

_XLABS_NAMES: Fused = {
    "double_blocks.{}.qkv_lora1": IMAGE_QKV,
    "double_blocks.{}.qkv_lora2": TEXT_QKV,
    "double_blocks.{}.proj_lora1": (f"{DOUBLE}attn.to_out.0",),
    "double_blocks.{}.proj_lora2": (f"{DOUBLE}attn.to_add_out",),
    "single_blocks.{}.qkv_lora": SINGLE_QKV,
    "single_blocks.{}.proj_lora": (f"{SINGLE}proj_out",),
}

_OF_GUIDANCE = (
    *(f"time_text_embed.guidance_embedder.linear_{number}" for number in (1, 2)),
    *(f"guidance_in.{end}_layer" for end in ("in", "out")),
)
"""Layers that schnell lacks."""

_TRANSFORMER = Spelling(
    RENAMES,
    fused=lambda network: {**LAYERS, **_XLABS_NAMES},
    swapped=SWAPPED,
    narrow=lambda network: {"x_embedder": 4 * network.config.latent_channels},
    unread=("norm",),
    absent=_OF_GUIDANCE,
)

SPELLINGS = (_TRANSFORMER, clip_spelling("clip", "text_encoder", ("lora_te1", "lora_te"), "clip_l"))
"""Layer names of Flux in adapter files."""
