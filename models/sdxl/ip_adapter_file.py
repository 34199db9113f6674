"""IP-Adapter files: their variants, sizes and key names.

Source: diffusers' loaders/unet.py, _convert_ip_adapter_image_proj_to_diffusers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from models.checkpoint.folder import CheckpointError
from models.checkpoint.key_mapping import Renames
from models.checkpoint.single_file import shapes_of
from models.sdxl.config import UNetConfig
from models.sdxl.ip_adapter import HEAD_FEATURES, IpAdapterConfig, ResamplerConfig, transformers_of

Shapes = Mapping[str, tuple[int, ...]]

PLAIN, PLUS = "image_proj.proj.weight", "image_proj.latents"
"""Keys that identify the supported IP-Adapter variants."""
OTHERS = {
    "image_proj.perceiver_resampler.proj_in.weight": "FaceID Plus",
    "image_proj.norm.weight": "FaceID",
    "image_proj.proj.3.weight": "Full Face",
}
"""Keys that identify unsupported IP-Adapter variants; checked after the supported ones."""
FIRST, STRIDE = 1, 2
"""Number of the first cross-attention layer, and the stride; self-attention layers are counted as
well."""


def config_of(file: Path, unet: UNetConfig) -> IpAdapterConfig:
    """Infer an adapter's sizes from its arrays, or read them from a `.json` used in plans.

    Raises: CheckpointError: an unsupported file, or an adapter for another UNet; gives the reason.
    """
    if file.suffix == ".json":
        return _of_published(json.loads(file.read_bytes()))
    shapes, text = shapes_of(file), unet.projected_text_features
    if PLAIN in shapes:
        rows, features = shapes[PLAIN]
        if rows % text:
            raise CheckpointError(
                f"{file}: its tokens are not of this model: {rows} rows of {PLAIN} are no multiple"
                f" of the {text} features of the UNet's text"
            )
        return IpAdapterConfig(features, rows // text, None)
    if PLUS in shapes:
        return _with_resampler(file, shapes, text)
    for key, kind in OTHERS.items():
        if key in shapes:
            raise CheckpointError(f"{file}: an IP-Adapter of the kind {kind}, which is not served")
    raise CheckpointError(f"{file}: no IP-Adapter: it has neither {PLAIN} nor {PLUS}")


def _of_published(sizes: dict[str, Any]) -> IpAdapterConfig:
    resampler = sizes.pop("resampler")
    return IpAdapterConfig(**sizes, resampler=resampler and ResamplerConfig(**resampler))


def _with_resampler(file: Path, shapes: Shapes, text: int) -> IpAdapterConfig:
    try:
        _, tokens, width = shapes[PLUS]
        _, features = shapes["image_proj.proj_in.weight"]
        out, _ = shapes["image_proj.proj_out.weight"]
        attended, _ = shapes["image_proj.layers.0.0.to_q.weight"]
        inner, _ = shapes["image_proj.layers.0.1.1.weight"]
    except (KeyError, ValueError) as error:
        raise CheckpointError(f"{file}: a damaged IP-Adapter Plus ({error})") from error
    if out != text:
        raise CheckpointError(
            f"{file}: its tokens have {out} features, and the text of this model has {text}: it is"
            " an adapter for another model"
        )
    depth = sum(key.endswith(".0.to_q.weight") for key in shapes if "image_proj.layers." in key)
    sizes = ResamplerConfig(width, attended // HEAD_FEATURES, depth, inner)
    return IpAdapterConfig(features, tokens, sizes)


PROJECTION: Renames = (
    (r"image_proj\.proj\.weight", "projection.proj.kernel"),
    (r"image_proj\.proj\.bias", "projection.proj.bias"),
    (r"image_proj\.norm\.weight", "projection.norm.scale"),
    (r"image_proj\.norm\.bias", "projection.norm.bias"),
)
_LAYER, _PATHS = r"image_proj\.layers\.(\d+)\.", "projection.layers."
RESAMPLER: Renames = (
    (r"image_proj\.latents", "projection.latents"),
    (r"image_proj\.(proj_in|proj_out)\.weight", r"projection.\1.kernel"),
    (r"image_proj\.(proj_in|proj_out)\.bias", r"projection.\1.bias"),
    (r"image_proj\.norm_out\.weight", "projection.norm_out.scale"),
    (r"image_proj\.norm_out\.bias", "projection.norm_out.bias"),
    (rf"{_LAYER}0\.norm1\.weight", rf"{_PATHS}norm_image.scale[\1]"),
    (rf"{_LAYER}0\.norm1\.bias", rf"{_PATHS}norm_image.bias[\1]"),
    (rf"{_LAYER}0\.norm2\.weight", rf"{_PATHS}norm_latents.scale[\1]"),
    (rf"{_LAYER}0\.norm2\.bias", rf"{_PATHS}norm_latents.bias[\1]"),
    (rf"{_LAYER}0\.to_q\.weight", rf"{_PATHS}q.kernel[\1]"),
    (rf"{_LAYER}0\.to_kv\.weight", rf"{_PATHS}{{k,v}}.kernel[\1]"),
    (rf"{_LAYER}0\.to_out\.weight", rf"{_PATHS}out.kernel[\1]"),
    (rf"{_LAYER}1\.0\.weight", rf"{_PATHS}norm.scale[\1]"),
    (rf"{_LAYER}1\.0\.bias", rf"{_PATHS}norm.bias[\1]"),
    (rf"{_LAYER}1\.1\.weight", rf"{_PATHS}up.kernel[\1]"),
    (rf"{_LAYER}1\.3\.weight", rf"{_PATHS}down.kernel[\1]"),
)


def renames_of(config: IpAdapterConfig, unet: UNetConfig) -> Renames:
    """Map key names in an adapter's file to paths in `IpAdapter`."""
    return (
        *(PROJECTION if config.resampler is None else RESAMPLER),
        *_layers(unet),
    )


def _layers(unet: UNetConfig) -> Renames:
    numbered = [
        (transformer, layer)
        for transformer, (_, depth) in enumerate(transformers_of(unet))
        for layer in range(depth)
    ]
    return tuple(
        (
            rf"ip_adapter\.{FIRST + STRIDE * number}\.to_{name}_ip\.weight",
            f"layers.{transformer}.{name}.kernel[{layer}]",
        )
        for number, (transformer, layer) in enumerate(numbered)
        for name in ("k", "v")
    )
