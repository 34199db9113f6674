"""Reader of adapter files, which converts all supported formats to `Adapter`.

Supported are the formats of PEFT and diffusers, kohya's sd-scripts and musubi-tuner, LyCORIS,
OneTrainer, ComfyUI, ai-toolkit, fal and XLabs. They differ in layer names (`names`) and key endings
(`key_endings`). The values have the same meaning in all formats: y += alpha / rank · up(down(x)).

Source: diffusers, src/diffusers/loaders/lora_conversion_utils.py, for the meaning of each key.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from models.adapters.files.adapter import (
    Adapter,
    AdapterError,
    AdapterSummary,
    LayerChange,
    LayerPosition,
)
from models.adapters.files.alphas import Alphas
from models.adapters.files.base_models import looks_made_for, other_kind_of
from models.adapters.files.embedding import (
    BUNDLE,
    bundled_embeddings,
    inspect_embedding,
    is_embedding,
)
from models.adapters.files.ignored_keys import (
    Ignored,
    reason_of,
    reason_of_layer,
    warnings_of,
    without_duplicates,
)
from models.adapters.files.key_endings import LayerEntries, by_layer, check_kind, listed
from models.adapters.files.layer_changes import OTHER_BASE, changes_of, check_sizes, check_width
from models.adapters.files.name_table import Names
from models.adapters.files.reduction import Loss, low_rank
from models.adapters.files.tensor_file import TensorEntry, TensorFile, opened
from models.spec.lora import PAGE_RANK, Expert

MEASURED = 2e11
"""Approximate number of operations for measuring what a reduction leaves out."""


def inspect(
    path: Path, names: Names, expert: Expert | None = None, max_rank: int | None = None
) -> AdapterSummary:
    """Validate the file of an adapter or embedding completely, one layer in memory at a time.

    Args:
        names: of the model's layers.
        expert: of Wan 2.2, that the file is for; None: high noise, as in diffusers.
        max_rank: that a bank has for the adapter, to which it is reduced; None: any.

    Raises: AdapterError: as `read`.
    """
    with opened(path) as file:
        if is_embedding(file.entries):
            return inspect_embedding(file, names.hidden_sizes)
        content = _content(file, names.of(expert))
        ranks, networks, has_magnitudes = [], set(), False
        for layer in content.layers:
            changes = [change for _, change in content.changes(layer)]
            ranks.append(max(change.rank for change in changes))
            networks.add(layer.goal.network)
            has_magnitudes |= any(change.magnitude is not None for change in changes)
        embeddings = bundled_embeddings(file, names.hidden_sizes)
        rank, warnings = max(ranks), [*warnings_of(_unused(content.ignored, embeddings))]
        limit = _limit(max_rank, has_magnitudes)
        if limit is not None and rank > limit:
            warnings.append(_reduction(content, ranks, limit))
        return AdapterSummary(
            rank if limit is None else min(rank, limit),
            tuple(sorted(networks)),
            tuple(content.ignored),
            file.bytes,
            has_magnitudes,
            limit is not None and rank > limit,
            tuple(warnings),
            embeddings=embeddings,
        )


def _unused(ignored: Ignored, embeddings: Collection[str]) -> Ignored:
    """Return the ignored keys of an adapter's file, without those of embeddings in use."""
    used = tuple(f"{BUNDLE}{name}." for name in embeddings)
    return {key: reason for key, reason in ignored.items() if not key.startswith(used)}


def read(path: Path, names: Names, expert: Expert | None = None) -> Adapter:
    """Read an adapter's file; arguments as in `inspect`.

    Raises: AdapterError: not a safetensors file, an unsupported kind of adapter, made for another
        model, or non-finite values. Names the keys and the remedy.
    """
    networks: dict[str, dict[LayerPosition, LayerChange]] = defaultdict(dict)
    with opened(path) as file:
        if is_embedding(file.entries):
            raise AdapterError("it is an embedding (textual inversion), not an adapter")
        content = _content(file, names.of(expert))
        for layer in content.layers:
            networks[layer.goal.network] |= dict(content.changes(layer))
    return Adapter(dict(networks), tuple(content.ignored))


