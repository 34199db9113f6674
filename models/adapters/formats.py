"""Files of adapters → `Adapter`.

Read are the forms of PEFT and diffusers, kohya's sd-scripts and musubi-tuner, ComfyUI, ai-toolkit,
fal and XLabs. They differ in the names of layers (`layer_names`) and in what follows a name
(`ENDINGS`); numbers mean the same in all: y += alpha / rank · up(down(x)).

Source: diffusers, src/diffusers/loaders/lora_conversion_utils.py, for what each key means.
"""

from __future__ import annotations

import json
import math
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import safe_open

from models.adapters.adapter import Adapter, AdapterError, KernelShape, LowRank, Place
from models.adapters.layer_names import Named, Names
from models.checkpoint.folder import CheckpointError
from models.checkpoint.safetensors import DTYPES, read_header

DOWN, UP, ALPHA, BIAS, FULL = "down", "up", "alpha", "bias", "full"

ENDINGS: tuple[tuple[str, str], ...] = (
    (r"\.lora_A(?:\.default)?\.weight", DOWN),
    (r"\.lora_B(?:\.default)?\.weight", UP),
    (r"\.lora_B(?:\.default)?\.bias", BIAS),
    (r"(?:\.lora_|[._]lora\.|\.lora_linear_layer\.)down\.weight", DOWN),
    (r"(?:\.lora_|[._]lora\.|\.lora_linear_layer\.)up\.weight", UP),
    (r"(?<=_lora\d)\.down\.weight|(?<=_lora)\.down\.weight", DOWN),
    (r"(?<=_lora\d)\.up\.weight|(?<=_lora)\.up\.weight", UP),
    (r"\.alpha", ALPHA),
    (r"\.diff_b", BIAS),
    (r"\.diff", FULL),
)
"""Endings of keys, the first to match, and what they hold."""

REFUSED: tuple[tuple[str, str], ...] = (
    (r"\.dora_scale|\.lora_magnitude_vector(?:\..+)?", "DoRA"),
    (r"\.hada_[wt]\d(?:_[ab])?", "LoHa"),
    (r"\.lokr_[wt]\d(?:_[ab])?", "LoKr"),
    (r"\.lora_mid\.weight", "Tucker decompositions"),
    (r"\.lora_embedding_[AB](?:\..+)?", "adapters of embeddings"),
    (r"\.oft_.+|\.boft_.+", "OFT"),
)
"""Endings of keys of other kinds of adapters, by the names of those."""

METADATA = "lora_adapter_metadata"
"""Entry of a file's metadata with PEFT's config, as JSON."""

SHOWN = 5
"""Keys that a message names at the most, of many."""

Arrays = Mapping[str, np.ndarray]


def read(file: Path, names: Names) -> Adapter:
    """Read an adapter's file for the model that has these names.

    Raises: AdapterError: it is no safetensors file, of another kind of adapter, or for another
        model; or its numbers are not finite.
    """
    try:
        entries, _ = read_header(file)
    except CheckpointError as error:
        raise AdapterError(str(error)) from error
    kinds = {entry["dtype"] for entry in entries.values()} - DTYPES.keys()
    if kinds:
        raise AdapterError(f"{', '.join(sorted(kinds))}: weights of these types are not read")
    with safe_open(file, framework="numpy") as opened:
        metadata = opened.metadata() or {}
        arrays = {key: opened.get_tensor(key).astype(np.float32) for key in entries}
    return adapter_of(arrays, metadata, names)


