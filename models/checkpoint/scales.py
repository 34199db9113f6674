"""Scales of weights in 8 bits, and weights that are quantized in formats that are not read.

Source: ComfyUI, QUANTIZATION.md and comfy/quant_ops.py; NVIDIA ModelOpt's exported checkpoints;
DeepSeek's block scales (`weight_scale_inv`, which also multiply).
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from models.checkpoint.block_scales import BLOCKS, OF_EXPONENTS, WEIGHT, with_block_scales
from models.checkpoint.folder import CheckpointError, UnsupportedCheckpoint
from models.checkpoint.nf4 import with_nf4
from models.checkpoint.number_formats import BY_127, SCALED
from models.checkpoint.tensor import Tensor

SCALES = (".scale_weight", ".weight_scale", ".weight_scale_inv", ".weight._scale")
"""Key endings of the scale of a weight: ComfyUI's older and newer files, ModelOpt, DeepSeek,
quanto."""
MAGNITUDES, LAYOUT = ".SCB", ".weight_format"
"""Key endings of bitsandbytes' INT8: the rows' largest magnitudes, and the order of its numbers."""
OF_QUANTO = ".weight._data"
HINT = ".comfy_quant"
"""Key ending of a layer's format in ComfyUI's files: JSON in bytes."""
OF_ACTIVATIONS = (".scale_input", ".input_scale", ".output_scale", HINT, LAYOUT, "scaled_fp8")
"""Key endings of parameters for 8-bit computation, which are ignored."""
MAX_HINT_BYTES = 1 << 16
FORMATS_READ = (
    *("float8_e4m3fn", "float8_e5m2", "int8_tensorwise", "int8_blockwise", "mxfp8", "nvfp4"),
)
"""Formats in hints that scales alone describe."""
ROTATED = "convrot"
"""Field of hints about weights that were multiplied by a rotation."""
ROTATION, USUAL_ROTATION = "convrot_groupsize", 256
"""Field of the numbers of a row that were rotated together, a power of 4, and its default."""
ROTATIONS = tuple(4**power for power in range(1, 9))
MAX_PREFIX = 8
"""Names in the longest prefix of a key that hints lack."""
OF_LAYERS = "_quantization_metadata"
"""Metadata of ComfyUI's files with the format of each layer."""
UNREAD: tuple[tuple[str, str], ...] = (
    (r".*\.weight_global_scale", "NVFP4 of compressed-tensors"),
    (r".*\.pre_quant_scale", "AWQ of ModelOpt, with scales of activations"),
    (r".*\.(?:wscales|wtscale|smooth_factor|smooth|proj_down)(?:_orig)?", "SVDQuant (nunchaku)"),
    (r".*\.qzeros", "GPTQ or AWQ"),
    (r".*\.weight\._shift", "quanto with fewer than 8 bits"),
    (r".*\.(?:zero_point|svd_up|svd_down)", "SDNQ"),
)
"""Key expressions of formats that are not read, and their names."""


def with_scales(
    tensors: Mapping[str, Tensor], metadata: Mapping[str, str], path: Path
) -> dict[str, Tensor]:
    """Attach scales to their weights, and leave out what only 8-bit computation needs.

    Args:
        tensors: of one file or several, by key.
        metadata: of the file `path`.

    Raises:
        UnsupportedCheckpoint: weights in a format that is not read; names it.
        CheckpointError: a scale that does not fit its weight.
    """
    rotations = _checked_rotations(tensors, metadata, path)
    tensors = {
        f"{key.removesuffix(OF_QUANTO)}{WEIGHT}" if key.endswith(OF_QUANTO) else key: tensor
        for key, tensor in tensors.items()
    }
    tensors = with_nf4(tensors, lambda state: _parsed(_text(state), state.key, path))
    is_comfy = OF_LAYERS in metadata or any(key.endswith(HINT) for key in tensors)
    tensors = with_block_scales(tensors, in_tiles=is_comfy)
    if not any(tensor.kind in SCALED for tensor in tensors.values()):
        return tensors
    scales = {
        f"{key.removesuffix(ending)}.weight": tensor
        for key, tensor in tensors.items()
        for ending in SCALES
        if key.endswith(ending)
    }
    scales |= {
        f"{key.removesuffix(MAGNITUDES)}.weight": replace(tensor, kind=BY_127)
        for key, tensor in tensors.items()
        if key.endswith(MAGNITUDES)
    }
    return {
        key: _scaled(tensor, scales[key], rotations.get(key, 0)) if key in scales else tensor
        for key, tensor in tensors.items()
        if not key.endswith((*SCALES, MAGNITUDES, *OF_ACTIVATIONS))
    }


def _scaled(tensor: Tensor, scale: Tensor, rotated: int) -> Tensor:
    """Return a weight with its scale. Raises: CheckpointError: one that does not fit."""
    if rotated and (len(tensor.shape) != 2 or tensor.shape[1] % rotated):
        raise CheckpointError(
            f"{tensor.path}: {tensor.key} has the shape {list(tensor.shape)}, whose rows are not "
            f"rotated {rotated} numbers at a time"
        )
    return replace(tensor, scale=_fitting(scale, tensor), rotated=rotated)


