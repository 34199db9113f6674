"""Names of a network's layers in files of adapters.

A trainer names layers as diffusers does, or as the model's authors did, with dots or, in kohya's
style, with underscores. A family says how (`Spelling`), and its network has the layers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from flax import nnx

from models.adapters.files.adapter import KernelShape, Place
from models.adapters.files.names import Layers, NetworkNames
from models.checkpoint.authors_names import Fused
from models.checkpoint.key_mapping import Renames, source, split
from models.nn.layers.parameterised import Conv, Linear
from models.spec.lora import Expert

DOTTED = ("transformer.", "diffusion_model.", "model.diffusion_model.", "base_model.model.")
"""Prefixes of a denoising transformer's layers in files of diffusers, ComfyUI and fal."""
UNDERSCORED = ("lora_unet_", "lora_transformer_")
"""Prefixes of them in kohya's and OneTrainer's files."""
OF_PEFT = ("diffusion_model.default.", "default.")
"""Prefixes in files whose keys have PEFT's name of an adapter, `default`."""


@dataclass(frozen=True)
class Spelling:
    """Spelling of a network's layers in files; by default of a denoising transformer's."""

    renames: Renames
    """Table of the checkpoints in diffusers' format."""
    network: str = "transformer"
    """Name of the network in the pipeline's weights."""
    dotted: tuple[str, ...] = (*DOTTED, "")
    """Prefixes of names with dots."""
    underscored: tuple[str, ...] = UNDERSCORED
    """Prefixes of names with underscores for dots."""
    fused: Callable[[Any], Fused] = lambda network: {}
    """Return the authors' names of a network's layers."""
    swapped: frozenset[str] = frozenset()
    """Names of `fused` whose outputs' halves lie the other way round."""
    synonyms: tuple[tuple[str, str], ...] = ()
    """Parts of diffusers' names, and what older files say instead."""
    expert: Expert | None = None
    """Expert of Wan 2.2 that the network is; None: there are none."""
    narrow: Callable[[Any], Mapping[str, int]] = lambda network: {}
    """Return the inputs that layers have in checkpoints of this network that see least, by
    diffusers' names."""
    unread: tuple[str, ...] = ()
    """Expressions of layers whose differences (`diff`, `diff_b`) diffusers leaves out."""
    unread_alone: tuple[str, ...] = ()
    """Expressions of layers whose bias diffusers leaves out where there are no matrices."""


def names(spelling: Spelling, network: nnx.Module) -> NetworkNames:
    """Return all names of a network's layers. The network may be abstract."""
    found = _plain(spelling, network)
    theirs, swapped = _authors(spelling, network, found)
    both = {**theirs, **found}
    older = {
        name.replace(now, before): layers
        for now, before in spelling.synonyms
        for name, layers in both.items()
        if now in name
    }
    return NetworkNames(
        spelling.network,
        {**older, **both},
        spelling.dotted,
        spelling.underscored,
        frozenset(swapped),
        spelling.expert,
        dict(_narrow(spelling, network, both)),
        spelling.unread,
        spelling.unread_alone,
    )


def _narrow(
    spelling: Spelling, network: nnx.Module, known: Mapping[str, Layers]
) -> Iterator[tuple[str, int]]:
    """Yield the fewest inputs of layers, by each of their names."""
    for own, inputs in spelling.narrow(network).items():
        yield from ((name, inputs) for name, layers in known.items() if layers == known[own])


def _plain(spelling: Spelling, network: nnx.Module) -> dict[str, dict[Place, KernelShape]]:
    """Return the layers by the names that checkpoints have for them.

    Of those that share a tensor all, in its order.
    """
    found: dict[str, dict[Place, KernelShape]] = {}
    for place, shape in sorted(adaptable(network), key=lambda one: _order(one[0], spelling)):
        key = source(f"{place.path}.kernel", place.layer, spelling.renames)
        if key is not None:
            found.setdefault(key.removesuffix(".weight"), {})[place] = shape
    return found


def _order(place: Place, spelling: Spelling) -> int:
    """Return the place of a layer among those that share its tensor."""
    for _, path, *_ in spelling.renames:
        parts = split(path.partition("[")[0])
        if f"{place.path}.kernel" in parts:
            return parts.index(f"{place.path}.kernel")
    return 0


def _authors(
    spelling: Spelling, network: nnx.Module, found: Mapping[str, Layers]
) -> tuple[dict[str, Layers], set[str]]:
    """Return the layers by the authors' names, and the names with swapped halves."""
    theirs: dict[str, Layers] = {}
    swapped = set()
    for name, parts, is_swapped in _fused(spelling, network, found):
        theirs[name] = {place: shape for one in parts for place, shape in found[one].items()}
        swapped |= {name} if is_swapped else set()
    return theirs, swapped


def _fused(
    spelling: Spelling, network: nnx.Module, found: Iterable[str]
) -> Iterator[tuple[str, tuple[str, ...], bool]]:
    """Yield the authors' names, what they are made of, and whether their halves are swapped."""
    known = set(found)
    numbers = {part for name in known for part in name.split(".") if part.isdecimal()}
    for theirs, ours in spelling.fused(network).items():
        for number in numbers if "{}" in theirs else {""}:
            parts = tuple(one.format(number) for one in ours)
            if known.issuperset(parts):
                yield theirs.format(number), parts, theirs in spelling.swapped


def adaptable(network: nnx.Module) -> Iterator[tuple[Place, KernelShape]]:
    """Yield the layers of a network that an adapter can change, each of a stack on its own."""
    for path, layer in adaptable_modules(network):
        layers, shape = kernel_shape(layer)
        for number in (None,) if layers is None else range(layers):
            yield Place(path, number), shape


def adaptable_modules(network: nnx.Module) -> Iterator[tuple[str, Linear | Conv]]:
    """Yield the modules that may have banks, by their paths; a stack of layers is one."""
    for parts, node in nnx.iter_graph(network):
        if isinstance(node, Linear | Conv):
            yield ".".join(map(str, parts)), node


def kernel_shape(layer: Linear | Conv) -> tuple[int | None, KernelShape]:
    """Return the number of layers of a stack, None for a single layer, and one's shape.

    Of layers in 8 bits, too.
    """
    if isinstance(layer, Conv):
        *window, in_features, out_features = layer.kernel.shape
        return None, KernelShape(in_features, out_features, tuple(window))
    if has_kernel(layer):
        *layers, in_features, out_features = layer.kernel.shape
    else:
        assert layer.eight is not None  # a layer has one of them
        *layers, out_features = layer.eight.scale.shape
        in_features = layer.in_features
    return (layers[0] if layers else None), KernelShape(in_features, out_features)


def has_kernel(layer: Linear | Conv) -> bool:
    """Return whether a layer has an exact kernel, and not one of 8 bits alone."""
    return layer.kernel is not None and layer.kernel.get_value() is not None
