"""Placement of prompt and image encoders: small ones replicated, large ones split over all devices.

Encoders run once per request, for one or two rows, while nothing else runs. A small encoder
finishes sooner than its results could be exchanged. A large one would take a third of the memory of
each small chip.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TypeVar

from flax import nnx

Module = TypeVar("Module", bound=nnx.Module)

REPLICATED_BELOW_BYTES = 2 * 2**30
"""Bytes of an encoder: an eighth of the smallest supported chip (v5e, 16 GiB). CLIP's towers have
0.2 to 1.4 GB in bfloat16, T5-XXL has 9.5 GB and UMT5-XXL 11.4 GB."""

_SHARED: Mapping[str | None, str] = MappingProxyType(
    {"layers": "layers", "heads": "encoder", "mlp": "encoder", "vocab": "encoder"}
)
_REPLICATED: Mapping[str | None, str] = MappingProxyType({"layers": "layers"})


def rename_axes_by_size(encoder: Module, replicated_below: int = REPLICATED_BELOW_BYTES) -> Module:
    """Rename the axes of an encoder's parameters by its size; return the encoder.

    Heads, feed-forward and vocabulary of a large encoder are split over all devices, in storage and
    in use. Devices exchange a layer's outputs, a few MB, instead of its weights.

    Args:
        encoder: the network, which may be abstract.
        replicated_below: bytes below which every device has the whole encoder.
    """
    parameters = [node for _, node in nnx.iter_graph(encoder) if isinstance(node, nnx.Param)]
    size = sum(leaf.size * leaf.dtype.itemsize for leaf in parameters)
    names = _REPLICATED if size < replicated_below else _SHARED
    for leaf in parameters:
        leaf.set_metadata(axes=tuple(names.get(axis) for axis in leaf.axes))
    return encoder
