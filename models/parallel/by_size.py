"""Encoders of prompts and images: small ones whole on every device, large ones shared by all.

They run once a request, for a row or two, while nothing else does. A small one is done before its
results were sent round. A large one would take a third of a small chip on each of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TypeVar

from flax import nnx

Module = TypeVar("Module", bound=nnx.Module)

WHOLE_BELOW = 2 * 2**30
"""Bytes of an encoder: an eighth of the smallest chip that is served (v5e, 16 GiB). CLIP's towers
have 0.2 to 1.4 GB in bfloat16, T5-XXL has 9.5 GB and UMT5-XXL 11.4 GB."""

_SHARED: Mapping[str | None, str] = MappingProxyType(
    {"layers": "layers", "heads": "encoder", "mlp": "encoder", "vocab": "encoder"}
)
_WHOLE: Mapping[str | None, str] = MappingProxyType({"layers": "layers"})


def placed_by_size(encoder: Module, whole_below: int = WHOLE_BELOW) -> Module:
    """The same encoder, which may be abstract, the axes of its parameters named by its size.

    Heads, feed-forward and vocabulary of a large one are shared by all devices, as they lie and as
    they run: what is sent round is what leaves a layer, a few MB, and not its weights.

    Args:
        whole_below: bytes under which every device has all of it.
    """
    parameters = [node for _, node in nnx.iter_graph(encoder) if isinstance(node, nnx.Param)]
    size = sum(leaf.size * leaf.dtype.itemsize for leaf in parameters)
    names = _WHOLE if size < whole_below else _SHARED
    for leaf in parameters:
        leaf.set_metadata(axes=tuple(names.get(axis) for axis in leaf.axes))
    return encoder
