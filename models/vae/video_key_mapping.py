"""Rename rules from diffusers' checkpoint keys to paths of the video autoencoder.

The first expression that matches a whole key renames it. The loader transposes kernels.
"""

from __future__ import annotations

RENAMES: tuple[tuple[str, str], ...] = (
    (r"(.+)\.mid_block\.attentions\.0\.norm\.gamma", r"\1.mid_block.attention.norm.gamma"),
    (r"(.+)\.mid_block\.attentions\.0\.(.+)\.weight", r"\1.mid_block.attention.\2.kernel"),
    (r"(.+)\.mid_block\.attentions\.0\.(.+)\.bias", r"\1.mid_block.attention.\2.bias"),
    *(
        (rf"(.+)\.(?:downsampler|upsampler|upsamplers\.0)\.{old}", rf"\1.resample.{new}")
        for old, new in (
            (r"resample\.1\.weight", "resample.kernel"),
            (r"resample\.1\.bias", "resample.bias"),
            (r"time_conv\.weight", "time_conv.kernel"),
            (r"time_conv\.bias", "time_conv.bias"),
        )
    ),
    (r"(.+)\.resample\.1\.weight", r"\1.resample.kernel"),
    (r"(.+)\.resample\.1\.bias", r"\1.resample.bias"),
    (r"(.+)\.gamma", r"\1.gamma"),
    (r"(.+)\.weight", r"\1.kernel"),
    (r"(.+)\.bias", r"\1.bias"),
)
