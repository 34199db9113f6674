"""Selection of the attention kernel for a chip."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import jax.numpy as jnp
from jax.typing import DTypeLike

from models.nn.kernels import cudnn
from models.nn.kernels.block_sizes import Choose, of_chip
from models.nn.kernels.blockwise import blockwise_kernel, by_keys, sized_kernel
from models.nn.kernels.kernel import Kernel
from models.nn.kernels.splash import splash_kernel
from models.nn.kernels.wide_attention import transposed_kernel
from models.nn.kernels.xla import few_keys_kernel, xla_kernel

BROAD = ("TPU v6 lite", "TPU7x")
"""Chips with matrix units of 256 x 256."""
MAX_LOGITS = 8 << 20
"""Maximum bytes of logits for XLA's kernel. Timed on two cores, heads of 64, float32: as fast as
blocks of 512 with 4 MiB, 1.9 times as slow with 16, 2 to 4 times with 128."""

FEW_KEYS = 128
"""Number of keys up to which TPUs use XLA's products: the lanes of a register, more than SDXL's 77
text tokens. A token then has fewer bytes of logits than of feed-forward activations."""


@runtime_checkable
class Chip(Protocol):
    """Properties read from a `jax.Device`, which may belong to a topology that is not attached."""

    @property
    def platform(self) -> str:
        """Platform of the device, as JAX names it."""

    @property
    def device_kind(self) -> str:
        """Kind of device, as JAX names it, such as `TPU v6e`."""


def kernel_for(chip: Chip, dtype: DTypeLike, *, experimental: bool = True) -> Kernel:
    """Select flash attention if the chip has it for this dtype of queries, else XLA's products.

    TPU: splash, or `wide_attention` for bfloat16 on chips with 256-wide matrix units, in the
    table's block sizes; XLA for few keys. GPU: cuDNN in bfloat16 and float16. Otherwise: XLA, in
    blocks if the logits would be large.

    Args:
        experimental: select `wide_attention` where it applies, which no chip has run yet.
    """
    if chip.platform == "gpu" and jnp.dtype(dtype) in map(jnp.dtype, cudnn.DTYPES):
        return cudnn.cudnn_kernel
    choose = of_chip(chip.device_kind)
    flash = flash_kernel(chip, choose, dtype) if experimental else plain_kernel(chip, choose)
    if chip.platform == "tpu":
        return by_keys(few_keys_kernel, flash, FEW_KEYS)
    return sized_kernel(xla_kernel, flash, MAX_LOGITS)


def flash_kernel(chip: Chip, choose: Choose, dtype: DTypeLike) -> Kernel:
    """Return the chip's blockwise attention kernel, with block sizes from `choose`."""
    if uses_transposed_kernel(chip, dtype):
        return transposed_kernel(choose)
    return plain_kernel(chip, choose)


def plain_kernel(chip: Chip, choose: Choose) -> Kernel:
    """Return JAX's splash kernel on a TPU, XLA's products in blocks elsewhere."""
    return splash_kernel(choose) if chip.platform == "tpu" else blockwise_kernel(choose)


def uses_transposed_kernel(chip: Chip, dtype: DTypeLike) -> bool:
    """Return whether a TPU uses the kernel of `wide_attention`.

    It was never measured in float32, which takes six passes of bfloat16.
    """
    return chip.device_kind in BROAD and jnp.dtype(dtype) == jnp.bfloat16
