"""Embeddings (textual inversion): vectors that stand for a word of a prompt, one or more tokens.

Source: Gal et al. 2022, section 4. Keys are those of diffusers' advanced training script and
kohya's sd-scripts (`clip_l` with `clip_g` for SDXL or `t5` for Flux), OneTrainer's of embeddings in
an adapter's file, and ComfyUI's (`t5xxl`).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

import numpy as np

from models.adapters.files.adapter import AdapterError, AdapterSummary
from models.adapters.files.tensor_file import TensorEntry, TensorFile, opened

KEYS: Mapping[str, tuple[str, ...]] = {
    "clip": ("clip_l", "text_encoders_0"),
    "clip_2": ("clip_g", "text_encoders_1"),
    "t5": ("t5", "t5xxl"),
}
"""Keys of an encoder's vectors, by the encoder's name in a pipeline's weights."""
MAX_VECTORS = 75
"""Maximum vectors of an embedding: the tokens that CLIP reads without markers."""
BUNDLE = "bundle_emb."
"""Prefix of the keys of embeddings in an adapter's file, followed by the embedding's name."""
MAX_BUNDLED = 64
"""Maximum number of embeddings in an adapter's file that are used."""
_BUNDLED = re.compile(rf"{re.escape(BUNDLE)}(?P<name>.{{1,100}})\.[^.]+")
_SINGLE = re.compile(r"emb_params|string_to_param\.\*|<[^<>]+>")
"""Keys of embeddings with the vectors of a single encoder."""

Vectors = Mapping[str, np.ndarray]
"""Vectors of an embedding by encoder, float32 [vectors, hidden]."""


def is_embedding(keys: Collection[str]) -> bool:
    """Return whether a file with these keys is a textual inversion embedding."""
    listed = {key for names in KEYS.values() for key in names}
    return bool(keys) and all(key in listed or _SINGLE.fullmatch(key) for key in keys)


def inspect_embedding(file: TensorFile, hidden_sizes: Mapping[str, int]) -> AdapterSummary:
    """Validate an embedding's file completely.

    Args:
        hidden_sizes: hidden sizes of the encoders that read embeddings; empty: none does.

    Raises: AdapterError: made for another model, too many vectors, or non-finite values.
    """
    vectors = _read(file, hidden_sizes)
    missing = [KEYS[encoder][0] for encoder in hidden_sizes.keys() - vectors.keys()]
    warnings = [
        f"it has no vectors for {name}, which reads nothing in its place" for name in missing
    ]
    used = [entry.key for entry in _entries(file, hidden_sizes, "").values()]
    if unused := sorted(file.entries.keys() - used):
        warnings.append(f"keys without effect: {', '.join(unused)}")
    return AdapterSummary(
        0,
        tuple(sorted(vectors)),
        (),
        file.bytes,
        warnings=tuple(warnings),
        vectors=max(map(len, vectors.values())),
    )


def bundled_embeddings(file: TensorFile, hidden_sizes: Mapping[str, int]) -> dict[str, int]:
    """Return the number of vectors of each embedding in an adapter's file, by name.

    Embeddings that the model cannot read are left out.
    """
    matches = (_BUNDLED.fullmatch(key) for key in file.entries)
    counts = {}
    for name in sorted({match["name"] for match in matches if match})[:MAX_BUNDLED]:
        with suppress(AdapterError):
            vectors = _read(file, hidden_sizes, f"{BUNDLE}{name}.")
            counts[name] = max(map(len, vectors.values()))
    return counts


def read_embedding(path: Path, hidden_sizes: Mapping[str, int], name: str) -> Vectors:
    """Read an embedding from its own file, or from that of an adapter that contains it.

    Args:
        hidden_sizes: as in `inspect_embedding`.
        name: of the embedding in the adapter's file.

    Raises: AdapterError: as `inspect_embedding`.
    """
    with opened(path) as file:
        is_own = is_embedding(file.entries)
        return _read(file, hidden_sizes, "" if is_own else f"{BUNDLE}{name}.")


def _read(file: TensorFile, hidden_sizes: Mapping[str, int], prefix: str = "") -> Vectors:
    entries = _entries(file, hidden_sizes, prefix)
    return {
        encoder: file.stored(entry).float32().reshape(-1, hidden_sizes[encoder])
        for encoder, entry in entries.items()
    }


def _entries(
    file: TensorFile, hidden_sizes: Mapping[str, int], prefix: str
) -> dict[str, TensorEntry]:
    """Return an embedding's arrays by text encoder, with validated shapes. Raises: AdapterError."""
    if not hidden_sizes:
        raise AdapterError(
            "it is an embedding (textual inversion), which this model does not read; models of "
            "SDXL and Flux do"
        )
    entries = {
        encoder: file.entries[prefix + key]
        for encoder in hidden_sizes
        for key in KEYS[encoder]
        if prefix + key in file.entries
    }
    if not entries:
        _other_model(file.entries, hidden_sizes)
    for encoder, entry in entries.items():
        _check_shape(entry, hidden_sizes[encoder])
    return entries


def _check_shape(entry: TensorEntry, hidden: int) -> None:
    """Validate an embedding's array: float [vectors, hidden], or [hidden] for one vector."""
    shape = ", ".join(map(str, entry.shape))
    if not entry.is_float or len(entry.shape) not in (1, 2) or entry.shape[-1] != hidden:
        raise AdapterError(
            f"{entry.key} is {entry.dtype} [{shape}], and this model's encoder reads vectors of "
            f"{hidden} numbers: the embedding was made for another model"
        )
    if not 1 <= entry.size // hidden <= MAX_VECTORS:
        raise AdapterError(
            f"{entry.key} has {entry.size // hidden} vectors; an embedding has 1 to {MAX_VECTORS}"
        )


def _other_model(entries: Mapping[str, TensorEntry], encoders: Collection[str]) -> NoReturn:
    key, entry = next(iter(entries.items()))
    expected = " and ".join(KEYS[encoder][0] for encoder in encoders)
    raise AdapterError(
        f"it is an embedding of a single encoder ({key}, {entry.shape[-1] if entry.shape else 1} "
        f"numbers a vector), as for Stable Diffusion 1 and 2; this model reads {expected}"
    )
