"""Scaling factors of low-rank products, from the file's keys or PEFT's config.

PEFT's config is in the file's metadata, by network as diffusers saves it, or without networks; or
in a file of PEFT's folder.

Source: Hu et al. 2021 (LoRA), section 4.1, alpha / rank; Kalajdzievski 2023 (rsLoRA), eq. 5, alpha
/ √rank; PEFT, src/peft/utils/other.py (get_pattern_key), for patterns of layers.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any

import numpy as np

from models.adapters.files.adapter import AdapterError
from models.adapters.files.key_endings import LayerEntries
from models.adapters.files.peft_folder import METADATA, folder_config
from models.adapters.files.tensor_file import TensorEntry, TensorFile, json_fault, shown
from models.spec.file_kinds import PEFT_CONFIG
from models.spec.lora import MAX_RANK

CHANGES_BASE = ("pissa", "olora", "corda")
"""Beginnings of PEFT's initializations that also change the base model's weights."""
WRAPPED = "base_model.model."
"""Prefix of a layer's name in PEFT's files, which patterns do not have."""
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
        self._source, self._config = _config(file)
        self._has_networks = all("." in key for key in self._config)
        for key, value in self._config.items():
            self._check_kind(key.rpartition(".")[2], value)

    def _check_kind(self, key: str, value: Any) -> None:
        if key == "alora_invocation_tokens" and value:
            raise AdapterError(f"{self._source}: {key}: adapters of this kind are not served")
        if key == "init_lora_weights" and str(value).lower().startswith(CHANGES_BASE):
            raise AdapterError(
                f"{self._source}: {key} {shown(str(value))} changes the base model, too; save it "
                "as LoRA with path_initial_model_for_weight_conversion of PEFT's save_pretrained"
            )

    def of(self, layer: LayerEntries, rank: int) -> float:
        """Return alpha / rank of a layer; 1 if unspecified. Raises: AdapterError."""
        entry = layer.entries.get("alpha")
        if entry is None and not rank and any(kind.startswith("lokr_") for kind in layer.entries):
            rank = self._configured_rank(layer.name)
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
            raise AdapterError(
                f"{shown(entry.key)} is not a single number: its shape {entry.shape}"
            )
        return float(self._file.stored(entry).float32().reshape(()))

    def _configured(self, name: str, rank: int) -> float:
        """Return the alpha from PEFT's config; for rsLoRA, multiplied by √rank."""
        if not self._has_network(name):
            return float(rank)
        default = self._setting(name, "lora_alpha", self._setting(name, "alpha", rank))
        alpha = self._matched(name, "alpha_pattern", default)
        is_number = isinstance(alpha, int | float) and not isinstance(alpha, bool)
        if not is_number or not abs(alpha) <= MAX_ALPHA:  # also rejects NaN
            raise AdapterError(f"{self._source}: the alpha of {shown(name)} is not a usable number")
        is_rooted = self._setting(name, "use_rslora", False) is True
        return float(alpha) * (math.sqrt(rank) if is_rooted else 1.0)

    def _configured_rank(self, name: str) -> int:
        """Return the rank that PEFT divides the alpha of LoKr with whole factors by; 0: none."""
        rank = self._matched(name, "rank_pattern", self._setting(name, "r", 0))
        return rank if type(rank) is int and 0 < rank <= MAX_ALPHA else 0

    def _setting(self, name: str, key: str, default: Any) -> Any:
        """Return a value of PEFT's config for a layer's network."""
        network = f"{name.partition('.')[0]}." if self._has_networks else ""
        return self._config.get(f"{network}{key}", default)

    def _has_network(self, name: str) -> bool:
        """Return whether PEFT's config describes the network of a layer."""
        network = name.partition(".")[0]
        return not self._has_networks or any(key.startswith(f"{network}.") for key in self._config)

    def _check_equal(self, name: str, alpha: float, configured: float) -> None:
        if not math.isclose(alpha, configured, rel_tol=1e-3):  # float16 has 11 bits
            raise AdapterError(
                f"{shown(name)}: an alpha of {alpha:g} in a key and of {configured:g} in "
                f"{self._source}: keep one kind"
            )

    def _matched(self, name: str, key: str, default: Any) -> Any:
        """Return the value of the first pattern that equals a layer's name or its ending."""
        patterns = self._setting(name, key, None) or {}
        if not isinstance(patterns, dict):
            raise AdapterError(f"{self._source}: {key} is not an object")
        module = name.partition(".")[2] if self._has_networks else name.removeprefix(WRAPPED)
        for pattern, value in patterns.items():
            if (match := _PATTERN.fullmatch(pattern)) is None:
                raise AdapterError(f"{self._source}: {key} has {shown(pattern)}, which is no name")
            is_whole = pattern.startswith("^")
            if module == match[1] or (not is_whole and module.endswith(f".{match[1]}")):
                return value
        return default


def _config(file: TensorFile) -> tuple[str, dict[str, Any]]:
    """Return the source of PEFT's config, for messages, and the config."""
    source, text = f"{METADATA} in its metadata", file.metadata.get(METADATA, "").encode()
    if not text:
        source, text = PEFT_CONFIG, folder_config(file.path)
    try:
        config = json.loads(text or "{}")
    except (ValueError, RecursionError) as error:
        raise AdapterError(f"{source} is not JSON ({json_fault(error)})") from error
    if not isinstance(config, dict):
        raise AdapterError(f"{source} is not an object")
    return source, config
