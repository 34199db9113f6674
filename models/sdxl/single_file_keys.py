"""Names in an SDXL file with the original keys → paths in our networks, by their configs.

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
        *(rule for place in block_places(config) for rule in _RULES[place.kind](place)),
    )


class BlockPlace(NamedTuple):
    """Place of a block, or of a convolution between two levels."""

    kind: Literal["resnet", "transformer", "downsample", "upsample"]
    theirs: str
    """Name of it in the file."""
    ours: str
    """Path in our UNet."""


def block_places(config: UNetConfig) -> Iterator[BlockPlace]:
    """Yield the places of all blocks, in the order in which the file numbers them."""
    yield from _down_places(config.down_levels)
    yield from _mid_places(config.mid_level)
    yield from _up_places(config.up_levels)


def _down_places(levels: tuple[Level, ...]) -> Iterator[BlockPlace]:
    number = 1  # 0 is the first convolution
    for index, level in enumerate(levels):
        ours = f"down_blocks.{index}"
        for block in range(level.residual_blocks):
            theirs = f"input_blocks.{number}"
            yield BlockPlace("resnet", f"{theirs}.0", f"{ours}.resnets.{block}")
            if level.depths is not None:
                yield BlockPlace("transformer", f"{theirs}.1", f"{ours}.attentions.{block}")
            number += 1
        if index < len(levels) - 1:
            yield BlockPlace("downsample", f"input_blocks.{number}.0.op", f"{ours}.downsample")
            number += 1


def _mid_places(level: Level) -> Iterator[BlockPlace]:
    for block in range(level.residual_blocks):
        yield BlockPlace("resnet", f"middle_block.{2 * block}", f"mid_block.resnets.{block}")
    if level.depths is not None:
        yield BlockPlace("transformer", "middle_block.1", "mid_block.attentions.0")


def _up_places(levels: tuple[Level, ...]) -> Iterator[BlockPlace]:
    number = 0
    for index, level in enumerate(levels):
        ours = f"up_blocks.{index}"
        for block in range(level.residual_blocks):
            theirs = f"output_blocks.{number}"
            yield BlockPlace("resnet", f"{theirs}.0", f"{ours}.resnets.{block}")
            if level.depths is not None:
                yield BlockPlace("transformer", f"{theirs}.1", f"{ours}.attentions.{block}")
            number += 1
        if index < len(levels) - 1:
            behind = 1 if level.depths is None else 2
            theirs = f"output_blocks.{number - 1}.{behind}.conv"
            yield BlockPlace("upsample", theirs, f"{ours}.upsample")


def _resnet(theirs: str, ours: str) -> Renames:
    return (
        *_both(rf"{theirs}\.in_layers\.0", f"{ours}.norm1", "scale"),
        *_both(rf"{theirs}\.in_layers\.2", f"{ours}.conv1"),
        *_both(rf"{theirs}\.emb_layers\.1", f"{ours}.time_emb_proj"),
        *_both(rf"{theirs}\.out_layers\.0", f"{ours}.norm2", "scale"),
        *_both(rf"{theirs}\.out_layers\.3", f"{ours}.conv2"),
        *_both(rf"{theirs}\.skip_connection", f"{ours}.conv_shortcut"),
    )


_RULES: Mapping[str, Callable[[BlockPlace], Renames]] = {
    "resnet": lambda place: _resnet(re.escape(place.theirs), place.ours),
    "transformer": lambda place: transformer(re.escape(place.theirs), place.ours, groups=0),
    "downsample": lambda place: _both(re.escape(place.theirs), place.ours),
    "upsample": lambda place: _both(re.escape(place.theirs), place.ours),
}


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
