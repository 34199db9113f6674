"""Rename rules of the autoencoder's arrays in single files, by its config.

Source: Rombach et al., latent-diffusion (ldm/modules/diffusionmodules/model.py).
"""

from __future__ import annotations

from models.checkpoint.key_mapping import Renames
from models.vae.config import VaeConfig

ORIGINAL_MARK = "decoder.mid.block_1.norm1.weight"
"""Key of files with the original names."""


def _both(source: str, target: str, leaf: str = "kernel") -> Renames:
    return ((rf"{source}\.weight", f"{target}.{leaf}"), (rf"{source}\.bias", f"{target}.bias"))


def vae_renames(config: VaeConfig) -> Renames:
    """Return the rename rules of a VAE's original keys, where decoder levels count from the top."""
    last = len(config.block_out_channels) - 1
    mid = r"(encoder|decoder)\.mid"
    levels = [
        *(
            (rf"encoder\.down\.{level}", f"encoder.down_blocks.{level}")
            for level in range(last + 1)
        ),
        *(
            (rf"decoder\.up\.{last - level}", f"decoder.up_blocks.{level}")
            for level in range(last + 1)
        ),
    ]
    return (
        (r"(?:loss|model_ema)\..+", ""),
        *(rule for source, target in levels for rule in _vae_level(source, target)),
        *_vae_resnet(rf"{mid}\.block_1", r"\1.mid_block.resnets.0", r"\2"),
        *_vae_resnet(rf"{mid}\.block_2", r"\1.mid_block.resnets.1", r"\2"),
        *_both(rf"{mid}\.attn_1\.norm", r"\1.mid_block.attention.group_norm", "scale"),
        *_both(rf"{mid}\.attn_1\.(q|k|v)", r"\1.mid_block.attention.to_\2"),
        *_both(rf"{mid}\.attn_1\.proj_out", r"\1.mid_block.attention.to_out"),
        *_both(r"(encoder|decoder)\.norm_out", r"\1.conv_norm_out", "scale"),
        *_both(r"(encoder\.conv_in|decoder\.conv_in)", r"\1"),
        *_both(r"(encoder\.conv_out|decoder\.conv_out)", r"\1"),
        *_both("(quant_conv|post_quant_conv)", r"\1"),
    )


def _vae_level(source: str, target: str) -> Renames:
    return (
        *_vae_resnet(rf"{source}\.block\.(\d+)", rf"{target}.resnets.\1", r"\2"),
        *_both(rf"{source}\.(down|up)sample\.conv", rf"{target}.\1sample"),
    )


def _vae_resnet(source: str, target: str, number: str) -> Renames:
    """Return the rename rules of a residual block.

    Args:
        number: reference to the regular expression group after those of `source`.
    """
    return (
        *_both(rf"{source}\.(norm\d)", f"{target}.{number}", "scale"),
        *_both(rf"{source}\.(conv\d)", f"{target}.{number}"),
        *_both(rf"{source}\.nin_shortcut", f"{target}.conv_shortcut"),
    )
