"""Names of a model's layers in files of adapters.

A trainer names layers as diffusers does, or as the model's authors did, with dots or, in kohya's
style, with underscores. No name is taken apart to guess: all names of a model's layers are listed,
and a key has to be one of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from flax import nnx

from models.adapters.adapter import KernelShape, Place
from models.checkpoint.key_mapping import Renames, source
from models.nn.layers.parameterised import Linear


@dataclass(frozen=True)
class Named:
    """Layers that a name stands for: more than one where the authors' layer is several of ours."""

    network: str
    layers: Mapping[Place, KernelShape]
    """Layers, in the order in which their outputs lie behind each other."""
    is_swapped: bool = False
    """Whether the authors' layer has its outputs' halves the other way round."""


Names = Mapping[str, Named]
"""Layers by a key's part in front of `.lora_A.weight` and its like."""

Fused = Mapping[str, tuple[str, ...]]
"""The authors' name of a layer → diffusers' names of what it is made of; `{}` is a number."""


@dataclass(frozen=True)
class Spelling:
    """Spelling of a network's layers in files."""

    network: str
    """Name of the network in the pipeline's weights."""
    renames: tuple[Renames, ...]
    """Tables of the checkpoints' formats, diffusers' first."""
    dotted: tuple[str, ...]
    """Prefixes of names with dots."""
    underscored: tuple[str, ...]
    """Prefixes of names with underscores for dots."""
    fused: Fused
    """The authors' names, where no table of renames has them."""
    swapped: frozenset[str] = frozenset()
    """Names of `fused` whose outputs' halves lie the other way round."""
    synonyms: tuple[tuple[str, str], ...] = ()
    """Parts of diffusers' names, and what older files say instead."""


def names(spelling: Spelling, network: nnx.Module) -> dict[str, Named]:
    """Return all names of a network's layers. The network may be abstract."""
    found = {name: Named(spelling.network, layers) for name, layers in _plain(spelling, network)}
    theirs = {
        name: Named(
            spelling.network,
            {place: size for one in parts for place, size in found[one].layers.items()},
            is_swapped,
        )
        for name, parts, is_swapped in _fused(spelling, found)
    }
    both = {**theirs, **found}
    older = {
        name.replace(now, before): goal
        for now, before in spelling.synonyms
        for name, goal in both.items()
        if now in name
    }
    every = {**older, **both}
    return {
        **{f"{prefix}{name}": one for prefix in spelling.dotted for name, one in every.items()},
        **{
            f"{prefix}{name.replace('.', '_')}": one
            for prefix in spelling.underscored
            for name, one in every.items()
        },
    }


def _plain(
    spelling: Spelling, network: nnx.Module
) -> Iterator[tuple[str, dict[Place, KernelShape]]]:
    """Yield the layers by the names that checkpoints have for them."""
    for place, size in adaptable(network):
        for renames in spelling.renames:
            key = source(f"{place.path}.kernel", place.layer, renames)
            if key is not None:
                yield key.removesuffix(".weight"), {place: size}


def _fused(spelling: Spelling, found: Iterable[str]) -> Iterator[tuple[str, tuple[str, ...], bool]]:
    """Yield the authors' names, what they are made of, and whether their halves are swapped."""
    known = set(found)
    numbers = {part for name in known for part in name.split(".") if part.isdecimal()}
    for theirs, ours in spelling.fused.items():
        for number in numbers if "{}" in theirs else {""}:
            parts = tuple(one.format(number) for one in ours)
            if known.issuperset(parts):
                yield theirs.format(number), parts, theirs in spelling.swapped


def adaptable(network: nnx.Module) -> Iterator[tuple[Place, KernelShape]]:
    """Yield the layers of a network that an adapter can change, each of a stack on its own."""
    for parts, node in nnx.iter_graph(network):
        if not isinstance(node, Linear):
            continue
        path = ".".join(map(str, parts))
        *layers, in_features, out_features = kernel_shape(node)
        size = KernelShape(in_features, out_features)
        for layer in range(layers[0]) if layers else (None,):
            yield Place(path, layer), size


def kernel_shape(layer: Linear) -> tuple[int, ...]:
    """Return the shape of a layer's kernel, [*layers, in, out], of 8 bits too."""
    if layer.kernel is not None and layer.kernel.get_value() is not None:
        return tuple(layer.kernel.shape)
    assert layer.eight is not None  # a layer has one of them
    return (*layer.eight.scale.shape[:-1], layer.in_features, layer.out_features)