@dataclass(frozen=True)
class _Content:
    """Validated layers of an adapter's file, whose arrays have not been read yet."""

    file: TensorFile
    alphas: Alphas
    layers: list[LayerEntries]
    ignored: Ignored

    def changes(self, layer: LayerEntries) -> Iterator[tuple[LayerPosition, LayerChange]]:
        """Read the changes of all layers that a name in an adapter's file stands for."""
        return changes_of(layer, self.file, self.alphas)


def _content(file: TensorFile, names: Names) -> _Content:
    """Validate an adapter file's header, and layers with two names. Raises: AdapterError."""
    check_kind(file.entries)
    layers, unmatched = by_layer(file.entries, names)
    for layer in layers:
        if layer.goal.layers:
            check_width(layer)
    ignored: Ignored = {}
    for entry in unmatched:
        if reason := reason_of(entry, file, names):
            ignored[entry.key] = reason
    unknown = {entry.key for entry in unmatched} - ignored.keys()
    if unknown:
        raise AdapterError(_of_another_model(unknown, file.entries, len(layers)))
    used = []
    for layer in layers:
        if reason := reason_of_layer(layer, names):
            ignored |= dict.fromkeys([entry.key for entry in layer.entries.values()], reason)
        else:
            _check_sizes(layer, file.entries)
            used.append(layer)
    if not used:
        raise AdapterError("it has no low-rank layers at all: this is no adapter")
    alphas = Alphas(file)
    used, twice = without_duplicates(used, file, alphas)
    return _Content(file, alphas, used, ignored | twice)


def _check_sizes(layer: LayerEntries, keys: Mapping[str, TensorEntry]) -> None:
    try:
        check_sizes(layer)
    except AdapterError as error:
        model = looks_made_for(keys) if OTHER_BASE in str(error) else None
        raise AdapterError(f"{error}{_looks(model)}") from None


def _limit(max_rank: int | None, has_magnitudes: bool) -> int | None:
    """Return the rank for matrices without the page of DoRA magnitudes. Raises: AdapterError."""
    if max_rank is None or not has_magnitudes:
        return max_rank
    if max_rank <= PAGE_RANK:
        raise AdapterError(
            f"DoRA takes a page of {PAGE_RANK} ranks in addition to its own, and {max_rank} are "
            "allowed; raise lora_pages of the model, or limits.max_lora_rank"
        )
    return max_rank - PAGE_RANK


def _reduction(content: _Content, ranks: list[int], limit: int) -> str:
    """Describe the reduction of an adapter's rank in a sentence, with the error of some layers."""
    layers = [layer for layer, rank in zip(content.layers, ranks, strict=True) if rank > limit]
    shapes = [shape for layer in layers for shape in layer.goal.layers.values()]
    numbers = sum(
        shape.in_features * shape.out_features * math.prod(shape.window) for shape in shapes
    )
    work = 12 * numbers * limit  # products of the matrices with `limit` vectors, back and forth
    chosen = layers[:: math.ceil(work / MEASURED)]
    loss = Loss()
    for layer in chosen:
        for _, change in content.changes(layer):
            loss = loss.plus(low_rank(change, limit)[1])
    return (
        f"its rank of {max(ranks)} is reduced to {limit}, with an error of {loss.error:.1%} of its "
        f"changes (measured in {len(chosen)} of {len(layers)} layers); fused into the weights "
        "(fuse = true), it is exact"
    )


def _of_another_model(unknown: set[str], keys: Mapping[str, TensorEntry], matches: int) -> str:
    if not matches and (kind := other_kind_of(keys)):
        return f"it looks like {kind} ({listed(unknown)})"
    if not matches:
        looks = _looks(looks_made_for(keys))
        return f"none of its layers belongs to this model ({listed(unknown)}){looks}"
    # Several models share text encoders, so some keys of another model may match.
    looks = _looks(looks_made_for(keys)) if len(unknown) >= len(keys) / 4 else ""
    return f"keys that this model has no layer for: {listed(unknown)}{looks}"


def _looks(model: str | None) -> str:
    return "" if model is None else f"; it looks made for {model}"
