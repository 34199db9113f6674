"""Conversion of a file's arrays for one name to the changes of its layers.

Source: ComfyUI, comfy/weight_adapter, for LoKr, LoHa, Tucker decompositions and DoRA: which parts
alpha scales, and the axis of `dora_scale`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from models.adapters.files.adapter import (
    AdapterError,
    Composed,
    Factor,
    Hadamard,
    KernelShape,
    Kronecker,
    LayerChange,
    LayerPosition,
    LowRank,
    Magnitude,
    StoredArray,
)
from models.adapters.files.alphas import Alphas
from models.adapters.files.key_endings import Kind, LayerEntries
from models.adapters.files.tensor_file import TensorEntry, TensorFile, shown, unread_type

OTHER_BASE = "the adapter was made for another base model"
MIN_LIMIT = 1024
"""Rank that any layer may have, however small: it takes little memory."""
FIRST_ROWS = 64
"""Rows of a fused layer that usually suffice to detect its used ranks."""
LOW_RANK, WHOLE, LOKR, LOHA = "low-rank matrices", "a whole one", "LoKr", "LoHa"
FORMS: Mapping[str, tuple[Kind, ...]] = {
    LOW_RANK: ("down", "up", "mid"),
    WHOLE: ("full",),
    LOKR: ("lokr_w1", "lokr_w1_a", "lokr_w1_b", "lokr_w2", "lokr_w2_a", "lokr_w2_b", "lokr_t2"),
    LOHA: ("hada_w1_a", "hada_w1_b", "hada_t1", "hada_w2_a", "hada_w2_b", "hada_t2"),
}
"""Roles of the arrays of each form of a change."""
REQUIRED = {
    LOKR: "lokr_w1, or lokr_w1_a and lokr_w1_b; and the same of lokr_w2, with lokr_t2 or without",
    LOHA: "hada_w1_a, hada_w1_b, hada_w2_a and hada_w2_b; and both of hada_t1 and hada_t2, or none",
}

Entries = tuple[TensorEntry, ...]
"""Arrays of a factor, as in `Factor`, not read yet."""


@dataclass(frozen=True)
class _Sizes:
    """Sizes of a layer's change, from the file's header.

    Without a window, `columns` may include one.
    """

    rows: int
    columns: int
    window: tuple[int, ...]
    rank: int
    """Upper bound of the rank."""


def check_width(layer: LayerEntries) -> None:
    """Reject an adapter file that widens a model's input.

    Such a file defines another checkpoint, with additional keys that adapters do not have.

    Raises: AdapterError: the file widens the input.
    """
    down, inputs = layer.entries.get("down"), _expected(layer).in_features
    if layer.goal.narrow is None or down is None or len(down.shape) < 2 or down.shape[1] <= inputs:
        return
    raise AdapterError(
        f"{shown(layer.name)} reads {down.shape[1]} channels there and {inputs} in this model: the "
        "file widens the model's input, which no adapter may; serve the checkpoint that it makes"
    )


def check_sizes(layer: LayerEntries) -> None:
    """Validate a layer from the file's header alone, before reading its arrays.

    Raises: AdapterError: parts are missing, redundant or misshapen; or the rank is too high.
    """
    form = _checked_form(layer)
    expected, name = _expected(layer), shown(layer.name)
    if form is not None:
        sizes = _sizes(layer, form)
        if not _fits(sizes, expected) and not _is_narrow(layer, sizes):
            raise AdapterError(
                f"{name} is a layer {_described(sizes)} there and "
                f"{_described(_sizes_of(expected))} in this model: {OTHER_BASE}"
            )
        if form == LOW_RANK:
            _check_rank(name, sizes, has_core="mid" in layer.entries)
    bias = layer.entries.get("bias")
    if bias is not None and bias.shape != (expected.out_features,):
        raise AdapterError(
            f"{name}: a bias of shape {bias.shape} for {expected.out_features} "
            f"outputs: {OTHER_BASE}"
        )
    _has_input_magnitudes(layer)  # raises


def _fits(sizes: _Sizes, expected: KernelShape) -> bool:
    columns = expected.in_features * math.prod(expected.window)
    has_window = math.prod(sizes.window) > 1
    return (
        sizes.rows == expected.out_features
        and sizes.columns * math.prod(sizes.window) == columns
        and (not has_window or sizes.window == expected.window)
    )


def _is_narrow(layer: LayerEntries, sizes: _Sizes) -> bool:
    """Return whether low-rank matrices cover only a layer's first inputs, as in narrower models."""
    narrow = layer.goal.narrow
    return (
        narrow is not None
        and "down" in layer.entries
        and _fits(sizes, _expected(layer)._replace(in_features=narrow))
    )


