"""Reader of adapter files, which converts all supported formats to `Adapter`.

Supported are the formats of PEFT and diffusers, kohya's sd-scripts and musubi-tuner, ComfyUI,
ai-toolkit, fal and XLabs. They differ in layer names (`names`) and key endings (`key_endings`). The
values have the same meaning in all formats: y += alpha / rank · up(down(x)).

Source: diffusers, src/diffusers/loaders/lora_conversion_utils.py, for the meaning of each key.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

from models.adapters.files.adapter import (
    Adapter,
    AdapterError,
    AdapterSummary,
    LayerPosition,
    LowRank,
)
from models.adapters.files.alphas import Alphas
from models.adapters.files.base_models import looks_made_for
from models.adapters.files.key_endings import LayerEntries, by_layer, check_kind, listed
from models.adapters.files.low_rank import OTHER_BASE, changes_of, check_sizes, check_width
from models.adapters.files.names import Names
from models.adapters.files.tensor_file import TensorEntry, TensorFile, opened
from models.spec.lora import Expert


def inspect(path: Path, names: Names, expert: Expert | None = None) -> AdapterSummary:
    """Validate an adapter's file completely, with one of its arrays in memory at a time.

    Args:
        names: of the model's layers.
        expert: of Wan 2.2, that the file is for; None: high noise, as in diffusers.

    Raises: AdapterError: as `read`.
    """
    with opened(path) as file:
        layers, ignored = _sorted(file, names.of(expert))
        ranks = [(network, change.rank) for network, _, change in _changes(file, layers)]
        networks = tuple(sorted({network for network, _ in ranks}))
        return AdapterSummary(max(rank for _, rank in ranks), networks, ignored, file.bytes)


def read(path: Path, names: Names, expert: Expert | None = None) -> Adapter:
    """Read an adapter's file; arguments as in `inspect`.

    Raises: AdapterError: not a safetensors file, an unsupported kind of adapter, made for another
        model, or non-finite values. Names the keys and the remedy.
    """
    networks: dict[str, dict[LayerPosition, LowRank]] = defaultdict(dict)
    with opened(path) as file:
        layers, ignored = _sorted(file, names.of(expert))
        for network, place, change in _changes(file, layers):
            networks[network][place] = change
    return Adapter(dict(networks), ignored)


def _sorted(file: TensorFile, names: Names) -> tuple[list[LayerEntries], tuple[str, ...]]:
    """Return the file's validated layers, and the keys without effect.

    Raises: AdapterError.
    """
    check_kind(file.entries)
    layers, unmatched = by_layer(file.entries, names)
    for layer in layers:
        check_width(layer)
    ignored = [entry.key for entry in unmatched if _has_no_effect(entry, file, names)]
    unknown = {entry.key for entry in unmatched} - set(ignored)
    if unknown:
        raise AdapterError(_of_another_model(unknown, file.entries, len(layers)))
    alone = [layer for layer in layers if _is_unread(layer, names)]
    ignored += [entry.key for layer in alone for entry in layer.entries.values()]
    layers = [layer for layer in layers if layer not in alone]
    if not layers:
        raise AdapterError("it has no low-rank layers at all: this is no adapter")
    _check_layers(layers, file.entries)
    return layers, tuple(ignored)


def _check_layers(layers: list[LayerEntries], keys: Mapping[str, TensorEntry]) -> None:
    """Validate sizes, and reject layers that occur twice. Raises: AdapterError."""
    names: dict[tuple[str, LayerPosition], str] = {}
    for layer in layers:
        try:
            check_sizes(layer)
        except AdapterError as error:
            model = looks_made_for(keys) if OTHER_BASE in str(error) else None
            raise AdapterError(f"{error}{_looks(model)}") from None
        for place in layer.goal.layers:
            before = names.setdefault((layer.goal.network, place), layer.name)
            if before != layer.name:
                raise AdapterError(f"{listed([before, layer.name])}: the same layer by two names")


def _changes(
    file: TensorFile, layers: list[LayerEntries]
) -> Iterator[tuple[str, LayerPosition, LowRank]]:
    """Yield network, layer and change. Raises: AdapterError."""
    alphas = Alphas(file, has_keys=any("alpha" in layer.entries for layer in layers))
    for layer in layers:
        for place, change in changes_of(layer, file, alphas):
            yield layer.goal.network, place, change


def _has_no_effect(entry: TensorEntry, file: TensorFile, names: Names) -> bool:
    """Return whether a key of no layer can be ignored: zeros, or ignored by diffusers."""
    if re.search(r"\.diff(?:_b)?$", entry.key):
        unread = (pattern for network in names.networks for pattern in network.unread)
        if any(re.search(pattern, entry.key) for pattern in unread):
            return True
    return file.is_zero(entry)


def _is_unread(layer: LayerEntries, names: Names) -> bool:
    """Return whether diffusers ignores all arrays of a known layer."""
    networks = [entry for entry in names.networks if entry.network == layer.goal.network]
    is_alone = layer.entries.keys() == {"bias"}
    if any(re.search(entry, layer.name) for network in networks for entry in network.unread):
        return layer.entries.keys() <= {"bias", "full"}
    unread_alone = (entry for network in networks for entry in network.unread_alone)
    return is_alone and any(re.search(entry, layer.name) for entry in unread_alone)


def _of_another_model(unknown: set[str], keys: Mapping[str, TensorEntry], matches: int) -> str:
    if not matches:
        looks = _looks(looks_made_for(keys))
        return f"none of its layers belongs to this model ({listed(unknown)}){looks}"
    # Several models share text encoders, so some keys of another model may match.
    looks = _looks(looks_made_for(keys)) if len(unknown) >= len(keys) / 4 else ""
    return f"keys that this model has no layer for: {listed(unknown)}{looks}"


def _looks(model: str | None) -> str:
    return "" if model is None else f"; it looks made for {model}"