def adapter_of(arrays: Arrays, metadata: Mapping[str, str], names: Names) -> Adapter:
    """Return the adapter of a file's arrays. Raises: AdapterError."""
    _check_kind(arrays)
    parts, strangers = _by_layer(arrays, names)
    ignored = tuple(key for key in strangers if _has_no_effect(key, arrays[key]))
    unknown = sorted(set(strangers) - set(ignored))
    if unknown:
        raise AdapterError(_wrong_base(unknown, len(parts)))
    if not parts:
        raise AdapterError("it has no low-rank layers at all")
    broken = [key for key, array in arrays.items() if not np.isfinite(array).all()]
    if broken:
        raise AdapterError(f"NaN or infinity in {_some(broken)}")
    alphas = _Alphas(metadata, has_keys=any(ALPHA in one for one in parts.values()))
    networks: dict[str, dict[Place, LowRank]] = defaultdict(dict)
    for name, own in parts.items():
        goal = names[name]
        for place, change in _changes(name, own, goal, alphas):
            if place in networks[goal.network]:
                raise AdapterError(f"{name}: this layer is in the file twice, by two names")
            networks[goal.network][place] = change
    return Adapter(dict(networks), ignored)


def _check_kind(arrays: Arrays) -> None:
    for ending, kind in REFUSED:
        keys = [key for key in arrays if re.search(rf"(?:{ending})$", key)]
        if keys:
            raise AdapterError(f"{kind}: this kind of adapter is not served ({_some(keys)})")


def _by_layer(arrays: Arrays, names: Names) -> tuple[dict[str, dict[str, np.ndarray]], list[str]]:
    """Sort arrays by a layer's name and by what they hold; and list the keys of no layer."""
    parts: dict[str, dict[str, np.ndarray]] = defaultdict(dict)
    strangers = []
    for key, array in arrays.items():
        name, kind = _parted(key, names)
        if name is None:
            strangers.append(key)
        else:
            parts[name][kind] = array
    return dict(parts), strangers


def _parted(key: str, names: Names) -> tuple[str | None, str]:
    """Split a key into a known layer's name and what it holds; None: no layer has that name."""
    for ending, kind in ENDINGS:
        match = re.search(rf"(?:{ending})$", key)
        if match and (name := key[: match.start()].replace(".processor", "")) in names:
            return name, kind
        if match and key[: match.start()] in names:
            return key[: match.start()], kind
    return None, ""


def _has_no_effect(key: str, array: np.ndarray) -> bool:
    """Return whether a key of no layer may be passed over.

    Because it is zero, or changes a norm, which diffusers leaves as it is.
    """
    is_norm = "norm" in key and re.search(r"\.diff(?:_b)?$", key) is not None
    return is_norm or not array.any()


def _changes(
    name: str, own: Mapping[str, np.ndarray], goal: Named, alphas: _Alphas
) -> Iterator[tuple[Place, LowRank]]:
    """Yield the change of each of the layers that a name stands for."""
    down, up, bias = _low_rank(name, own, goal)
    if up.shape[1] != down.shape[0]:
        raise AdapterError(f"{name}: down has rank {down.shape[0]}, up has rank {up.shape[1]}")
    _check_sizes(name, down, up, bias, goal)
    scale = np.float32(alphas.scale(name, own.get(ALPHA), max(1, up.shape[1])))
    bias = None if bias is None else bias * np.float32(alphas.of_bias(name))
    up = up * scale
    if goal.is_swapped:
        up, bias = _swapped(up), None if bias is None else _swapped(bias)
    first = 0
    for place, size in goal.layers.items():
        rows = slice(first, first + size.out_features)
        first = rows.stop
        used = up[rows].any(axis=0) if len(goal.layers) > 1 else slice(None)
        own_bias = None if bias is None else bias[rows]
        yield place, LowRank(down[used], np.ascontiguousarray(up[rows][:, used]), own_bias)


