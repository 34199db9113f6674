"""Writing of GGUF files, with the package that others write them with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import torch
from gguf import GGMLQuantizationType, GGUFWriter, quants
from gguf.constants import GGML_QUANT_SIZES

K_BLOCK = 256
OF_32 = ("Q8_0", "Q4_0", "Q5_1", "Q4_1", "Q5_0")
"""Formats with blocks of 32 numbers, which the package also writes."""
SCALES_AT: Mapping[str, tuple[int, ...]] = {
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q6_K": (208,),
    "IQ4_XS": (0,),
    "IQ4_NL": (0,),
    "Q4_0": (0,),
    "Q4_1": (0, 2),
    "Q5_0": (0,),
    "Q5_1": (0, 2),
    "Q8_0": (0,),
}
"""Offsets of the scales in a block, which are float16."""


def random_blocks(kind: str, shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    """Blocks of random bits with finite scales, as bytes; the last axis counts whole blocks."""
    numbers, size = GGML_QUANT_SIZES[GGMLQuantizationType[kind]]
    random = np.random.default_rng(seed)
    blocks = random.integers(0, 256, (*shape[:-1], shape[-1] // numbers, size), np.uint8)
    for at in SCALES_AT[kind]:
        scales = random.normal(scale=0.01, size=blocks.shape[:-1]).astype(np.float16)
        blocks[..., at : at + 2] = scales[..., None].view(np.uint8)
    return blocks.reshape(*shape[:-1], -1)


def write_gguf(
    tensors: Mapping[str, torch.Tensor],
    file: Path,
    architecture: str = "flux",
    kind_of: Callable[[str, torch.Tensor], str] | None = None,
) -> dict[str, torch.Tensor]:
    """Write tensors as quantization tools do, and return them as the package decodes them."""
    writer, decoded = GGUFWriter(file, architecture), {}
    for number, (key, tensor) in enumerate(tensors.items()):
        kind = kind_of(key, tensor) if kind_of else _kind(number, tensor)
        values, shape = tensor.float().numpy(), tuple(tensor.shape)
        if kind in SCALES_AT and kind not in OF_32:
            raw = random_blocks(kind, (values.size // K_BLOCK, K_BLOCK), number)
            writer.add_array(f"comfy.gguf.orig_shape.{key}", [int(size) for size in shape])
        else:
            raw = quants.quantize(values, GGMLQuantizationType[kind])
        writer.add_tensor(key, raw, raw_dtype=GGMLQuantizationType[kind])
        plain = quants.dequantize(raw, GGMLQuantizationType[kind])
        decoded[key] = torch.from_numpy(np.array(plain).reshape(shape))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return decoded


def _kind(number: int, tensor: torch.Tensor) -> str:
    """Choose another format for each matrix, where its shape allows."""
    if tensor.ndim == 1:
        return ("F32", "F16", "BF16")[number % 3]
    if not tensor.numel() % K_BLOCK and tensor.ndim != 2:
        return "Q6_K"
    if tensor.shape[-1] % 32:
        return "Q4_K" if not tensor.numel() % K_BLOCK else "BF16"
    return OF_32[number % len(OF_32)]
