"""Rename rules from checkpoint keys to AutoencoderKL paths, for diffusers' current and older names.

The first expression that matches a whole key renames it. The loader transposes kernels.
"""

from __future__ import annotations

_ATTENTION = (
    ("to_q", "to_q|query"),
    ("to_k", "to_k|key"),
    ("to_v", "to_v|value"),
    ("to_out", r"to_out\.0|proj_attn"),
)

RENAMES: tuple[tuple[str, str], ...] = (
    (r"(.+)\.attentions\.0\.group_norm\.weight", r"\1.attention.group_norm.scale"),
    (r"(.+)\.attentions\.0\.group_norm\.bias", r"\1.attention.group_norm.bias"),
    *(
        (rf"(.+)\.attentions\.0\.(?:{old})\.weight", rf"\1.attention.{new}.kernel")
        for new, old in _ATTENTION
    ),
    *(
        (rf"(.+)\.attentions\.0\.(?:{old})\.bias", rf"\1.attention.{new}.bias")
        for new, old in _ATTENTION
    ),
    (r"(.+)\.(down|up)samplers\.0\.conv\.weight", r"\1.\2sample.kernel"),
    (r"(.+)\.(down|up)samplers\.0\.conv\.bias", r"\1.\2sample.bias"),
    (r"(.+)\.(norm\d|conv_norm_out)\.weight", r"\1.\2.scale"),
    (r"(.+)\.weight", r"\1.kernel"),
    (r"(.+)\.bias", r"\1.bias"),
)
