"""Maps array names of the Krea 2 transformer to paths in `Krea2Transformer`.

Source: diffusers' Krea2Transformer2DModel; its single_file_utils.py and
loaders/lora_conversion_utils.py for the authors' names in single files and adapters.
"""

from __future__ import annotations

from models.adapters.layer_names import Spelling
from models.checkpoint.authors_names import Fused, authors_renames
from models.checkpoint.key_mapping import Renames, layer_renames
from models.checkpoint.single_file import TRANSFORMER_PREFIXES, Naming

_STACKS = {
    "transformer_blocks": "blocks",
    r"text_fusion\.layerwise_blocks": "text_fusion.layer_blocks",
    r"text_fusion\.refiner_blocks": "text_fusion.token_blocks",
}
"""Block stacks of a checkpoint → their paths."""
_AUTHORS_STACKS = {
    "blocks": "transformer_blocks",
    "txtfusion.layerwise_blocks": "text_fusion.layerwise_blocks",
    "txtfusion.refiner_blocks": "text_fusion.refiner_blocks",
}
_LAYERS = {
    **{rf"attn\.to_{letter}": f"attention.{letter}" for letter in "qkv"},
    r"attn\.to_gate": "attention.gate",
    r"attn\.to_out\.0": "attention.out",
    **{rf"ff\.{layer}": f"feed_forward.{layer}" for layer in ("gate", "up", "down")},
}
_NORMS = {
    r"attn\.norm_q": "attention.q_norm",
    r"attn\.norm_k": "attention.k_norm",
    "norm1": "attention_norm",
    "norm2": "feed_forward_norm",
}

RENAMES: Renames = (
    *layer_renames(
        {
            "img_in": "latents_in",
            r"time_embed\.linear_1": "conditions.time_in.first",
            r"time_embed\.linear_2": "conditions.time_in.second",
            "time_mod_proj": "conditions.modulation",
            r"text_fusion\.projector": "text_fusion.projector",
            r"txt_in\.linear_1": "text_in.first",
            r"txt_in\.linear_2": "text_in.second",
            r"final_layer\.linear": "latents_out",
        },
        {r"txt_in\.norm": "text_in.norm", r"final_layer\.norm": "out_norm"},
    ),
    (r"final_layer\.scale_shift_table", "out_table"),
    (r"transformer_blocks\.(\d+)\.scale_shift_table", r"blocks.table[\1]"),
    *(rule for stack in _STACKS.items() for rule in layer_renames(_LAYERS, _NORMS, stack)),
)
"""Keys of Krea 2 in diffusers' layout → paths."""

_PARTS = {
    **{f"attn.w{letter}": f"attn.to_{letter}" for letter in "qkv"},
    "attn.wo": "attn.to_out.0",
    "attn.gate": "attn.to_gate",
    **{f"mlp.{layer}": f"ff.{layer}" for layer in ("gate", "up", "down")},
}
"""Authors' names of a block's layers → diffusers'."""
LAYERS: Fused = {
    "first": ("img_in",),
    "tmlp.0": ("time_embed.linear_1",),
    "tmlp.2": ("time_embed.linear_2",),
    "tproj.1": ("time_mod_proj",),
    "txtmlp.1": ("txt_in.linear_1",),
    "txtmlp.3": ("txt_in.linear_2",),
    "txtfusion.projector": ("text_fusion.projector",),
    "last.linear": ("final_layer.linear",),
    **{
        f"{authors}.{{}}.{part}": (f"{stack}.{{}}.{layer}",)
        for authors, stack in _AUTHORS_STACKS.items()
        for part, layer in _PARTS.items()
    },
}
"""Authors' names of linear layers → diffusers'."""

_AUTHORS_NORMS = {
    r"attn\.qknorm\.qnorm": "attention.q_norm",
    r"attn\.qknorm\.knorm": "attention.k_norm",
    "prenorm": "attention_norm",
    "postnorm": "feed_forward_norm",
}
AUTHORS_RENAMES: Renames = (
    *authors_renames(LAYERS, RENAMES),
    (r"txtmlp\.0\.scale", "text_in.norm.scale"),
    (r"last\.norm\.scale", "out_norm.scale"),
    (r"last\.modulation\.lin", "out_table"),
    (r"blocks\.(\d+)\.mod\.lin", r"blocks.table[\1]"),
    *(
        (rf"{stack}\.(\d+)\.{norm}\.scale", rf"{path}.{target}.scale[\1]")
        for stack, path in zip(_AUTHORS_STACKS, _STACKS.values(), strict=True)
        for norm, target in _AUTHORS_NORMS.items()
    ),
)
"""Keys of Krea 2 with the authors' names → paths."""

NAMINGS = (
    Naming(TRANSFORMER_PREFIXES, "txtfusion.projector.weight", AUTHORS_RENAMES),
    Naming(TRANSFORMER_PREFIXES, "text_fusion.projector.weight", RENAMES),
)
"""Array naming schemes of Krea 2 in single files."""

SPELLINGS = (Spelling(RENAMES, fused=lambda network: LAYERS),)
"""Layer names of Krea 2 in adapter files."""