def _checked_form(layer: LayerEntries) -> str | None:
    """Return how a file represents a layer's change (low-rank, LoKr, LoHa, whole); None: bias only.

    Raises: AdapterError: arrays are empty, missing, of an unsupported dtype, or of two forms.
    """
    parts, name = layer.entries, shown(layer.name)
    for kind, entry in parts.items():
        if not entry.size:
            raise AdapterError(f"{shown(entry.key)} is empty: its shape is {entry.shape}")
        if kind != "alpha" and not entry.is_float:
            raise unread_type(entry.dtype, entry.key)
    forms = [form for form, kinds in FORMS.items() if parts.keys() & kinds]
    if len(forms) > 1:
        raise AdapterError(f"{name}: both {forms[0]} and {forms[1]}")
    if forms == [LOW_RANK] and not parts.keys() >= {"down", "up"}:
        missing = "down (lora_A)" if "up" in parts else "up (lora_B)"
        raise AdapterError(f"{name}: one of its two low-rank matrices is missing, {missing}")
    if forms and forms[0] in REQUIRED and not _is_complete(parts, forms[0]):
        raise AdapterError(f"{name}: incomplete {forms[0]}; it needs {REQUIRED[forms[0]]}")
    if not forms and "bias" not in parts:
        what = "an alpha" if parts.keys() == {"alpha"} else "magnitudes (DoRA)"
        raise AdapterError(f"{name}: {what} without low-rank matrices")
    return forms[0] if forms else None


def _is_complete(parts: Mapping[Kind, TensorEntry], form: str) -> bool:
    """Return whether all parts of LoKr or LoHa define its two factors."""
    factors = _factors(parts, form)
    count = len(parts.keys() & FORMS[form])
    has_core = {len(factor) == 3 for factor in factors}
    return sum(map(len, factors)) == count and all(factors) and (form == LOKR or len(has_core) == 1)


def _factors(parts: Mapping[Kind, TensorEntry], form: str) -> list[Entries]:
    """Return the arrays of the two factors; an incomplete factor is empty."""
    return [_factor(parts, f"{'lokr' if form == LOKR else 'hada'}_{{}}{n}") for n in (1, 2)]


def _factor(parts: Mapping[Kind, TensorEntry], name: str) -> Entries:
    by_name: dict[str, TensorEntry] = {str(kind): entry for kind, entry in parts.items()}
    whole, core = by_name.get(name.format("w")), by_name.get(name.format("t"))
    pair = [by_name.get(f"{name.format('w')}_{letter}") for letter in "ab"]
    if whole is not None:
        return (whole,)
    a, b = pair
    if a is None or b is None:
        return ()
    return (a, b) if core is None else (core, a, b)


def _sizes(layer: LayerEntries, form: str) -> _Sizes:
    """Return the sizes of a layer's change. Raises: AdapterError: its parts do not fit."""
    parts = layer.entries
    if form == LOW_RANK:
        return _low_rank_sizes(layer)
    if form == WHOLE:
        return _factor_sizes((parts["full"],))
    first, second = (_factor_sizes(factor) for factor in _factors(parts, form))
    if form == LOKR:
        rows, columns = first.rows * second.rows, first.columns * second.columns
        window = second.window
        is_possible = math.prod(first.window) == 1
    else:
        rows, columns, window = first.rows, first.columns, first.window
        is_possible = (rows, columns, window) == (second.rows, second.columns, second.window)
    if not is_possible:
        raise AdapterError(f"{shown(layer.name)}: the factors of its {form} do not fit each other")
    rank = min(first.rank * second.rank, rows, columns * math.prod(window))
    return _Sizes(rows, columns, window, rank)


def _low_rank_sizes(layer: LayerEntries) -> _Sizes:
    parts = layer.entries
    down, up = _matrix(parts["down"]), _matrix(parts["up"])
    window: tuple[int, ...] = down[2:]
    core: tuple[int, ...] = (down[0], down[0])
    if "mid" in parts:
        core, window = _matrix(parts["mid"])[:2], _matrix(parts["mid"])[2:]
    is_chained = (up[1], down[0]) == core and math.prod(up[2:]) == 1
    if not is_chained or ("mid" in parts and math.prod(down[2:]) != 1):
        raise AdapterError(
            f"{shown(layer.name)}: down of shape {parts['down'].shape} and up of shape "
            f"{parts['up'].shape} do not fit each other"
        )
    return _Sizes(up[0], down[1], window, max(core))


