"""Rename rules from the authors' names of Wan 2.1's autoencoder to `VideoAutoencoder` paths.

Source: Wan 2.1 (wan/modules/vae.py); ComfyUI has the same names, also for Qwen-Image.
"""

from __future__ import annotations

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


def original_renames(config: VideoVaeConfig) -> Renames:
    """Return the rename rules; in files the decoder's layers form one list.

    Raises: ValueError: a network of another kind, whose files have other names.
    """
    if config.is_residual or config.attn_scales:
        raise ValueError("vae: files of the authors' keys are of Wan 2.1's kind")
    return (
        *_both("conv1", "quant_conv"),
        *_both("conv2", "post_quant_conv"),
        *(rule for coder in ("encoder", "decoder") for rule in _ends(coder)),
        *_layer(r"encoder\.downsamples\.(\d+)", r"encoder.down_blocks.\1", _RESIDUAL | _RESAMPLE),
        *(rule for layer in enumerate(_decoder_layers(config)) for rule in _up(*layer)),
    )


def _decoder_layers(config: VideoVaeConfig) -> list[tuple[str, dict[str, str]]]:
    """Path and names of every layer of the decoder, in order."""
    layers: list[tuple[str, dict[str, str]]] = []
    for level in range(len(config.dim_mult)):
        block, depth = f"decoder.up_blocks.{level}", config.num_res_blocks + 1
        layers += [(f"{block}.resnets.{number}", _RESIDUAL) for number in range(depth)]
        if level < config.halvings:
            layers.append((f"{block}.resample", _RESAMPLE))
    return layers


def _up(number: int, layer: tuple[str, dict[str, str]]) -> Renames:
    return _layer(rf"decoder\.upsamples\.{number}", *layer)


def _ends(coder: str) -> Renames:
    """Return the rename rules of the first, middle and last layers."""
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
    """Return the rename rules of a layer's arrays: a convolution's two, or a norm's one."""
    leaves = (("weight", "kernel"), ("bias", "bias"), ("gamma", "gamma"))
    return tuple((rf"{source}\.{leaf}", f"{target}.{path}") for leaf, path in leaves)
