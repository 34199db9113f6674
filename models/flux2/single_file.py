"""FLUX.2 klein in one `.safetensors` file: the transformer, and whatever else the file has.

What it lacks comes from a *base*: a folder in diffusers' layout, whose configs and tokenizer serve
in any case. Source: ComfyUI (comfy/supported_models.py, class Flux2) for the prefixes.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from models.checkpoint.folder import UnsupportedCheckpoint
from models.checkpoint.key_mapping import Renames
from models.checkpoint.single_file import TRANSFORMER_PREFIXES, Naming, NetworkFile, parts_of
from models.flux2.authors_names import AUTHORS_RENAMES
from models.flux2.key_mapping import RENAMES
from models.vae.batch_normed import STATISTICS, BatchNormedVaeConfig
from models.vae.original_keys import vae_renames

ENCODERS = ("text_encoders.qwen3_4b.transformer.", "text_encoders.qwen3_8b.transformer.")


def parts(
    file: Path, vae: BatchNormedVaeConfig, text_encoder: Renames
) -> Mapping[str, NetworkFile]:
    """Return the networks of a file by their names in the pipeline.

    Args:
        text_encoder: names of its arrays.

    Raises:
        UnsupportedCheckpoint: there is no FLUX.2 transformer in it.
        CheckpointError: pickled, damaged or not there.
    """
    mark = "single_stream_modulation"
    found = parts_of(
        file,
        {
            "transformer": (
                Naming(TRANSFORMER_PREFIXES, f"{mark}.lin.weight", AUTHORS_RENAMES),
                Naming(TRANSFORMER_PREFIXES, f"{mark}.linear.weight", RENAMES),
            ),
            "text_encoder": (Naming(ENCODERS, "model.embed_tokens.weight", text_encoder),),
            "vae": (Naming(("vae.",), "bn.running_mean", authors_vae(vae)),),
        },
    )
    if "transformer" not in found:
        raise UnsupportedCheckpoint(
            f"{file}: no FLUX.2 transformer in it; its keys would begin with double_blocks or "
            "transformer_blocks, behind model.diffusion_model or nothing"
        )
    return found


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
