"""Maps array names of the Z-Image transformer to paths in `ZImageTransformer`.

Source: diffusers' ZImageTransformer2DModel; its single_file_utils.py for ComfyUI's differing keys;
its loaders/lora_conversion_utils.py for the prefixes of adapters.
"""

from __future__ import annotations

from models.adapters.layer_names import DOTTED, OF_PEFT, Spelling
from models.checkpoint.authors_names import Fused, authors_renames
from models.checkpoint.key_mapping import Renames, layer_renames
from models.checkpoint.single_file import TRANSFORMER_PREFIXES, Naming

_STACKS = {"noise_refiner": "image_blocks", "context_refiner": "text_blocks", "layers": "blocks"}
"""Block stacks of a checkpoint → attributes of `ZImageTransformer`."""
_LAYERS = {
    **{rf"attention\.to_{layer}": f"heads.{layer}" for layer in "qkv"},
    r"attention\.to_out\.0": "out",
    r"feed_forward\.w1": "feed_forward.gate",
    r"feed_forward\.w2": "feed_forward.down",
    r"feed_forward\.w3": "feed_forward.up",
    r"adaLN_modulation\.0": "modulation",
}
_NORMS = {
    **{rf"attention\.norm_{layer}": f"heads.{layer}_norm" for layer in "qk"},
    "attention_norm1": "attention_in",
    "attention_norm2": "attention_out",
    "ffn_norm1": "feed_forward_in",
    "ffn_norm2": "feed_forward_out",
}

RENAMES: Renames = (
    *layer_renames(
        {
            r"all_x_embedder\.2-1": "latents_in",
            r"all_final_layer\.2-1\.linear": "latents_out",
            r"all_final_layer\.2-1\.adaLN_modulation\.1": "out_modulation",
            r"t_embedder\.mlp\.0": "time_in.first",
            r"t_embedder\.mlp\.2": "time_in.second",
            r"cap_embedder\.1": "text_in",
        },
        {r"cap_embedder\.0": "text_norm"},
    ),
    ("x_pad_token", "image_filling"),
    ("cap_pad_token", "text_filling"),
    *(rule for stack in _STACKS.items() for rule in layer_renames(_LAYERS, _NORMS, stack)),
)
"""Keys of Z-Image in diffusers' layout → paths."""

_CONTROL_STACKS = {"control_layers": "", "control_noise_refiner": "refiner_"}
_CONTROL_RENAMES: Renames = (
    *layer_renames(
        {
            r"control_all_x_embedder\.2-1": "hint_in",
            r"control_layers\.0\.before_proj": "before",
            r"control_noise_refiner\.0\.before_proj": "refiner_before",
        }
    ),
    *(
        rule
        for source, path in _CONTROL_STACKS.items()
        for rule in (
            (rf"{source}\.(\d+)\.after_proj\.weight", rf"{path}out.kernel[\1]"),
            (rf"{source}\.(\d+)\.after_proj\.bias", rf"{path}out.bias[\1]"),
            *layer_renames(_LAYERS, _NORMS, (source, f"{path}blocks")),
        )
    ),
)
_ATTENTIONS = tuple(f"{blocks}.{{}}.attention" for blocks in _STACKS)
LAYERS: Fused = {
    "x_embedder": ("all_x_embedder.2-1",),
    "final_layer.linear": ("all_final_layer.2-1.linear",),
    "final_layer.adaLN_modulation.1": ("all_final_layer.2-1.adaLN_modulation.1",),
    **{f"{layer}.qkv": tuple(f"{layer}.to_{part}" for part in "qkv") for layer in _ATTENTIONS},
    **{f"{layer}.out": (f"{layer}.to_out.0",) for layer in _ATTENTIONS},
}
"""ComfyUI's layer names → diffusers'. Unlisted layers have the same name in both."""

_COMFYS_NORMS = {rf"attention\.{layer}_norm": f"heads.{layer}_norm" for layer in "qk"}
_CONTROL_LAYERS: Fused = {
    "control_x_embedder": ("control_all_x_embedder.2-1",),
    **{
        f"{stack}.{{}}.attention.{layer}": tuple(f"{stack}.{{}}.attention.{name}" for name in names)
        for stack in _CONTROL_STACKS
        for layer, names in {"qkv": ("to_q", "to_k", "to_v"), "out": ("to_out.0",)}.items()
    },
}
CONTROL_RENAMES: Renames = (
    *authors_renames(_CONTROL_LAYERS, _CONTROL_RENAMES),
    *(
        rule
        for source, path in _CONTROL_STACKS.items()
        for rule in layer_renames({}, _COMFYS_NORMS, (source, f"{path}blocks"))
    ),
    *_CONTROL_RENAMES,
)
"""Keys of a ControlNet, also with ComfyUI's layer names → paths in `ZImageControlNet`."""
WITHOUT_REFINER: Renames = ((r"control_noise_refiner\..+", ""), *CONTROL_RENAMES)
"""The same for version 2.0, whose files contain a refiner that was not trained and does not run."""
COMFYS_RENAMES: Renames = (
    *authors_renames(LAYERS, RENAMES),
    *(rule for stack in _STACKS.items() for rule in layer_renames({}, _COMFYS_NORMS, stack)),
    (r"norm_final\.weight", ""),
    *RENAMES,
)
NAMINGS = (Naming(TRANSFORMER_PREFIXES, "layers.0.adaLN_modulation.0.weight", COMFYS_RENAMES),)
"""Array naming schemes of Z-Image in single files."""

SPELLINGS = (
    Spelling(
        RENAMES,
        dotted=(*DOTTED, *OF_PEFT, ""),
        fused=lambda network: LAYERS,
        synonyms=tuple((f".to_{letter}", f".to.{letter}") for letter in "qkv"),
    ),
)
"""Layer names of Z-Image in adapter files."""
