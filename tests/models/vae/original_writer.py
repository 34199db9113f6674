"""Writer of Wan's autoencoders under the authors' keys, from diffusers'."""

from __future__ import annotations

import re
from collections.abc import Mapping

import torch

RESIDUAL = {
    "norm1": "residual.0",
    "conv1": "residual.2",
    "norm2": "residual.3",
    "conv2": "residual.6",
    "conv_shortcut": "shortcut",
}
ENDS = (
    ("coder.conv_in.", "coder.conv1."),
    ("coder.norm_out.", "coder.head.0."),
    ("coder.conv_out.", "coder.head.2."),
    ("post_quant_conv.", "conv2."),
    ("quant_conv.", "conv1."),
)


def authors_keys(
    stored: Mapping[str, torch.Tensor], *, is_residual: bool = False
) -> dict[str, torch.Tensor]:
    """Return the arrays under the names of Wan 2.1 or, with `is_residual`, of Wan 2.2.

    Blocks have two residual layers in the encoder, and three in the decoder.
    """
    return {_authors(key, is_residual): tensor for key, tensor in stored.items()}


def _authors(key: str, is_residual: bool) -> str:
    for part, original in RESIDUAL.items():
        key = re.sub(rf"\.{part}\.", f".{original}.", key)
    key = re.sub(r"\.mid_block\.resnets\.(\d)", lambda m: f".middle.{2 * int(m[1])}", key)
    key = key.replace(".mid_block.attentions.0", ".middle.1")
    key = _of_blocks(key) if is_residual else _of_one_list(key)
    for part, original in ENDS:
        key = key.replace(part, original)
    return key


def _of_one_list(key: str) -> str:
    up = r"decoder\.up_blocks\.(\d)\.(?:resnets\.(\d)|upsamplers\.0)"
    key = re.sub(up, lambda m: f"decoder.upsamples.{4 * int(m[1]) + int(m[2] or 3)}", key)
    return key.replace("encoder.down_blocks.", "encoder.downsamples.")


def _of_blocks(key: str) -> str:
    for side, count in (("down", 2), ("up", 3)):
        block = rf"{side}_blocks\.(\d)\.(?:resnets\.(\d)|{side}sampler)"
        name = f"{side}samples"
        key = re.sub(block, rf"{name}.\1.{name}.\2", key)
        key = re.sub(rf"({name}\.\d\.{name}\.)(?!\d)", rf"\g<1>{count}", key)
    return key
