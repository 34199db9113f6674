"""Keys of an adapter's file: parsed into a layer's name and the role of the array.

Source: diffusers, src/diffusers/loaders/lora_conversion_utils.py, for the meaning of each ending;
LyCORIS, lycoris/modules, for those of LoKr and LoHa, and docs/Algo-Details.md for the rejected
kinds; PEFT, src/peft/tuners/lora/dora.py, for DoRA.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from models.adapters.files.adapter import AdapterError
from models.adapters.files.name_table import NamedLayers, Names
from models.adapters.files.tensor_file import TensorEntry, shown

Kind = Literal[
    "down",
    "up",
    "mid",
    "alpha",
    "bias",
    "full",
    "magnitude",
    "output_magnitude",
    "lokr_w1",
    "lokr_w1_a",
    "lokr_w1_b",
    "lokr_w2",
    "lokr_w2_a",
    "lokr_w2_b",
    "lokr_t2",
    "hada_w1_a",
    "hada_w1_b",
    "hada_w2_a",
    "hada_w2_b",
    "hada_t1",
    "hada_t2",
]

_DOWN, _UP = (
    (".lora_A.weight", ".lora_down.weight", ".lora_A", ".lora_down"),
    (".lora_B.weight", ".lora_up.weight", ".lora_B", ".lora_up"),
)
_OLDER = (".lora.{}.weight", "_lora.{}.weight", ".lora_linear_layer.{}.weight", ".{}.weight")

ENDINGS: tuple[tuple[str, Kind], ...] = (
    *((ending, "down") for ending in (*_DOWN, *(older.format("down") for older in _OLDER))),
    *((ending, "up") for ending in (*_UP, *(older.format("up") for older in _OLDER))),
    (".alpha", "alpha"),
    (".lora_B.bias", "bias"),
    (".diff_b", "bias"),
    (".diff", "full"),
    (".lora_mid.weight", "mid"),
    (".dora_scale", "magnitude"),
    *((f".lora_magnitude_vector{ending}", "output_magnitude") for ending in ("", ".weight")),
    *((f".{part}", part) for part in get_args(Kind) if part.startswith(("lokr_", "hada_"))),
)
"""Endings of keys, and the roles of their arrays."""

REFUSED: tuple[tuple[str, str], ...] = (
    (".lora_embedding_", "LoRA of embeddings"),
    (".boft_", "BOFT"),
    (".oft_", "OFT"),
    (".ia3_", "IA3"),
    (".on_input", "IA3"),
    (".vera_lambda_", "VeRA"),
    (".a1.weight", "GLoRA"),
    (".w_norm", "LyCORIS with trained norms"),
    (".b_norm", "LyCORIS with trained norms"),
)
"""Parts of keys of unsupported adapter kinds, and the kinds' names."""

_ADAPTER_NAME = re.compile(
    r"(\.lora_(?:[AB]|magnitude_vector))\.[^.]+(?=\.(?:weight|bias)$)"
    r"|(\.(?:lokr|hada)_(?:w[12](?:_[ab])?|t[12]))\.[^.]+$"
)
"""Name that PEFT gives to an adapter, by default `default`, in the keys of a wrapped model."""
_WRAPPER = re.compile(
    r"(?:(?<=\.)|^)(?:_orig_mod|module|_fsdp_wrapped_module|_checkpoint_wrapped_module|base_layer"
    r"|default)\."
)
"""Parts of keys of modules inside `torch.compile`, data parallelism, checkpointing or PEFT."""

SHOWN = 5
"""Maximum number of keys in a message."""


@dataclass(frozen=True)
class LayerEntries:
    """Arrays of a file that belong to one layer name."""

    name: str
    goal: NamedLayers
    entries: Mapping[Kind, TensorEntry]


def check_kind(keys: Iterable[str]) -> None:
    """Reject kinds of adapter files that are not supported. Raises: AdapterError."""
    keys = list(keys)
    for part, kind in REFUSED:
        matches = [key for key in keys if part in key]
        if matches:
            raise AdapterError(
                f"{kind}: adapters of this kind are not served ({listed(matches)}); train or "
                "convert it as LoRA, LoKr, LoHa or DoRA"
            )


def by_layer(
    entries: Mapping[str, TensorEntry], names: Names
) -> tuple[list[LayerEntries], list[TensorEntry]]:
    """Group the arrays of an adapter's file by layer.

    Returns: layers; and arrays of unknown layers.

    Raises: AdapterError: two arrays have the same role in a layer.
    """
    goals: dict[str, NamedLayers] = {}
    parts: dict[str, dict[Kind, TensorEntry]] = defaultdict(dict)
    unmatched = []
    for key, entry in entries.items():
        name, kind, goal = _parted(key, names)
        if goal is None:
            unmatched.append(entry)
        elif kind in parts[name]:
            raise AdapterError(f"{listed([parts[name][kind].key, key])}: both are the same part")
        else:
            goals[name] = goal
            parts[name][kind] = entry
    return [LayerEntries(name, goal, parts[name]) for name, goal in goals.items()], unmatched


def _parted(key: str, names: Names) -> tuple[str, Kind, NamedLayers | None]:
    """Split a file's key into layer name and role of the array, with the layers of that name.

    The last is None if the model has no such layer.
    """
    for name, kind in (*_readings(key), *_readings(_unwrapped(key))):
        goal = names.find(name)
        if goal is None and ".processor" in name:
            name = name.replace(".processor", "")
            goal = names.find(name)
        if goal is not None:
            return name, kind, goal
    return key, "full", None


def _readings(key: str) -> Iterator[tuple[str, Kind]]:
    for ending, kind in ENDINGS:
        if key.endswith(ending):
            yield key.removesuffix(ending), kind


def _unwrapped(key: str) -> str:
    """Strip adapter names and wrappers from a file's key; return an empty text if it has none."""
    plain = _WRAPPER.sub("", _ADAPTER_NAME.sub(r"\1\2", key))
    return "" if plain == key else plain


def listed(keys: Iterable[str]) -> str:
    """Format the first of an adapter file's keys, in order, for messages."""
    ordered = sorted(keys)
    more = f" and {len(ordered) - SHOWN} more" if len(ordered) > SHOWN else ""
    return ", ".join(map(shown, ordered[:SHOWN])) + more
