"""Names of a network's layers in adapter files, derived from the network and a `Spelling`.

Trainers use diffusers' or the model authors' layer names, with dots or, in kohya's style, with
underscores. A family's `Spelling` describes these names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from flax import nnx

from models.adapters.files.adapter import KernelShape, LayerPosition
from models.adapters.files.name_table import Layers, NetworkNames
from models.checkpoint.authors_names import Fused
from models.checkpoint.key_mapping import Renames, source, split
from models.nn.layers.parameterised import Conv, Linear
from models.spec.lora import Expert

DOTTED = (
    *("transformer.", "diffusion_model.", "model.diffusion_model.", "base_model.model."),
    *("base_model.model.transformer.", "base_model.model.diffusion_model.", "model.", "unet."),
    *("transformer.base_model.model.", "pipe.dit.", "dit."),
)
"""Prefixes of a denoising network's layers in files of diffusers, ComfyUI, PEFT, fal, SimpleTuner
and DiffSynth-Studio."""
UNDERSCORED = (
    *("lora_unet_", "lora_transformer_", "lycoris_", "lora_unet__"),
    *("diffusion_model_", "transformer_", "unet_", ""),
)
"""Prefixes of a denoising network's layers in the files of kohya, OneTrainer and LyCORIS."""
JOINED: Mapping[str, tuple[str, ...]] = {
    "to_qkv": ("to_q", "to_k", "to_v"),
    "to_kv": ("to_k", "to_v"),
    "to_added_qkv": ("add_q_proj", "add_k_proj", "add_v_proj"),
}
"""Projections that diffusers fuses (`fuse_qkv_projections`), and their names before."""
OF_PEFT = ("diffusion_model.default.", "default.")
"""Prefixes in files whose keys include PEFT's adapter name, `default`."""


@dataclass(frozen=True)
class Spelling:
    """Naming scheme of a network's layers in files; by default of a denoising transformer's."""

    renames: Renames
    """Rename table of checkpoints in diffusers' format."""
    network: str = "transformer"
    """Name of the network in the pipeline's weights."""
    dotted: tuple[str, ...] = (*DOTTED, "")
    """Prefixes of names with dots."""
    underscored: tuple[str, ...] = UNDERSCORED
    """Prefixes of names with underscores instead of dots."""
    fused: Callable[[Any], Fused] = lambda network: {}
    """Function from a network to the authors' names of its layers."""
    swapped: frozenset[str] = frozenset()
    """Names of `fused` whose output halves are in reverse order."""
    synonyms: tuple[tuple[str, str], ...] = ()
    """Parts of diffusers' names, with their spelling in older files."""
    expert: Expert | None = None
    """Expert of Wan 2.2 that the network is; None: not an expert."""
    narrow: Callable[[Any], Mapping[str, int]] = lambda network: {}
    """Function from a network to the layers' minimum input features among its checkpoints, by
    diffusers' names."""
    unread: tuple[str, ...] = ()
    """Expressions of layers whose differences (`diff`, `diff_b`) diffusers ignores."""
    unread_alone: tuple[str, ...] = ()
    """Expressions of layers whose bias diffusers ignores if they have no matrices."""
    absent: tuple[str, ...] = ()
    """Names of layers that some checkpoints lack; adapters of the others pass them over. `{}` is a
    number."""


def names(spelling: Spelling, network: nnx.Module) -> NetworkNames:
    """Return all names of a network's layers. The network may be abstract."""
    plain = _plain(spelling, network)
    authors, swapped = _authors(spelling, network, plain)
    current = {**authors, **plain}
    older = {
        name.replace(new, old): layers
        for new, old in spelling.synonyms
        for name, layers in current.items()
        if new in name
    }
    return NetworkNames(
        spelling.network,
        {**dict(_absent(spelling, current)), **dict(_joined(plain)), **older, **current},
        spelling.dotted,
        spelling.underscored,
        frozenset(swapped),
        spelling.expert,
        dict(_narrow(spelling, network, current)),
        spelling.unread,
        spelling.unread_alone,
    )


def _joined(plain: Mapping[str, Layers]) -> Iterator[tuple[str, Layers]]:
    """Yield diffusers' names of fused projections, with the layers that each fuses."""
    for attention in dict.fromkeys(name.rpartition(".")[0] for name in plain):
        for joined, parts in JOINED.items():
            layers = [plain.get(f"{attention}.{part}", {}) for part in parts]
            inputs = {shape.in_features for layer in layers for shape in layer.values()}
            if all(layers) and len(inputs) == 1:
                together = {place: shape for layer in layers for place, shape in layer.items()}
                yield f"{attention}.{joined}", together


