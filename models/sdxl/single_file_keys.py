"""Names in an SDXL file with the original keys → paths in our networks, by their configs.

Source: Stability AI, generative-models (sgm/modules/diffusionmodules: openaimodel.py, model.py);
Ilharco et al., open_clip (src/open_clip/transformer.py).
"""

from __future__ import annotations

from collections.abc import Iterator

from models.checkpoint.key_mapping import Renames
from models.sdxl.config import Level, UNetConfig
from models.sdxl.key_mapping import transformer
from models.text.clip import RENAMES as CLIP_RENAMES
from models.vae.config import VaeConfig


def _both(theirs: str, ours: str, leaf: str = "kernel") -> Renames:
    return ((rf"{theirs}\.weight", f"{ours}.{leaf}"), (rf"{theirs}\.bias", f"{ours}.bias"))


def unet_renames(config: UNetConfig) -> Renames:
    """Keys of the UNet → paths. Its blocks are numbered through, down and up."""
    return (
        *_both(r"time_embed\.0", "time_embedding.linear_1"),
        *_both(r"time_embed\.2", "time_embedding.linear_2"),
        (r"time_embed\.cond_proj\.weight", "time_embedding.cond_proj.kernel"),
        *_both(r"label_emb\.0\.0", "add_embedding.linear_1"),
        *_both(r"label_emb\.0\.2", "add_embedding.linear_2"),
        *_both(r"input_blocks\.0\.0", "conv_in"),
        *_both(r"out\.0", "conv_norm_out", "scale"),
        *_both(r"out\.2", "conv_out"),
        *(rule for place in _down_places(config.down_levels) for rule in place),
        *(rule for place in _mid_places(config.mid_level) for rule in place),
        *(rule for place in _up_places(config.up_levels) for rule in place),
    )


def _down_places(levels: tuple[Level, ...]) -> Iterator[Renames]:
    number = 1  # 0 is the first convolution
    for index, level in enumerate(levels):
        for block in range(level.residual_blocks):
            yield _resnet(rf"input_blocks\.{number}\.0", f"down_blocks.{index}.resnets.{block}")
            if level.depths is not None:
                ours = f"down_blocks.{index}.attentions.{block}"
                yield transformer(rf"input_blocks\.{number}\.1", ours, groups=0)
            number += 1
        if index < len(levels) - 1:
            yield _both(rf"input_blocks\.{number}\.0\.op", f"down_blocks.{index}.downsample")
            number += 1


def _mid_places(level: Level) -> Iterator[Renames]:
    for block in range(level.residual_blocks):
        yield _resnet(rf"middle_block\.{2 * block}", f"mid_block.resnets.{block}")
    if level.depths is not None:
        yield transformer(r"middle_block\.1", "mid_block.attentions.0", groups=0)


def _up_places(levels: tuple[Level, ...]) -> Iterator[Renames]:
    number = 0
    for index, level in enumerate(levels):
        for block in range(level.residual_blocks):
            yield _resnet(rf"output_blocks\.{number}\.0", f"up_blocks.{index}.resnets.{block}")
            if level.depths is not None:
                ours = f"up_blocks.{index}.attentions.{block}"
                yield transformer(rf"output_blocks\.{number}\.1", ours, groups=0)
            number += 1
        if index < len(levels) - 1:
            behind = 1 if level.depths is None else 2
            theirs = rf"output_blocks\.{number - 1}\.{behind}\.conv"
            yield _both(theirs, f"up_blocks.{index}.upsample")


def _resnet(theirs: str, ours: str) -> Renames:
    return (
        *_both(rf"{theirs}\.in_layers\.0", f"{ours}.norm1", "scale"),
        *_both(rf"{theirs}\.in_layers\.2", f"{ours}.conv1"),
        *_both(rf"{theirs}\.emb_layers\.1", f"{ours}.time_emb_proj"),
        *_both(rf"{theirs}\.out_layers\.0", f"{ours}.norm2", "scale"),
        *_both(rf"{theirs}\.out_layers\.3", f"{ours}.conv2"),
        *_both(rf"{theirs}\.skip_connection", f"{ours}.conv_shortcut"),
    )


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


CLIP_L_RENAMES: Renames = (
    (r"(?:text_projection\.weight|logit_scale)", ""),  # some programs save what SDXL has no use for
    *CLIP_RENAMES,
)
"""Keys of the first text encoder → paths: transformers' names."""

_BLOCK = r"transformer\.resblocks\.(\d+)\."

OPEN_CLIP_RENAMES: Renames = (
    (r"(?:logit_scale|attn_mask)", ""),
    (r"text_model\.embeddings\.position_ids", ""),  # left by diffusers' script that converts back
    (r"token_embedding\.weight", "token_embedding.embedding"),
    (r"positional_embedding", "position_embedding.embedding"),
    (rf"{_BLOCK}ln_(1|2)\.weight", r"blocks.norm\2.scale[\1]"),
    (rf"{_BLOCK}ln_(1|2)\.bias", r"blocks.norm\2.bias[\1]"),
    (rf"{_BLOCK}attn\.in_proj_weight", r"blocks.{q,k,v}.kernel[\1]"),
    (rf"{_BLOCK}attn\.in_proj_bias", r"blocks.{q,k,v}.bias[\1]"),
    (rf"{_BLOCK}attn\.out_proj\.weight", r"blocks.out.kernel[\1]"),
    (rf"{_BLOCK}attn\.out_proj\.bias", r"blocks.out.bias[\1]"),
    (rf"{_BLOCK}mlp\.c_fc\.weight", r"blocks.up.kernel[\1]"),
    (rf"{_BLOCK}mlp\.c_fc\.bias", r"blocks.up.bias[\1]"),
    (rf"{_BLOCK}mlp\.c_proj\.weight", r"blocks.down.kernel[\1]"),
    (rf"{_BLOCK}mlp\.c_proj\.bias", r"blocks.down.bias[\1]"),
    *_both("ln_final", "final_norm", "scale"),
    ("text_projection", "text_projection.kernel.T"),
    (r"text_projection\.weight", "text_projection.kernel"),
)
"""Keys of the second text encoder → paths: open_clip's names, with queries, keys and values in
one tensor and the projection as (in, out)."""
