"""Bank of low-rank adapters (LoRA), which each row of a batch may add to a layer's kernel.

A bank is an array of pages on the device, each with `PAGE_RANK` ranks of one adapter. A row has a
list of pages and their scales (models/parallel/row_adapters.py), and a layer adds, row by row,

    y = W x + Σ scale · up(down(x))

An adapter of a higher rank has several pages, and so have several adapters of one row: a layer does
not distinguish them. The assignment of pages is data. So rows with any adapters share a program,
and adapters are loaded and removed without a new one. Adapters that set magnitudes (DoRA) need
another program (models/nn/layers/adapter_magnitudes.py).

Source: Hu et al. 2021 (LoRA), section 4.1. One kernel for rows of many adapters: Chen et al. 2023
(Punica), section 4; pages of ranks in one pool: Sheng et al. 2023 (S-LoRA), section 5.1.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from models.nn.kernels.int8_matmul import OfStack
from models.parallel.row_adapters import AdapterPages, RowAdapters
from models.parallel.trace_options import trace_options
from models.spec.lora import PAGE_RANK

BANK = "bank"
"""Attribute of a layer that holds its bank."""


class AdapterBank(nnx.Module):
    """Adapter pages of one layer, or of each layer of a stack.

    `down` [*layers, pages, PAGE_RANK, *window, in] and `up` [*layers, pages, PAGE_RANK, out] have
    features last, as in a chip's memory. `bias` [*layers, pages, out] is added with the page's
    scale.
    """

    def __init__(self, down: AdapterPages, up: AdapterPages, bias: AdapterPages) -> None:
        self.down, self.up, self.bias = down, up, bias

    def added(self, out: Array, change: Array) -> Array:
        """Add the adapters' change to the layer's outputs.

        The change is computed first. A TPU's compiler then adds it while it writes the layer's own
        product, in any memory order. Otherwise it would read and write the outputs once more, and
        transpose them after that. A product whose sums cross devices is written before anything can
        be added.
        """
        change = change.reshape(out.shape)
        return out + (change if self._has_split_inputs else jax.lax.optimization_barrier(change))

    @property
    def _has_split_inputs(self) -> bool:
        """True if devices each compute a part of the layer's sums."""
        layout, axis = trace_options().layout, self.down.axes[-1]
        return layout is not None and axis is not None and layout.in_use().size(axis) > 1

    def of_rows(self, x: Array, rows: RowAdapters) -> RowPages:
        """Gather the bank pages that each row of a batch reads, in the dtype of `x`.

        The pages of a single row are gathered once, whatever the batch size.
        """
        places, scales, _ = rows if len(rows.pages) == 1 else rows.of_batch(len(x))
        down, up, bias = (
            _taken(leaf, places).astype(x.dtype) for leaf in (self.down, self.up, self.bias)
        )
        return RowPages(
            down.reshape(len(down), down.shape[1] * PAGE_RANK, -1, down.shape[-1]),
            up.reshape(len(up), -1, up.shape[-1]),
            bias,
            scales.astype(x.dtype),
        )


class RowPages(NamedTuple):
    """Gathered pages of one layer, by row; or those of a single row for the whole batch."""

    down: Float[Array, "rows ranks window in_features"]
    up: Float[Array, "rows ranks out_features"]
    bias: Float[Array, "rows pages out_features"]
    scales: Float[Array, "rows pages"]

    def change(
        self, x: Float[Array, "batch *tokens in_features"], features: tuple[int, ...] = (-1,)
    ) -> Float[Array, "batch ..."]:
        """Compute what each row's adapters add to a linear layer's output, in the dtype of `x`.

        Args:
            features: axes of the output's features, such as heads and their sizes.
        """
        flat = x.reshape(len(x), -1, x.shape[-1])
        hidden = product(flat, self.down[:, :, 0], "ji", "j")
        return self.raised(hidden, features).reshape(*x.shape[:-1], *features)

    def raised(
        self,
        hidden: Float[Array, "batch *places ranks"],
        features: tuple[int, ...] = (-1,),
    ) -> Float[Array, "batch ..."]:
        """Scale the activations of the ranks and project them to the outputs.

        A barrier keeps the ranks separate: a TPU's compiler would recompute them for each tile of
        outputs.
        """
        scales = jnp.repeat(self.scales, PAGE_RANK, axis=1)
        hidden = jax.lax.optimization_barrier(hidden)
        flat = hidden.reshape(len(hidden), -1, hidden.shape[-1]) * scales[:, None]
        up = self.up.reshape(*self.up.shape[:2], *features)
        out = "ohd"[: len(features)]
        added = product(flat, up, f"j{out}", out)
        bias = jnp.einsum("bp,bpo->bo", self.scales, self.bias)
        added = added + bias.reshape(len(bias), 1, *added.shape[2:])
        return added.reshape(*hidden.shape[:-1], *added.shape[2:])


def product(
    x: Float[Array, "batch places _in"],
    weights: Float[Array, "rows ..."],
    own_axes: str,
    features: str,
) -> Float[Array, "batch places ..."]:
    """Multiply each row of `x` by its own array, or all rows by a single array.

    Args:
        own_axes: letters of the axes of one row's array; those not in `features` are summed over.
        features: letters of the results' last axes.
    """
    summed = "".join(letter for letter in own_axes if letter not in features)
    if len(weights) == 1:
        return jnp.einsum(f"bs{summed},{own_axes}->bs{features}", x, weights[0])
    return jnp.einsum(f"bs{summed},b{own_axes}->bs{features}", x, weights)


def is_of_bank(path: tuple[Any, ...], leaf: Any) -> bool:
    """Return whether rows read their adapter pages from a leaf's whole stack of layers.

    Slicing one layer out of it first would copy the pages of all adapters in the bank.
    """
    has_adapters = trace_options().adapters is not None
    return has_adapters and isinstance(leaf, AdapterPages) and "layers" in leaf.axes


def _taken(parameter: AdapterPages, pages: Array) -> Array:
    """Gather the adapter pages of each row, [batch, pages, …]; those of stacked layers in place."""
    value: Any = parameter.get_value()
    taken = value.values[value.number, pages] if isinstance(value, OfStack) else value[pages]
    layout = trace_options().layout
    if layout is None:
        return taken
    axes = (None, None, *parameter.axes[-(taken.ndim - 2) :])
    used = layout.in_use()
    placed: Array = jax.lax.with_sharding_constraint(taken, used.sharding(axes, taken.shape))
    return placed