def _absent(spelling: Spelling, current: Mapping[str, Layers]) -> Iterator[tuple[str, Layers]]:
    """Yield names of layers that only other checkpoints of the family have, without layers."""
    numbers = {part for name in current for part in name.split(".") if part.isdecimal()}
    for name in spelling.absent:
        yield from ((name.format(number), {}) for number in (numbers if "{}" in name else {""}))


def _narrow(
    spelling: Spelling, network: nnx.Module, by_name: Mapping[str, Layers]
) -> Iterator[tuple[str, int]]:
    """Yield the minimum input features of layers, by each of their names."""
    for layer, inputs in spelling.narrow(network).items():
        yield from ((name, inputs) for name, layers in by_name.items() if layers == by_name[layer])


def _plain(spelling: Spelling, network: nnx.Module) -> dict[str, dict[LayerPosition, KernelShape]]:
    """Return the layers by their names in checkpoints.

    A name of several layers that share a tensor lists them in the tensor's order.
    """
    by_name: dict[str, dict[LayerPosition, KernelShape]] = {}
    for place, shape in sorted(adaptable(network), key=lambda item: _order(item[0], spelling)):
        key = source(f"{place.path}.kernel", place.layer, spelling.renames)
        if key is not None:
            by_name.setdefault(key.removesuffix(".weight"), {})[place] = shape
    return by_name


def _order(place: LayerPosition, spelling: Spelling) -> int:
    """Return the index of a layer among the layers that share its tensor."""
    for _, path, *_ in spelling.renames:
        parts = split(path.partition("[")[0])
        if f"{place.path}.kernel" in parts:
            return parts.index(f"{place.path}.kernel")
    return 0


def _authors(
    spelling: Spelling, network: nnx.Module, plain: Mapping[str, Layers]
) -> tuple[dict[str, Layers], set[str]]:
    """Return the layers by their names in the authors' code, and the names with swapped halves."""
    by_name: dict[str, Layers] = {}
    swapped = set()
    for name, parts, is_swapped in _fused(spelling, network, plain):
        by_name[name] = {place: shape for part in parts for place, shape in plain[part].items()}
        swapped |= {name} if is_swapped else set()
    return by_name, swapped


def _fused(
    spelling: Spelling, network: nnx.Module, plain: Iterable[str]
) -> Iterator[tuple[str, tuple[str, ...], bool]]:
    """Yield the authors' names, their component layers, and whether the halves are swapped."""
    names = set(plain)
    numbers = {part for name in names for part in name.split(".") if part.isdecimal()}
    for fused, layers in spelling.fused(network).items():
        for number in numbers if "{}" in fused else {""}:
            parts = tuple(layer.format(number) for layer in layers)
            if names.issuperset(parts):
                yield fused.format(number), parts, fused in spelling.swapped


def adaptable(network: nnx.Module) -> Iterator[tuple[LayerPosition, KernelShape]]:
    """Yield the layers that an adapter can change, each layer of a stack separately."""
    for path, layer in adaptable_modules(network):
        layers, shape = kernel_shape(layer)
        for number in (None,) if layers is None else range(layers):
            yield LayerPosition(path, number), shape


def adaptable_modules(network: nnx.Module) -> Iterator[tuple[str, Linear | Conv]]:
    """Yield the modules that can have banks, by path; a stack of layers is a single module."""
    for parts, node in nnx.iter_graph(network):
        if isinstance(node, Linear | Conv):
            yield ".".join(map(str, parts)), node


def kernel_shape(layer: Linear | Conv) -> tuple[int | None, KernelShape]:
    """Return the number of stacked layers (None for a single layer), and the shape of one layer.

    Layers with only 8-bit kernels are supported.
    """
    if isinstance(layer, Conv):
        *window, in_features, out_features = layer.kernel.shape
        return None, KernelShape(in_features, out_features, tuple(window))
    if has_kernel(layer):
        *layers, in_features, out_features = layer.kernel.shape
    else:
        assert layer.eight is not None  # a layer has a kernel or 8-bit values
        *layers, out_features = layer.eight.scale.shape
        in_features = layer.in_features
    return (layers[0] if layers else None), KernelShape(in_features, out_features)


def has_kernel(layer: Linear | Conv) -> bool:
    """Return whether a layer has an exact kernel, not only an 8-bit kernel."""
    return layer.kernel is not None and layer.kernel.get_value() is not None
