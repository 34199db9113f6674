"""Scaling factors of low-rank products, from the file's keys or PEFT's config in its metadata.

Source: Hu et al. 2021 (LoRA), section 4.1, alpha / rank; Kalajdzievski 2023 (rsLoRA), eq. 5, alpha
/ √rank; PEFT, src/peft/utils/other.py (get_pattern_key), for patterns of layers.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from models.adapters.files.adapter import AdapterError
from models.adapters.files.key_endings import LayerEntries
from models.adapters.files.tensor_file import TensorEntry, TensorFile, json_fault, shown
from models.spec.lora import MAX_RANK

METADATA = "lora_adapter_metadata"
"""Metadata entry with PEFT's config, as JSON."""
MAX_SCALE = 2**16
"""Maximum alpha / rank; usual values are around 1."""
MAX_ALPHA = MAX_SCALE * MAX_RANK
_PATTERN = re.compile(r"\^?([\w.-]+)\$?")
"""Supported patterns: plain names. Arbitrary expressions could take exponential time."""


class Alphas:
    """Scaling factors of a file's layers.

    A layer may have its alpha in a key and in the metadata, if both are equal.

    Raises: AdapterError: invalid metadata.
    """

    def __init__(self, file: TensorFile) -> None:
        self._file = file
        self._config = _config(file.metadata)
        for key, value in self._config.items():
            if key.rpartition(".")[2] == "alora_invocation_tokens" and value:
                raise AdapterError(f"{shown(key)}: adapters of this kind are not served")

    def of(self, layer: LayerEntries, rank: int) -> float:
        """Return alpha / rank of a layer; 1 if unspecified. Raises: AdapterError."""
        entry = layer.entries.get("alpha")
        alpha = self._configured(layer.name, rank) if entry is None else self._read(entry)
        if entry is not None and self._has_network(layer.name) and rank:
            self._check_equal(layer.name, alpha, self._configured(layer.name, rank))
        scale = alpha / rank if rank else 1.0
        if not abs(scale) <= MAX_SCALE:  # also rejects NaN
            raise AdapterError(f"{shown(layer.name)}: an alpha of {alpha:g} at rank {rank}")
        return float(np.float32(scale))

    def of_bias(self, layer: LayerEntries, rank: int) -> float:
        """Return the factor of a layer's bias: PEFT scales it like the matrices.

        An alpha among the keys does not affect the bias, as in diffusers.
        """
        return self.of(layer, rank) if self._config and rank else 1.0

    def _read(self, entry: TensorEntry) -> float:
        if entry.size != 1:
            raise AdapterError(f"{shown(entry.key)} is no single number: its shape {entry.shape}")
        return float(self._file.stored(entry).float32().reshape(()))

    def _configured(self, name: str, rank: int) -> float:
        """Return the alpha from the metadata; for rsLoRA, multiplied by √rank."""
        network, _, module = name.partition(".")
        if not self._has_network(name):
            return float(rank)
        default = self._config.get(f"{network}.lora_alpha", rank)
        alpha = self._matched(f"{network}.alpha_pattern", module, default)
        is_number = isinstance(alpha, int | float) and not isinstance(alpha, bool)
        if not is_number or not abs(alpha) <= MAX_ALPHA:  # also rejects NaN
            raise AdapterError(f"{METADATA}: the alpha of {shown(name)} is no useful number")
        is_rooted = self._config.get(f"{network}.use_rslora", False) is True
        return float(alpha) * (math.sqrt(rank) if is_rooted else 1.0)

    def _has_network(self, name: str) -> bool:
        """Return whether the metadata describe the network of a layer."""
        network = name.partition(".")[0]
        return any(key.startswith(f"{network}.") for key in self._config)

    def _check_equal(self, name: str, alpha: float, configured: float) -> None:
        if not math.isclose(alpha, configured, rel_tol=1e-3):  # float16 has 11 bits
            raise AdapterError(
                f"{shown(name)}: an alpha of {alpha:g} in a key and of {configured:g} in its "
                "metadata: keep one kind"
            )

    def _matched(self, key: str, module: str, default: Any) -> Any:
        """Return the value of the first pattern that equals a layer's name or its ending."""
        patterns = self._config.get(key) or {}
        if not isinstance(patterns, dict):
            raise AdapterError(f"{METADATA}: {key} is no object")
        for pattern, value in patterns.items():
            if (match := _PATTERN.fullmatch(pattern)) is None:
                raise AdapterError(f"{METADATA}: {key} has {shown(pattern)}, which is no name")
            is_whole = pattern.startswith("^")
            if module == match[1] or (not is_whole and module.endswith(f".{match[1]}")):
                return value
        return default


def _config(metadata: Mapping[str, str]) -> dict[str, Any]:
    try:
        config = json.loads(metadata.get(METADATA, "{}"))
    except (ValueError, RecursionError) as error:
        fault = json_fault(error)
        raise AdapterError(f"{METADATA} in its metadata is no JSON ({fault})") from error
    if not isinstance(config, dict):
        raise AdapterError(f"{METADATA} in its metadata is no object")
    return config
