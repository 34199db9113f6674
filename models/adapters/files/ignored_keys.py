"""Keys of an adapter's file that are skipped, since they do not change the image.

Source: diffusers, src/diffusers/loaders/lora_conversion_utils.py, for keys that it ignores, and for
fused layers next to the same layers one by one; ComfyUI, comfy/model_detection.py, for markers;
OneTrainer, modules/modelSaver, for bundled embeddings.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Literal

import numpy as np

from models.adapters.files.adapter import AdapterError, LayerChange, LayerPosition, LowRank
from models.adapters.files.alphas import Alphas
from models.adapters.files.key_endings import LayerEntries, listed
from models.adapters.files.layer_changes import changes_of
from models.adapters.files.name_table import Names
from models.adapters.files.tensor_file import TensorEntry, TensorFile

Reason = Literal["unread", "absent", "twice", "embedding"]
REASONS: Mapping[Reason, str] = {
    "unread": "keys without effect",
    "absent": "layers that this model does not have",
    "twice": "layers that the file has by another name, too",
    "embedding": "bundled embeddings, which are not used",
}
"""Reason why keys are skipped, for people."""

Ignored = dict[str, Reason]
"""Reason by key."""

MAX_PARTS = 32
"""Maximum number of parts of a layer's name, to bound the time that a long key takes."""
_MARKER = re.compile(r"(?:.*\.)?__\w+__")
_EMBEDDING = re.compile(r"bundle_emb\..+")
_BUFFERS = re.compile(r".+\.(?:combined_)?(?:weight|grad)_norms")
"""Norms that kohya's GGPO saves for its training."""
_ENCODERS = re.compile(
    r"text_encoders\.t5xxl\..+|lora_te3_.+|.*position_(?:embedding|ids).*"
    r"|lora_te2_encoder_block_.+|text_encoder_2\.encoder\.block\..+"
)
"""Layers of text encoders that diffusers ignores for Flux: T5 has several names, by trainer."""


def warnings_of(ignored: Ignored) -> Iterator[str]:
    """Yield a warning for each reason for which parts of an adapter's file are ignored."""
    for reason, text in REASONS.items():
        if keys := [key for key, other in ignored.items() if other == reason]:
            yield f"{text}: {listed(keys)}"


def reason_of(entry: TensorEntry, file: TensorFile, names: Names) -> Reason | None:
    """Return why an array that belongs to no layer is ignored; None: it is used elsewhere."""
    if _EMBEDDING.fullmatch(entry.key):
        return "embedding"
    is_weight = entry.size > 1 and entry.is_float
    is_count = entry.size <= 1 and not entry.is_float
    if is_count or (not is_weight and not _is_of_layer(entry.key, names)):  # a step, a rank
        return "unread"
    if any(pattern.fullmatch(entry.key) for pattern in (_MARKER, _BUFFERS, _ENCODERS)):
        return "unread"
    if re.search(r"\.diff(?:_[bm])?$", entry.key):
        unread = (pattern for network in names.networks for pattern in network.unread)
        if any(re.search(pattern, entry.key) for pattern in unread):
            return "unread"
    return "unread" if file.is_zero(entry) else None


def _is_of_layer(key: str, names: Names) -> bool:
    """Return whether a key of an adapter's file begins with the name of a layer."""
    parts = key.split(".", MAX_PARTS)
    return any(names.find(".".join(parts[:count])) for count in range(1, len(parts)))


def reason_of_layer(layer: LayerEntries, names: Names) -> Reason | None:
    """Return why a layer of an adapter's file is ignored; None: it is not."""
    if not layer.goal.layers:
        return "absent"
    if not any(entry.size for entry in layer.entries.values()):
        return "unread"
    networks = [entry for entry in names.networks if entry.network == layer.goal.network]
    is_alone = layer.entries.keys() == {"bias"}
    if any(re.search(entry, layer.name) for network in networks for entry in network.unread):
        return "unread" if layer.entries.keys() <= {"bias", "full"} else None
    unread_alone = (entry for network in networks for entry in network.unread_alone)
    is_unread = is_alone and any(re.search(entry, layer.name) for entry in unread_alone)
    return "unread" if is_unread else None


def without_duplicates(
    layers: list[LayerEntries], file: TensorFile, alphas: Alphas
) -> tuple[list[LayerEntries], Ignored]:
    """Return an adapter's layers without those that the file repeats by other names.

    A fused layer gives way to the layers that it fuses.

    Raises: AdapterError: a layer has two names, with different contents.
    """
    chosen: dict[tuple[str, LayerPosition], LayerEntries] = {}
    ignored: Ignored = {}
    for layer in sorted(layers, key=lambda layer: len(layer.goal.layers)):
        places = [(layer.goal.network, place) for place in layer.goal.layers]
        others = {chosen[place].name: chosen[place] for place in places if place in chosen}
        if not others:
            chosen |= dict.fromkeys(places, layer)
        elif _is_covered(layer, [*others.values()], file, alphas):
            ignored |= dict.fromkeys([entry.key for entry in layer.entries.values()], "twice")
        else:
            names = listed([layer.name, *others])
            raise AdapterError(f"{names}: the same layer by two names; keep one of them")
    kept = {id(layer) for layer in chosen.values()}
    return [layer for layer in layers if id(layer) in kept], ignored


def _is_covered(
    layer: LayerEntries, others: list[LayerEntries], file: TensorFile, alphas: Alphas
) -> bool:
    """Return whether the layers of other names contain all changes of this name's layers."""
    changes = dict(item for other in others for item in changes_of(other, file, alphas))
    return all(
        place in changes and _is_equal(change, changes[place])
        for place, change in changes_of(layer, file, alphas)
    )


def _is_equal(change: LayerChange, other: LayerChange) -> bool:
    """Return whether low-rank changes have equal numbers; others are never equal."""
    if not (isinstance(change, LowRank) and isinstance(other, LowRank)):
        return False
    biases = [item.bias_scale * item.bias.float32() for item in (change, other) if item.bias]
    return (
        np.array_equal(change.down.float32(), other.down.float32())
        and np.array_equal(change.up.float32() * change.scale, other.up.float32() * other.scale)
        and (not biases or (len(biases) == 2 and np.array_equal(biases[0], biases[1])))
        and change.magnitude is other.magnitude is None
    )
