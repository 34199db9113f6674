"""Rename rules from the authors' names of Wan's autoencoders to `VideoAutoencoder` paths.

Source: Wan 2.1 and 2.2 (wan/modules/vae.py, vae2_2.py); ComfyUI has the same names, also for
Qwen-Image.
"""

from __future__ import annotations

from collections.abc import Iterator

from models.checkpoint.key_mapping import Renames
from models.vae.video_config import VideoVaeConfig

AUTHORS_MARK = "decoder.middle.0.residual.0.gamma"
"""Key of files with the authors' names."""
_RESIDUAL = {
    r"residual\.0": "norm1",
    r"residual\.2": "conv1",
    r"residual\.3": "norm2",
    r"residual\.6": "conv2",
    "shortcut": "conv_shortcut",
}
_RESAMPLE = {r"resample\.1": "resample", "time_conv": "time_conv"}
_ATTENTION = {name: name for name in ("norm", "to_qkv", "proj")}
Layer = tuple[str, str, dict[str, str]]
"""Expression of a layer's name in files, its path, and the names within it."""


def original_renames(config: VideoVaeConfig) -> Renames:
    """Return the rename rules of original video VAE keys: Wan 2.1's plain or 2.2's residual.

    Raises: ValueError: attention outside the middle block, which no file of the authors has.
    """
    if config.attn_scales:
        raise ValueError("vae: files of the authors' keys have no attn_scales")
    layers = _residual_layers(config) if config.is_residual else _plain_layers(config)
    return (
        *_both("conv1", "quant_conv"),
        *_both("conv2", "post_quant_conv"),
        *(rule for coder in ("encoder", "decoder") for rule in _ends(coder)),
        *(rule for layer in layers for rule in _layer(*layer)),
    )


def _plain_layers(config: VideoVaeConfig) -> Iterator[Layer]:
    """Yield the layers of a Wan 2.1 VAE, which form one list in each half of the file."""
    yield r"encoder\.downsamples\.(\d+)", r"encoder.down_blocks.\1", _RESIDUAL | _RESAMPLE
    number = 0
    for level in range(len(config.dim_mult)):
        for layer in _block(f"decoder.up_blocks.{level}", config.num_res_blocks + 1):
            if layer[1] is _RESIDUAL or level < config.halvings:
                yield rf"decoder\.upsamples\.{number}", *layer
                number += 1


def _residual_layers(config: VideoVaeConfig) -> Iterator[Layer]:
    """Yield the layers of a Wan 2.2 VAE, which form a list in each block of the file."""
    for half, samples, blocks, depth in (
        ("encoder", "downsamples", "down_blocks", config.num_res_blocks),
        ("decoder", "upsamples", "up_blocks", config.num_res_blocks + 1),
    ):
        for number, layer in enumerate(_block(rf"{half}.{blocks}.\1", depth)):
            yield rf"{half}\.{samples}\.(\d+)\.{samples}\.{number}", *layer


def _block(path: str, depth: int) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield path and names of a VAE block's layers: residual blocks, and the resampling."""
    for number in range(depth):
        yield f"{path}.resnets.{number}", _RESIDUAL
    yield f"{path}.resample", _RESAMPLE


def _ends(coder: str) -> Renames:
    """Return the rename rules of a video VAE's first, middle and last layers."""
    middle = rf"{coder}\.middle"
    return (
        *_both(rf"{coder}\.conv1", f"{coder}.conv_in"),
        *_layer(rf"{middle}\.0", f"{coder}.mid_block.resnets.0", _RESIDUAL),
        *_layer(rf"{middle}\.1", f"{coder}.mid_block.attention", _ATTENTION),
        *_layer(rf"{middle}\.2", f"{coder}.mid_block.resnets.1", _RESIDUAL),
        *_both(rf"{coder}\.head\.0", f"{coder}.norm_out"),
        *_both(rf"{coder}\.head\.2", f"{coder}.conv_out"),
    )


def _layer(source: str, target: str, names: dict[str, str]) -> Renames:
    return tuple(
        rule for old, new in names.items() for rule in _both(rf"{source}\.{old}", f"{target}.{new}")
    )


def _both(source: str, target: str) -> Renames:
    """Return the rename rules of a layer's arrays: kernel and bias, or a norm's scale."""
    leaves = (("weight", "kernel"), ("bias", "bias"), ("gamma", "gamma"))
    return tuple((rf"{source}\.{leaf}", f"{target}.{path}") for leaf, path in leaves)
