"""Formats of stored numbers, by the names of safetensors and GGUF, and their decoding.

GGUF stores blocks of numbers with common scales. They are decoded by the `gguf` package.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from models.checkpoint.direct_io import Memory
from models.checkpoint.folder import CheckpointError

GROUP = 1 << 16
"""Numbers that are decoded together, which fit the cache of a core."""


class NumberFormat(NamedTuple):
    """Format of an array's numbers, which are stored in blocks one after another."""

    numbers: int
    """Numbers per block."""
    bytes: int
    """Bytes per block."""
    dtype: np.dtype[Any]
    """Dtype of the decoded numbers."""
    decode: Callable[[Memory], np.ndarray]
    """Function from whole blocks to their numbers, one after another."""


def _plain(dtype: Any) -> NumberFormat:
    """Return the format of stored numbers in a dtype that NumPy computes with."""
    stored = np.dtype(dtype)
    return NumberFormat(1, stored.itemsize, stored, lambda memory: memory.view(stored))


def _converted(dtype: Any, to: Any) -> NumberFormat:
    """Return the format of stored numbers that are converted to another dtype."""
    stored = np.dtype(dtype)

    def decode(memory: Memory) -> np.ndarray:
        with np.errstate(all="ignore"):
            converted: np.ndarray = memory.view(stored).astype(to)
        return converted

    return NumberFormat(1, stored.itemsize, np.dtype(to), decode)


BLOCKS: Mapping[str, tuple[int, int]] = {
    "Q4_0": (32, 18),
    "Q4_1": (32, 20),
    "Q5_0": (32, 22),
    "Q5_1": (32, 24),
    "Q8_0": (32, 34),
    "Q2_K": (256, 84),
    "Q3_K": (256, 110),
    "Q4_K": (256, 144),
    "Q5_K": (256, 176),
    "Q6_K": (256, 210),
    "IQ4_NL": (32, 18),
    "IQ4_XS": (256, 136),
}
"""Numbers and bytes of a block of GGUF's formats. Source: ggml, ggml-common.h."""


def _blocks(name: str) -> NumberFormat:
    numbers, size = BLOCKS[name]
    return NumberFormat(numbers, size, np.dtype(np.float32), partial(_dequantized, name))


def _dequantized(name: str, memory: Memory) -> np.ndarray:
    """Decode blocks of a GGUF format to float32, a group at a time.

    Raises: CheckpointError: the `gguf` package is missing.
    """
    numbers, size = BLOCKS[name]
    blocks = memory.reshape(-1, size)
    decoded, step = np.empty(len(blocks) * numbers, np.float32), GROUP // numbers
    for first in range(0, len(blocks), step):
        group = np.ascontiguousarray(blocks[first : first + step]).reshape(1, -1)
        with np.errstate(all="ignore"):  # scales of damaged files may be infinite
            output = _decoder(name)(group)
        decoded[first * numbers : first * numbers + output.size] = output[0]
    return decoded


@cache
def _decoder(name: str) -> Callable[[np.ndarray], np.ndarray]:
    try:
        from gguf import GGMLQuantizationType, quants
    except ImportError as error:
        raise CheckpointError(
            f"weights of the type {name} need the package gguf; install it (pip install gguf)"
        ) from error
    return lambda blocks: quants.dequantize(blocks, GGMLQuantizationType[name])


NF4 = np.array(
    [
        *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453),
        *(-0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0),
        *(0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224),
        *(0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0),
    ],
    np.float32,
)
"""The numbers of NF4. Source: Dettmers et al. 2023 (QLoRA), appendix E."""


_FP4_POSITIVE = (0.0, 5.208333333e-03, 0.66666667, 1.0, 0.33333333, 0.5, 0.16666667, 0.25)
FP4 = np.array([*_FP4_POSITIVE, *(-number for number in _FP4_POSITIVE)], np.float32)
"""The numbers of bitsandbytes' FP4. Source: bitsandbytes, csrc/kernels.cu (dDequantizeFP4Tree)."""

_POSITIVE = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_E2M1 = np.array([*_POSITIVE, *(-number for number in _POSITIVE)], np.float32)
"""The 4-bit floats, by their bits. Source: OCP Microscaling Formats (MX) 1.0, section 5.3.3."""


def _pairs(table: np.ndarray, *, high_first: bool = True) -> NumberFormat:
    """Return the format of pairs of 4-bit indices of a table of float32."""

    def decode(memory: Memory) -> np.ndarray:
        pair = [memory >> 4, memory & 15] if high_first else [memory & 15, memory >> 4]
        numbers: np.ndarray = table[np.stack(pair, axis=1)]
        return numbers.reshape(-1)

    return NumberFormat(2, 1, np.dtype(np.float32), decode)


FLOAT8: Mapping[str, Any] = {"F8_E4M3": jnp.float8_e4m3fn, "F8_E5M2": jnp.float8_e5m2}
"""8-bit floats, which make files smaller; they are exact in bfloat16."""
E2M1, E2M1_HIGH_FIRST, E8M0 = "E2M1", "E2M1, first in high bits", "F8_E8M0"
"""4-bit floats, in both orders of a byte's two, and powers of two, as scales."""
BY_127, _BY_127 = "F32 / 127", np.float32(7.874015718698502e-3)
"""Largest magnitudes of rows of INT8 as scales. Source: diffusers, quantizers/bitsandbytes."""
WEIGHTS: Mapping[str, NumberFormat] = {
    "F32": _plain(np.float32),
    "F16": _plain(np.float16),
    "BF16": _plain(jnp.bfloat16),
    "F64": _converted(np.float64, np.float32),
    **{name: _converted(dtype, jnp.bfloat16) for name, dtype in FLOAT8.items()},
    **{name: _blocks(name) for name in BLOCKS},
    "NF4": _pairs(NF4),
    "FP4": _pairs(FP4),
    BY_127: NumberFormat(1, 4, np.dtype(np.float32), lambda memory: memory.view("<f4") * _BY_127),
    E2M1: _pairs(_E2M1, high_first=False),
    E2M1_HIGH_FIRST: _pairs(_E2M1),
    E8M0: _converted(jnp.float8_e8m0fnu, np.float32),
}
"""Formats of weights."""
SCALED = (*FLOAT8, E2M1, E2M1_HIGH_FIRST, "I8")
"""Formats of weights that may have a scale; whole numbers need one."""
FORMATS: Mapping[str, NumberFormat] = {
    **WEIGHTS,
    **{f"I{bits}": _plain(f"<i{bits // 8}") for bits in (8, 16, 32, 64)},
    **{f"U{bits}": _plain(f"<u{bits // 8}") for bits in (8, 16, 32, 64)},
    "BOOL": _plain(np.uint8),
}
"""Formats of all arrays that can be read."""
