"""Adapters that set the magnitudes of a kernel's vectors (DoRA), for each row of a batch.

With the change Δ of a row's adapter, its scale s and the magnitudes m, a layer computes

    y = m · (W + s Δ) / ‖W + s Δ‖ x

A norm is that of all weights of an output, or of an input. The magnitudes are in the adapter's last
page. Each step computes the norms again: since Δ has a low rank, they take as long as a few dozen
tokens. So they are exact for each scale, and with kernels of 8 bits.

Source: Liu et al. 2024 (DoRA), eq. 5; PEFT, src/peft/tuners/lora/dora.py.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from models.nn.layers.adapter_bank import AdapterBank, RowPages
from models.parallel.row_adapters import RowAdapters
from models.spec.lora import PAGE_RANK

MAGNITUDES, REST, IS_SET = 0, 1, 2
"""Ranks of an adapter's last page: the magnitudes, what their dtype leaves out of them, and 1 where
the layer has magnitudes. `up` has those of outputs, and the first place of a window of `down` those
of inputs."""
SMALLEST = 1e-30
"""Smallest squared norm that is divided by."""


class Gains(NamedTuple):
    """Factors by which each row's DoRA adapters change a layer's magnitudes, less 1."""

    inputs: Float[Array, "rows in_features"]
    outputs: Float[Array, "rows out_features"]

    def read(self, x: Float[Array, "batch *places in_features"]) -> Array:
        """Scale a layer's inputs by the gains of input magnitudes."""
        return x + x * _along(self.inputs, x, 1)

    def stretched(self, out: Array, bias: Array | np.ndarray | None, features: int) -> Array:
        """Scale a layer's outputs, without its bias, by the gains of output magnitudes.

        Args:
            features: number of the output's last axes, such as heads and their sizes.
        """
        shape = out.shape[out.ndim - features :]
        plain = out if bias is None else out - bias.astype(out.dtype).reshape(shape)
        return out + plain * _along(self.outputs, out, features)


def _along(gains: Float[Array, "rows _features"], x: Array, features: int) -> Array:
    """Broadcast rows' gains to an array whose batch contains each row several times."""
    times = len(x) // len(gains) if len(gains) > 1 else 1
    gains = jnp.repeat(gains, times, axis=0).astype(x.dtype)
    ones = (1,) * (x.ndim - 1 - features)
    return gains.reshape(len(gains), *ones, *x.shape[x.ndim - features :])


def with_magnitudes(
    bank: AdapterBank, kernel: Float[Array, "*window in out"], x: Array, rows: RowAdapters
) -> tuple[RowPages, Gains]:
    """Gather the pages of a batch's rows, scaled to their adapters' magnitudes, and the gains.

    Args:
        kernel: of the layer.
        rows: with owners.
    """
    assert rows.owners is not None
    pages = bank.of_rows(x[: len(rows.pages)], rows)
    count = rows.pages.shape[1]
    owned = rows.owners[:, None, :] == jnp.arange(count)[None, :, None]  # [rows, owner, page]
    flat = kernel.reshape(-1, *kernel.shape[-2:])
    outputs, inputs = _norms(pages, owned, flat)
    is_used = (owned & (rows.scales != 0)[:, None, :]).any(-1)
    by_rank = (len(pages.up), count, PAGE_RANK)
    magnitudes_out = pages.up.reshape(*by_rank, -1)
    magnitudes_in = pages.down[:, :, 0].reshape(*by_rank, -1)
    gains_out, gains_in = (
        _gains(stored, squares) * is_used[..., None]
        for stored, squares in ((magnitudes_out, outputs), (magnitudes_in, inputs))
    )

    def of_ranks(gains: Float[Array, "rows owner _features"]) -> Array:
        factors = 1 + jnp.einsum("rqp,rqf->rpf", owned.astype(jnp.float32), gains)
        return jnp.repeat(factors, PAGE_RANK, axis=1).astype(x.dtype)

    scaled = pages._replace(
        up=pages.up * of_ranks(gains_out), down=pages.down * of_ranks(gains_in)[:, :, None]
    )
    return _repeated(scaled, x), Gains(gains_in.sum(1), gains_out.sum(1))


def _repeated(pages: RowPages, x: Array) -> RowPages:
    """Repeat rows' adapter pages for a batch that contains each row several times."""
    if len(pages.up) == 1:
        return pages
    return RowPages(*(jnp.repeat(leaf, len(x) // len(leaf), axis=0) for leaf in pages))


def _gains(
    stored: Float[Array, "rows owner ranks _features"],
    squares: Float[Array, "rows owner _features"],
) -> Float[Array, "rows owner _features"]:
    """Return each DoRA gain, magnitude / norm - 1; 0 where no magnitude is set."""
    numbers = stored.astype(jnp.float32)
    magnitudes = numbers[:, :, MAGNITUDES] + numbers[:, :, REST]
    return numbers[:, :, IS_SET] * (magnitudes * jax.lax.rsqrt(jnp.maximum(squares, SMALLEST)) - 1)


def _norms(
    pages: RowPages,
    owned: Bool[Array, "rows owner pages"],
    kernel: Float[Array, "_window _in _out"],
) -> tuple[Float[Array, "rows owner out"], Float[Array, "rows owner in"]]:
    """Return the squared norms of W + s Δ of each owner's pages, by output and by input.

    ‖W + s Δ‖² is ‖W‖² + 2 W · s Δ + ‖s Δ‖², each from the factors of Δ.
    """
    scales = jnp.repeat(pages.scales, PAGE_RANK, axis=1).astype(jnp.float32)
    up = pages.up.astype(jnp.float32) * scales[..., None]
    down = pages.down.astype(jnp.float32)
    by_down = jnp.einsum("rjwi,wio->rjo", pages.down, kernel, preferred_element_type=jnp.float32)
    by_up = jnp.einsum("rjo,wio->rjwi", pages.up, kernel, preferred_element_type=jnp.float32)
    of_rank = jnp.repeat(owned, PAGE_RANK, axis=2).astype(jnp.float32)  # [rows, owner, rank]
    same = jnp.einsum("rqj,rqk->rjk", of_rank, of_rank)
    grams_down = same * jnp.einsum("rjwi,rkwi->rjk", down, down)
    grams_up = same * jnp.einsum("rjo,rko->rjk", up, up)
    outputs = up * (2 * by_down + jnp.einsum("rjk,rko->rjo", grams_down, up))
    inputs = down * (
        2 * by_up * scales[..., None, None] + jnp.einsum("rjk,rkwi->rjwi", grams_up, down)
    )
    squares = jnp.square(kernel.astype(jnp.float32))
    return (
        squares.sum((0, 1)) + jnp.einsum("rqj,rjo->rqo", of_rank, outputs),
        squares.sum((0, 2)) + jnp.einsum("rqj,rjwi->rqi", of_rank, inputs),
    )