def _low_rank(
    name: str, own: Mapping[str, np.ndarray], goal: Named
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Return down, up and bias of a layer, which may have a whole matrix instead of the first two.

    A matrix is its own `down`, with the identity for `up`; of a bias alone both are of rank 0.
    """
    bias = own.get(BIAS)
    if FULL in own:
        if DOWN in own or UP in own:
            raise AdapterError(f"{name}: both low-rank matrices and a whole one")
        return own[FULL], np.eye(len(own[FULL]), dtype=np.float32), bias
    if (DOWN in own) != (UP in own):
        raise AdapterError(f"{name}: one of the two low-rank matrices is missing")
    if DOWN in own:
        return _linear(own[DOWN]), _linear(own[UP]), bias
    if bias is None:
        raise AdapterError(f"{name}: an alpha without low-rank matrices")
    size = next(iter(goal.layers.values()))
    nothing = np.zeros((0, size.in_features, *size.window), np.float32)
    return nothing, np.zeros((len(bias), 0), np.float32), bias


def _linear(array: np.ndarray) -> np.ndarray:
    """A matrix that was stored as a convolution of 1 x 1."""
    return array.reshape(array.shape[:2]) if set(array.shape[2:]) <= {1} else array


def _check_sizes(
    name: str, down: np.ndarray, up: np.ndarray, bias: np.ndarray | None, goal: Named
) -> None:
    """Raises: AdapterError: the layer has other sizes in this model."""
    sizes = [*goal.layers.values()]
    expected = KernelShape(
        sizes[0].in_features, sum(size.out_features for size in sizes), sizes[0].window
    )
    found = KernelShape(down.shape[1], up.shape[0], down.shape[2:])
    if found != expected or (bias is not None and bias.shape != (expected.out_features,)):
        raise AdapterError(
            f"{name} is a layer from {found.in_features} to {found.out_features} features there, "
            f"and from {expected.in_features} to {expected.out_features} in this model: the "
            "adapter was made for another base"
        )


def _swapped(array: np.ndarray) -> np.ndarray:
    """Return an array with the halves of its first axis the other way round."""
    return np.concatenate(np.split(array, 2)[::-1])


class _Alphas:
    """Factors of low-rank products: by keys of the file, or by PEFT's config in its metadata."""

    def __init__(self, metadata: Mapping[str, str], has_keys: bool) -> None:
        self._config: dict[str, Any] = json.loads(metadata.get(METADATA, "{}"))
        if self._config and has_keys:
            raise AdapterError("it has an alpha in its metadata and others in keys")

    def scale(self, name: str, alpha: np.ndarray | None, rank: int) -> float:
        """Return alpha over rank; 1 where nothing is said."""
        if alpha is not None:
            return float(alpha.reshape(())) / rank
        if not self._config:
            return 1.0
        chosen = self._pattern(name, "alpha_pattern", self._of(name, "lora_alpha", rank))
        root = self._of(name, "use_rslora", False)
        return float(chosen) / (math.sqrt(rank) if root else rank)

    def of_bias(self, name: str) -> float:
        """Return the factor of a bias: PEFT's is multiplied as the matrices are."""
        return 1.0 if not self._config else self.scale(name, None, self._rank(name))

    def _rank(self, name: str) -> int:
        return int(self._pattern(name, "rank_pattern", self._of(name, "r", 1)))

    def _of(self, name: str, key: str, default: Any) -> Any:
        """Return an entry of the network that a layer belongs to, whose name is a prefix there."""
        return self._config.get(f"{name.partition('.')[0]}.{key}", self._config.get(key, default))

    def _pattern(self, name: str, key: str, default: Any) -> Any:
        """Return the entry of the first pattern that ends a layer's name."""
        for pattern, value in (self._of(name, key, None) or {}).items():
            if re.fullmatch(rf"(?:.*\.)?(?:{pattern})", name):
                return value
        return default


def _wrong_base(unknown: list[str], known: int) -> str:
    if not known:
        return f"none of its layers is one of this model's: made for another ({_some(unknown)})"
    return f"keys that this model has no layer for: {_some(unknown)}"


def _some(keys: list[str]) -> str:
    more = f" and {len(keys) - SHOWN} more" if len(keys) > SHOWN else ""
    return ", ".join(keys[:SHOWN]) + more