def _factor_sizes(factor: Entries) -> _Sizes:
    """Return the sizes of a factor's matrix. Raises: AdapterError: its arrays do not fit."""
    shapes = [_matrix(entry) for entry in factor]
    core, vectors = shapes[0], shapes[1:]
    if len(shapes) == 1:
        rows, columns, *window = core
        ranks = {rows}
        is_chained = True
    elif len(shapes) == 2:
        rows, columns, *window = core[0], *vectors[0][1:]
        ranks = {core[1], vectors[0][0]}
        is_chained = len(ranks) == 1 and math.prod(core[2:]) == 1
    else:
        rows, columns, *window = vectors[0][1], vectors[1][1], *core[2:]
        ranks = {*core[:2]}
        is_chained = core[:2] == (vectors[0][0], vectors[1][0]) and all(
            math.prod(shape[2:]) == 1 for shape in vectors
        )
    if not is_chained:
        keys = ", ".join(f"{shown(entry.key)} {entry.shape}" for entry in factor)
        raise AdapterError(f"shapes that do not fit each other: {keys}")
    sizes = _Sizes(rows, columns, tuple(window), max(ranks))
    if len(shapes) > 1:
        _check_rank(shown(factor[0].key), sizes, has_core=len(shapes) == 3)
    return replace(sizes, rank=min(*ranks, rows, columns * math.prod(window)))


def _check_rank(name: str, sizes: _Sizes, has_core: bool) -> None:
    """Reject a rank that no matrix can have, and which would only take memory.

    Args:
        has_core: whether a product of the rank and a window is built.
    """
    columns = sizes.columns * (1 if has_core else math.prod(sizes.window))
    if sizes.rank > max(sizes.rows + columns, MIN_LIMIT):
        raise AdapterError(
            f"{name}: rank {sizes.rank} of a matrix of {sizes.rows} x {columns}; reduce it "
            "(kohya's resize_lora.py does)"
        )


def _matrix(entry: TensorEntry) -> tuple[int, ...]:
    if len(entry.shape) < 2:
        raise AdapterError(f"{shown(entry.key)} is no matrix: its shape is {entry.shape}")
    return entry.shape


def _expected(layer: LayerEntries) -> KernelShape:
    """Return the kernel sizes of all layers that the model has for one name of a file, combined."""
    shapes = [*layer.goal.layers.values()]
    out_features = sum(shape.out_features for shape in shapes)
    return shapes[0]._replace(out_features=out_features)


def _sizes_of(shape: KernelShape) -> _Sizes:
    return _Sizes(shape.out_features, shape.in_features, shape.window, 0)


def _described(sizes: _Sizes) -> str:
    has_window = math.prod(sizes.window) > 1
    window = f", window {'x'.join(map(str, sizes.window))}" if has_window else ""
    return f"from {sizes.columns} to {sizes.rows} features{window}"


def _magnitude_entry(layer: LayerEntries) -> TensorEntry | None:
    return layer.entries.get("magnitude") or layer.entries.get("output_magnitude")


def _has_input_magnitudes(layer: LayerEntries) -> bool:
    """Return whether the magnitudes of DoRA are those of inputs, not of outputs.

    Raises: AdapterError: they fit neither, or the file's layer is several layers of the model.
    """
    entry, expected = _magnitude_entry(layer), _expected(layer)
    if entry is None:
        return False
    of_inputs = "magnitude" in layer.entries and entry.shape[:1] != (expected.out_features,)
    count = expected.in_features if of_inputs else expected.out_features
    if entry.size != count or count not in entry.shape:
        raise AdapterError(
            f"{shown(entry.key)}: magnitudes of shape {entry.shape} for {expected.in_features} "
            f"inputs and {expected.out_features} outputs: {OTHER_BASE}"
        )
    if of_inputs and len(layer.goal.layers) > 1:
        raise AdapterError(
            f"{shown(entry.key)}: magnitudes of the inputs of a layer that is several layers in "
            "this model; train with magnitudes of outputs (LyCORIS: wd_on_output)"
        )
    return of_inputs