def _fitting(scale: Tensor, tensor: Tensor) -> Tensor:
    """Reshape a scale to [1, 1], [rows, 1] or [row blocks, column blocks] of its weight.

    Raises: CheckpointError: it is neither of the whole array, nor of rows, nor of equal blocks.
    """
    rows, columns = tensor.shape[0] if tensor.shape else 1, math.prod(tensor.shape[1:])
    count, longest = math.prod(scale.shape), max(scale.shape, default=1)
    shape: tuple[int, ...] = scale.shape
    if count == 1:
        shape = (1, 1)
    elif count == longest == rows:
        shape = (rows, 1)
    fits = len(shape) == 2 and all(shape) and not (rows % shape[0] or columns % shape[1])
    if fits and scale.is_float:
        return replace(scale, shape=shape)
    raise CheckpointError(
        f"{tensor.path}: {scale.key} has the shape {list(scale.shape)} and the type {scale.kind}; "
        f"scales are floats, of a whole array, of its {rows} rows or of equal blocks"
    )


def _checked_rotations(
    tensors: Mapping[str, Tensor], metadata: Mapping[str, str], path: Path
) -> dict[str, int]:
    """Return the sizes of the rotations of weights, by key.

    Raises: UnsupportedCheckpoint: a weight in a format that is not read.
    """
    for key, tensor in tensors.items():
        for expression, name in UNREAD:
            if re.fullmatch(expression, key):
                raise _unread(path, name, tensor.key)
        is_moved = key.endswith(LAYOUT) and tensor.kind == "U8" and tensor.read(0, 1).any()
        if is_moved or (key.endswith(MAGNITUDES) and tensor.kind != "F32"):
            raise _unread(path, "INT8 of older versions of bitsandbytes", tensor.key)
    rotations = {}
    for key, hint in (*_of_layers(metadata, path), *_of_keys(tensors, path)):
        if hint.get("format") not in FORMATS_READ:
            raise _unread(path, repr(hint.get("format")), key)
        if hint.get(ROTATED):
            rotations[key.removesuffix(HINT)] = _rotation(hint, key, path)
    if not rotations:
        return {}
    return {key: _of_layer(rotations, tensor.key) for key, tensor in tensors.items()}


def _of_layer(rotations: Mapping[str, int], key: str) -> int:
    """Return the rotation of a weight by its key in the file; hints may lack a prefix."""
    parts = key.removesuffix(WEIGHT).split(".")
    names = (".".join(parts[first:]) for first in range(min(len(parts), MAX_PREFIX)))
    return next((rotations[name] for name in names if name in rotations), 0)


def _rotation(hint: Mapping[str, Any], key: str, path: Path) -> int:
    """Return the size of a weight's rotation. Raises: UnsupportedCheckpoint: of another kind."""
    size = hint.get(ROTATION, USUAL_ROTATION)
    if hint["format"] != "int8_tensorwise" or type(size) is not int or size not in ROTATIONS:
        raise _unread(path, f"{hint['format']} with rotated weights ({ROTATED} {size!r})", key)
    return size


def _of_layers(metadata: Mapping[str, str], path: Path) -> list[tuple[str, Mapping[str, Any]]]:
    """Return the layers' quantization formats in a file's metadata.

    Raises: CheckpointError: not JSON.
    """
    if OF_LAYERS not in metadata:
        return []
    layers = _parsed(metadata[OF_LAYERS], OF_LAYERS, path).get("layers", {})
    return [
        (key, hint)
        for key, hint in (layers.items() if isinstance(layers, dict) else ())
        if isinstance(hint, dict)
    ]


def _of_keys(tensors: Mapping[str, Tensor], path: Path) -> list[tuple[str, Mapping[str, Any]]]:
    """Return the formats that the file states for integers and for MXFP8, by key."""
    return [
        (key, _parsed(_text(tensor), key, path))
        for key, tensor in tensors.items()
        if key.endswith(HINT) and _decides(key.removesuffix(HINT), tensors)
    ]


def _decides(layer: str, tensors: Mapping[str, Tensor]) -> bool:
    """Return whether a layer's format is more than what its numbers say."""
    weight, scale = tensors.get(layer + WEIGHT), tensors.get(layer + BLOCKS)
    has_exponents = scale is not None and scale.kind in OF_EXPONENTS
    return weight is not None and (has_exponents or not weight.is_float)


def _text(tensor: Tensor) -> str:
    size = math.prod(tensor.shape)
    if tensor.kind != "U8" or size > MAX_HINT_BYTES:
        raise CheckpointError(f"{tensor.path}: {tensor.key} is no short text of bytes")
    return bytes(replace(tensor, shape=(size,)).read(0, size)).decode(errors="replace")


def _parsed(text: str, key: str, path: Path) -> Mapping[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: {key} is not valid JSON; fetch the file again") from error
    return value if isinstance(value, dict) else {}


def _unread(path: Path, name: str, key: str) -> UnsupportedCheckpoint:
    return UnsupportedCheckpoint(
        f"{path}: weights in the format {name} are not read ({key}); take the file in bfloat16, "
        "in 8-bit floats, INT8 or NVFP4 with scales, or in GGUF"
    )
