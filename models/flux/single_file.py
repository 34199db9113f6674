"""Flux in one `.safetensors` file: naming schemes of its transformer and text encoders.

Missing parts, and always configs and tokenizers, come from a *base*: a folder in diffusers' layout.
Source: ComfyUI (comfy/supported_models.py, class Flux) for the prefixes.
"""

from __future__ import annotations

from models.checkpoint.single_file import TRANSFORMER_PREFIXES, Naming
from models.flow.parts import in_encoders
from models.flux.authors_names import AUTHORS_RENAMES
from models.flux.key_mapping import RENAMES
from models.text import clip, t5

TRANSFORMER = (
    Naming(TRANSFORMER_PREFIXES, "img_in.weight", AUTHORS_RENAMES),
    Naming(TRANSFORMER_PREFIXES, "x_embedder.weight", RENAMES),
)
CLIP = (
    Naming(in_encoders("clip_l"), "text_model.final_layer_norm.weight", clip.UNPROJECTED_RENAMES),
)
T5 = (Naming(in_encoders("t5xxl"), "encoder.final_layer_norm.weight", t5.RENAMES),)
