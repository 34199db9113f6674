"""Maps keys of diffusers checkpoints to parameter paths in `UNet` and `ControlNet`."""

from __future__ import annotations

from models.checkpoint.key_mapping import Renames


def transformer(source: str, target: str, groups: int) -> Renames:
    """Return the renames of one transformer, or of all; every checkpoint names its layers alike.

    Args:
        source, target: prefix in the file, and among the parameter paths.
        groups: number of groups in the expression `source`.
    """
    layer, (first, second, third) = rf"{source}\.transformer_blocks\.(\d+)\.", _numbers(groups)
    place = rf"{target}.layers."
    return (
        (rf"{layer}(attn\d)\.to_(q|k|v)\.weight", f"{place}{second}.{third}.kernel[{first}]"),
        (rf"{layer}(attn\d)\.to_out\.0\.weight", f"{place}{second}.out.kernel[{first}]"),
        (rf"{layer}(attn\d)\.to_out\.0\.bias", f"{place}{second}.out.bias[{first}]"),
        (rf"{layer}(norm\d)\.weight", f"{place}{second}.scale[{first}]"),
        (rf"{layer}(norm\d)\.bias", f"{place}{second}.bias[{first}]"),
        (rf"{layer}ff\.net\.0\.proj\.weight", f"{place}up.kernel[{first}]"),
        (rf"{layer}ff\.net\.0\.proj\.bias", f"{place}up.bias[{first}]"),
        (rf"{layer}ff\.net\.2\.weight", f"{place}down.kernel[{first}]"),
        (rf"{layer}ff\.net\.2\.bias", f"{place}down.bias[{first}]"),
        (rf"{source}\.norm\.weight", f"{target}.norm.scale"),
        (rf"{source}\.norm\.bias", f"{target}.norm.bias"),
        (rf"{source}\.(proj_in|proj_out)\.weight", f"{target}.{first}.kernel"),
        (rf"{source}\.(proj_in|proj_out)\.bias", f"{target}.{first}.bias"),
    )


def _numbers(groups: int) -> tuple[str, str, str]:
    """Return references to the next three groups of a regular expression."""
    first, second, third = (rf"\{groups + place}" for place in (1, 2, 3))
    return first, second, third


RENAMES: Renames = (
    *transformer(r"(.+\.attentions\.\d+)", r"\1", groups=1),
    (r"(.+)\.(down|up)samplers\.0\.conv\.weight", r"\1.\2sample.kernel"),
    (r"(.+)\.(down|up)samplers\.0\.conv\.bias", r"\1.\2sample.bias"),
    (r"(.+)\.(norm\d)\.weight", r"\1.\2.scale"),
    (r"conv_norm_out\.weight", "conv_norm_out.scale"),
    (r"(.+)\.weight", r"\1.kernel"),
    (r"(.+)\.bias", r"\1.bias"),
)

_KINDS = r"transformer_layes\.(\d+)\."  # diffusers' spelling

CONTROL_RENAMES: Renames = (
    (rf"{_KINDS}ln_(1|2)\.weight", r"kinds.layers.norm\2.scale[\1]"),
    (rf"{_KINDS}ln_(1|2)\.bias", r"kinds.layers.norm\2.bias[\1]"),
    (rf"{_KINDS}attn\.in_proj_weight", r"kinds.layers.{q,k,v}.kernel[\1]"),
    (rf"{_KINDS}attn\.in_proj_bias", r"kinds.layers.{q,k,v}.bias[\1]"),
    (rf"{_KINDS}attn\.out_proj\.weight", r"kinds.layers.out.kernel[\1]"),
    (rf"{_KINDS}attn\.out_proj\.bias", r"kinds.layers.out.bias[\1]"),
    (rf"{_KINDS}mlp\.c_fc\.weight", r"kinds.layers.up.kernel[\1]"),
    (rf"{_KINDS}mlp\.c_fc\.bias", r"kinds.layers.up.bias[\1]"),
    (rf"{_KINDS}mlp\.c_proj\.weight", r"kinds.layers.down.kernel[\1]"),
    (rf"{_KINDS}mlp\.c_proj\.bias", r"kinds.layers.down.bias[\1]"),
    ("task_embedding", "kinds.table.embedding"),
    (r"spatial_ch_projs\.weight", "kinds.spread.kernel"),
    (r"spatial_ch_projs\.bias", "kinds.spread.bias"),
    (r"control_add_embedding\.(.+)\.weight", r"kinds.embedding.\1.kernel"),
    (r"control_add_embedding\.(.+)\.bias", r"kinds.embedding.\1.bias"),
    (r"controlnet_cond_embedding\.(.+)\.weight", r"image_encoder.\1.kernel"),
    (r"controlnet_cond_embedding\.(.+)\.bias", r"image_encoder.\1.bias"),
    (r"controlnet_down_blocks\.(\d+)\.weight", r"out.\1.kernel"),
    (r"controlnet_down_blocks\.(\d+)\.bias", r"out.\1.bias"),
    (r"controlnet_mid_block\.weight", "mid_out.kernel"),
    (r"controlnet_mid_block\.bias", "mid_out.bias"),
    *RENAMES,
)
"""Keys of a ControlNet or a union → paths in `ControlNet`."""
