"""Choice of a chip's attention kernel."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import jax.numpy as jnp
from jax.typing import DTypeLike

from models.nn.kernels import cudnn
from models.nn.kernels.block_sizes import Choose, of_chip
from models.nn.kernels.blockwise import blockwise_kernel, by_keys, sized_kernel
from models.nn.kernels.kernel import Kernel
from models.nn.kernels.splash import splash_kernel
from models.nn.kernels.wide_attention import upright_kernel
from models.nn.kernels.xla import few_keys_kernel, xla_kernel

BROAD = ("TPU v6 lite", "TPU7x")
"""Chips with matrix units of 256 x 256."""
MOST_LOGITS = 8 << 20
"""Bytes that XLA's own kernel may take for its logits. Timed on two cores, heads of 64, float32: as
fast as blocks of 512 with 4 MiB, 1.9 times as slow with 16, 2 to 4 times with 128."""

FEW_KEYS = 128
"""Number of keys up to which TPUs use XLA's own products: a register's lanes, and SDXL's 77 of
text. A token's logits are fewer bytes than what a feed-forward has of it."""


@runtime_checkable
class Chip(Protocol):
    """Facts asked of a `jax.Device`, which may be one of a topology that is not there."""

    @property
    def platform(self) -> str:
        """Platform, as JAX names it."""

    @property
    def device_kind(self) -> str:
        """Kind of device, as JAX names it."""


def kernel_for(chip: Chip, dtype: DTypeLike) -> Kernel:
    """Flash attention where the chip has it for this dtype of queries, else XLA's own products.

    TPU: splash, or our own where the matrix units are broad and the queries bfloat16, in the
    table's block sizes; XLA where keys are few. GPU: cuDNN's in bfloat16 and float16. All else:
    XLA, in blocks where the logits would be large.
    """
    if chip.platform == "gpu" and jnp.dtype(dtype) in map(jnp.dtype, cudnn.DTYPES):
        return cudnn.cudnn_kernel
    flash = flash_kernel(chip, of_chip(chip.device_kind), dtype)
    if chip.platform == "tpu":
        return by_keys(few_keys_kernel, flash, FEW_KEYS)
    return sized_kernel(xla_kernel, flash, MOST_LOGITS)


def flash_kernel(chip: Chip, choose: Choose, dtype: DTypeLike) -> Kernel:
    """The kernel that works on a chip in blocks of sizes that we choose."""
    if chip.platform != "tpu":
        return blockwise_kernel(choose)
    return upright_kernel(choose) if is_upright(chip, dtype) else splash_kernel(choose)


def is_upright(chip: Chip, dtype: DTypeLike) -> bool:
    """Return whether a TPU takes our own kernel.

    In float32, in six passes of bfloat16, it was never looked at.
    """
    return chip.device_kind in BROAD and jnp.dtype(dtype) == jnp.bfloat16