def changes_of(
    layer: LayerEntries, file: TensorFile, alphas: Alphas
) -> Iterator[tuple[LayerPosition, LayerChange]]:
    """Yield the changes of a name's layers, after `check_sizes`.

    Raises: AdapterError: NaN, infinity or an invalid alpha.
    """
    change = _change(layer, file, alphas)
    first = 0
    for place, shape in layer.goal.layers.items():
        rows: slice | np.ndarray = slice(first, first + shape.out_features)
        first += shape.out_features
        if layer.goal.is_swapped:
            rows = np.roll(np.arange(shape.out_features), shape.out_features // 2)
        yield place, change.of_part(rows, shape)


@dataclass(frozen=True)
class _Change:
    """Change of a file's layer, which may be several layers of the model."""

    matrices: tuple[StoredArray, StoredArray] | Factor | Kronecker | Hadamard
    """Down [rank, in, *window] and up [out, rank]; or a product."""
    rank: int
    scale: float
    bias: StoredArray | None
    bias_scale: float
    magnitude: Magnitude | None
    is_fused: bool
    """Whether it is several layers of the model."""

    def of_part(self, rows: slice | np.ndarray, shape: KernelShape) -> LayerChange:
        """Return the change of one layer of the model, which has these outputs."""
        bias, magnitude = self.bias, self.magnitude
        if magnitude is not None and not magnitude.of_inputs:
            magnitude = Magnitude(magnitude.values[rows])
        more: dict[str, Any] = {
            "scale": self.scale,
            "bias": None if bias is None else bias[rows],
            "bias_scale": self.bias_scale,
            "magnitude": magnitude,
        }
        if not isinstance(self.matrices, tuple):
            rank = min(self.rank, shape.out_features)
            return Composed(self.matrices, rows, shape, rank, **more)
        down, up = self.matrices
        ranks = _used(up[rows]) if self.is_fused else slice(None)
        down_part = down[ranks].array.reshape(-1, shape.in_features, *shape.window)
        return LowRank(StoredArray(down_part), up[rows][:, ranks], **more)


def _change(layer: LayerEntries, file: TensorFile, alphas: Alphas) -> _Change:
    """Read the arrays of one layer of an adapter's file."""
    parts = layer.entries
    form = next((form for form, kinds in FORMS.items() if parts.keys() & kinds), None)
    rank = 0 if form is None else _sizes(layer, form).rank
    bias = file.stored(parts["bias"]) if "bias" in parts else None
    return _Change(
        _matrices(layer, form, file),
        rank,
        alphas.of(layer, _scaled_rank(parts, form)),
        bias,
        alphas.of_bias(layer, rank),
        _magnitude(layer, file),
        len(layer.goal.layers) > 1,
    )


def _matrices(
    layer: LayerEntries, form: str | None, file: TensorFile
) -> tuple[StoredArray, StoredArray] | Factor | Kronecker | Hadamard:
    """Read the matrices of a layer's change; for a bias alone, `down` and `up` have rank 0."""
    parts, expected = layer.entries, _expected(layer)

    def factor(entries: Entries) -> Factor:
        return Factor(tuple(file.stored(entry) for entry in entries))

    if form is None:
        shape = (0, expected.in_features, *expected.window)
        return StoredArray(np.zeros(shape, np.float32)), StoredArray(
            np.zeros((expected.out_features, 0), np.float32)
        )
    if form == LOW_RANK:
        return _low_rank_matrices(layer, file)
    if form == WHOLE:
        return factor((parts["full"],))
    kind = Kronecker if form == LOKR else Hadamard
    return kind(*(factor(entries) for entries in _factors(parts, form)))


def _low_rank_matrices(layer: LayerEntries, file: TensorFile) -> tuple[StoredArray, StoredArray]:
    parts = layer.entries
    down, up = file.stored(parts["down"]), file.stored(parts["up"])
    if "mid" in parts:  # Tucker: down, a small convolution, up
        mid = file.stored(parts["mid"]).float32()
        flat = down.float32().reshape(down.shape[:2])
        down = StoredArray(np.einsum("ij...,jc->ic...", mid, flat, optimize=True))
    return _widened(down, _expected(layer).in_features), StoredArray(up.array.reshape(up.shape[:2]))


def _scaled_rank(parts: Mapping[Kind, TensorEntry], form: str | None) -> int:
    """Return the rank that alpha is divided by; 0: alpha has no effect."""
    if form == LOW_RANK:
        return parts["down"].shape[0]
    names: tuple[Kind, ...] = ("lokr_w2_b", "lokr_w1_b", "hada_w1_b")
    return next((parts[name].shape[0] for name in names if name in parts), 0)


def _magnitude(layer: LayerEntries, file: TensorFile) -> Magnitude | None:
    entry = _magnitude_entry(layer)
    if entry is None:
        return None
    return Magnitude(file.stored(entry).float32().ravel(), _has_input_magnitudes(layer))


def _widened(down: StoredArray, inputs: int) -> StoredArray:
    """Pad the low-rank matrix `down` with zeros for the inputs that it lacks.

    Source: diffusers loaders/lora_pipeline.py, `_maybe_expand_lora_state_dict`.
    """
    more = inputs - down.shape[1]
    if not more:
        return down
    return StoredArray(np.pad(down.array, [(0, 0), (0, more), *[(0, 0)] * (len(down.shape) - 2)]))


def _used(up: StoredArray) -> slice | np.ndarray:
    """Return the ranks that a part of a fused layer uses, if each part has its own ranks.

    Source: kohya's sd-scripts, networks/lora_flux.py, `split_qkv`: up is block-diagonal.
    """
    if up[:FIRST_ROWS].float32().any(axis=0).all():
        return slice(None)
    used = np.flatnonzero(up.float32().any(axis=0))
    return slice(None) if len(used) == up.shape[1] else used
