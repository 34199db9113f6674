"""Maps the original keys of SDXL's UNet and second text encoder to parameter paths.

Source: Stability AI, generative-models (sgm/modules/diffusionmodules: openaimodel.py, model.py);
Ilharco et al., open_clip (src/open_clip/transformer.py).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Literal, NamedTuple

from models.checkpoint.key_mapping import Renames
from models.sdxl.config import Level, UNetConfig
from models.sdxl.key_mapping import transformer


def _both(source: str, target: str, leaf: str = "kernel") -> Renames:
    return ((rf"{source}\.weight", f"{target}.{leaf}"), (rf"{source}\.bias", f"{target}.bias"))


def unet_renames(config: UNetConfig) -> Renames:
    """Return rename rules of a UNet's original keys, whose blocks are numbered consecutively."""
    return (
        *_both(r"time_embed\.0", "time_embedding.linear_1"),
        *_both(r"time_embed\.2", "time_embedding.linear_2"),
        (r"time_embed\.cond_proj\.weight", "time_embedding.cond_proj.kernel"),
        *_both(r"label_emb\.0\.0", "add_embedding.linear_1"),
        *_both(r"label_emb\.0\.2", "add_embedding.linear_2"),
        *_both(r"input_blocks\.0\.0", "conv_in"),
        *_both(r"out\.0", "conv_norm_out", "scale"),
        *_both(r"out\.2", "conv_out"),
        *(rule for place in block_names(config) for rule in _RULES[place.kind](place)),
    )


class BlockNames(NamedTuple):
    """Names of a UNet block, or of a convolution between two levels, in both key formats."""

    kind: Literal["resnet", "transformer", "downsample", "upsample"]
    key: str
    """Block name in SDXL's original keys."""
    path: str
    """Path of the block in `UNet`."""


def block_names(config: UNetConfig) -> Iterator[BlockNames]:
    """Yield the names of all UNet blocks, in the file's order."""
    yield from _down_names(config.down_levels)
    yield from _mid_names(config.mid_level)
    yield from _up_names(config.up_levels)


def _down_names(levels: tuple[Level, ...]) -> Iterator[BlockNames]:
    number = 1  # block 0 is the first convolution
    for index, level in enumerate(levels):
        target = f"down_blocks.{index}"
        for block in range(level.residual_blocks):
            source = f"input_blocks.{number}"
            yield BlockNames("resnet", f"{source}.0", f"{target}.resnets.{block}")
            if level.depths is not None:
                yield BlockNames("transformer", f"{source}.1", f"{target}.attentions.{block}")
            number += 1
        if index < len(levels) - 1:
            yield BlockNames("downsample", f"input_blocks.{number}.0.op", f"{target}.downsample")
            number += 1


def _mid_names(level: Level) -> Iterator[BlockNames]:
    for block in range(level.residual_blocks):
        yield BlockNames("resnet", f"middle_block.{2 * block}", f"mid_block.resnets.{block}")
    if level.depths is not None:
        yield BlockNames("transformer", "middle_block.1", "mid_block.attentions.0")


def _up_names(levels: tuple[Level, ...]) -> Iterator[BlockNames]:
    number = 0
    for index, level in enumerate(levels):
        target = f"up_blocks.{index}"
        for block in range(level.residual_blocks):
            source = f"output_blocks.{number}"
            yield BlockNames("resnet", f"{source}.0", f"{target}.resnets.{block}")
            if level.depths is not None:
                yield BlockNames("transformer", f"{source}.1", f"{target}.attentions.{block}")
            number += 1
        if index < len(levels) - 1:
            position = 1 if level.depths is None else 2
            source = f"output_blocks.{number - 1}.{position}.conv"
            yield BlockNames("upsample", source, f"{target}.upsample")


def _resnet(source: str, target: str) -> Renames:
    return (
        *_both(rf"{source}\.in_layers\.0", f"{target}.norm1", "scale"),
        *_both(rf"{source}\.in_layers\.2", f"{target}.conv1"),
        *_both(rf"{source}\.emb_layers\.1", f"{target}.time_emb_proj"),
        *_both(rf"{source}\.out_layers\.0", f"{target}.norm2", "scale"),
        *_both(rf"{source}\.out_layers\.3", f"{target}.conv2"),
        *_both(rf"{source}\.skip_connection", f"{target}.conv_shortcut"),
    )


_RULES: Mapping[str, Callable[[BlockNames], Renames]] = {
    "resnet": lambda place: _resnet(re.escape(place.key), place.path),
    "transformer": lambda place: transformer(re.escape(place.key), place.path, groups=0),
    "downsample": lambda place: _both(re.escape(place.key), place.path),
    "upsample": lambda place: _both(re.escape(place.key), place.path),
}


_BLOCK = r"transformer\.resblocks\.(\d+)\."

OPEN_CLIP_RENAMES: Renames = (
    (r"(?:logit_scale|attn_mask)", ""),
    (r"text_model\.embeddings\.position_ids", ""),  # written by diffusers' conversion script
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
"""Keys of the second text encoder → paths: open_clip's names, with fused queries, keys and values
and the projection as (in, out)."""
