"""FLUX.2 klein in one `.safetensors` file: the transformer, and whatever else the file has.

What it lacks comes from a *base*: a folder in diffusers' layout, whose configs and tokenizer serve
in any case. Source: ComfyUI (comfy/supported_models.py, class Flux2) for the prefixes.
"""

from __future__ import annotations

from models.checkpoint.key_mapping import Renames
from models.checkpoint.single_file import TRANSFORMER_PREFIXES, FileFormat, Naming
from models.flux2.authors_names import AUTHORS_RENAMES
from models.flux2.key_mapping import RENAMES
from models.vae.batch_normed import STATISTICS, BatchNormedVaeConfig
from models.vae.original_keys import vae_renames

ENCODERS = ("text_encoders.qwen3_4b.transformer.", "text_encoders.qwen3_8b.transformer.")


def format_of(vae: BatchNormedVaeConfig, text_encoder: Renames) -> FileFormat:
    """Return the format of files.

    Args:
        text_encoder: names of its arrays.
    """
    mark = "single_stream_modulation"
    return FileFormat(
        "FLUX.2",
        "double_blocks or transformer_blocks",
        {
            "transformer": (
                Naming(TRANSFORMER_PREFIXES, f"{mark}.lin.weight", AUTHORS_RENAMES),
                Naming(TRANSFORMER_PREFIXES, f"{mark}.linear.weight", RENAMES),
            ),
            "text_encoder": (Naming(ENCODERS, "model.embed_tokens.weight", text_encoder),),
            "vae": (Naming(("vae.",), "bn.running_mean", authors_vae(vae)),),
        },
    )


def authors_vae(config: BatchNormedVaeConfig) -> Renames:
    """Return the authors' names of the autoencoder's arrays."""
    return (
        *STATISTICS,
        (r"(?:encoder\.)?quant_conv\.weight", "quant_conv.kernel"),
        (r"(?:encoder\.)?quant_conv\.bias", "quant_conv.bias"),
        (r"(?:decoder\.)?post_quant_conv\.weight", "post_quant_conv.kernel"),
        (r"(?:decoder\.)?post_quant_conv\.bias", "post_quant_conv.bias"),
        *vae_renames(config),
    )
