"""Names of the autoencoder's arrays in single files → paths in `AutoencoderKL`, by its config.

Source: Rombach et al., latent-diffusion (ldm/modules/diffusionmodules/model.py).
"""

from __future__ import annotations

from models.checkpoint.key_mapping import Renames
from models.vae.config import VaeConfig


def _both(theirs: str, ours: str, leaf: str = "kernel") -> Renames:
    return ((rf"{theirs}\.weight", f"{ours}.{leaf}"), (rf"{theirs}\.bias", f"{ours}.bias"))


def vae_renames(config: VaeConfig) -> Renames:
    """Keys of the autoencoder → paths. The decoder's levels are numbered from the top."""
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
        *(rule for theirs, ours in levels for rule in _vae_level(theirs, ours)),
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


def _vae_level(theirs: str, ours: str) -> Renames:
    return (
        *_vae_resnet(rf"{theirs}\.block\.(\d+)", rf"{ours}.resnets.\1", r"\2"),
        *_both(rf"{theirs}\.(down|up)sample\.conv", rf"{ours}.\1sample"),
    )


def _vae_resnet(theirs: str, ours: str, number: str) -> Renames:
    """`number`: of the group behind those of `theirs`."""
    return (
        *_both(rf"{theirs}\.(norm\d)", f"{ours}.{number}", "scale"),
        *_both(rf"{theirs}\.(conv\d)", f"{ours}.{number}"),
        *_both(rf"{theirs}\.nin_shortcut", f"{ours}.conv_shortcut"),
    )
