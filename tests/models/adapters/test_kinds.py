"""LoKr, LoHa, Tucker decompositions and DoRA in files: exact changes, and hostile sizes."""

from __future__ import annotations

import math
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from models.adapters.files.adapter import (
    AdapterError,
    Composed,
    KernelShape,
    LayerChange,
    LayerPosition,
)
from models.adapters.files.formats import inspect, read
from models.adapters.files.name_table import Layers, Names, NetworkNames
from models.adapters.files.reduction import low_rank
from tests.models.adapters.published_names import write

Arrays = dict[str, np.ndarray]

IN, OUT = 12, 20
FLAT, WINDOW, QKV, SWAPPED = "flat", "window", "qkv", "swapped"
PLACES: dict[str, Layers] = {
    FLAT: {LayerPosition(FLAT): KernelShape(IN, OUT)},
    WINDOW: {LayerPosition(WINDOW): KernelShape(IN, OUT, (3, 3))},
    QKV: {LayerPosition(letter): KernelShape(IN, OUT) for letter in "qkv"},
    "q": {LayerPosition("q"): KernelShape(IN, OUT)},
    SWAPPED: {LayerPosition(SWAPPED): KernelShape(IN, OUT)},
    "absent": {},
}
NAMES = Names((NetworkNames("net", PLACES, ("",), ("lora_unet_",), frozenset({SWAPPED})),))


def numbers(*shape: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng([seed, *shape])
    return rng.standard_normal(shape, np.float32)


def lokr(name: str, rows: int, *window: int) -> Arrays:
    """LoKr of 4 x 3 and rows/4 x IN/3, the second as a product of rank 2."""
    return {
        f"{name}.lokr_w1": numbers(4, 3),
        f"{name}.lokr_w2_a": numbers(rows // 4, 2),
        f"{name}.lokr_w2_b": numbers(2, IN // 3 * math.prod(window)),
        f"{name}.alpha": np.array(6, np.float32),
    }


def lokr_delta(name: str, arrays: Arrays) -> np.ndarray:
    w1, a, b = (arrays[f"{name}.lokr_{part}"] for part in ("w1", "w2_a", "w2_b"))
    return np.kron(w1, a @ b) * 6 / 2


def loha(name: str, rank: int = 3, *window: int) -> Arrays:
    columns = IN * math.prod(window)
    shapes = {"w1_a": (OUT, rank), "w1_b": (rank, columns)}
    shapes |= {"w2_a": (OUT, rank), "w2_b": (rank, columns)}
    arrays = {
        f"{name}.hada_{part}": numbers(*shape, seed=number)
        for number, (part, shape) in enumerate(shapes.items())
    }
    return arrays | {f"{name}.alpha": np.array(6, np.float64)}


def loha_delta(name: str, arrays: Arrays, rank: int = 3) -> np.ndarray:
    w1a, w1b, w2a, w2b = (
        arrays[f"{name}.hada_{part}"] for part in ("w1_a", "w1_b", "w2_a", "w2_b")
    )
    return (w1a @ w1b) * (w2a @ w2b) * 6 / rank


def delta(change: LayerChange) -> np.ndarray:
    """Return a change as torch's weight, [out, in * window]."""
    if isinstance(change, Composed):
        kernel = np.moveaxis(change.kernel(), (-1, -2), (0, 1)) * change.scale
        return kernel.reshape(len(kernel), -1)
    down = change.down.float32()
    return change.up.float32() * change.scale @ down.reshape(len(down), -1)


def changes(path: Path, arrays: Arrays) -> dict[str, LayerChange]:
    """Return the changes by layer, after checking that the summary has the same rank."""
    file = write(path / "a.safetensors", arrays)
    adapter, summary = read(file, NAMES), inspect(file, NAMES)
    assert (summary.rank, summary.networks) == (adapter.rank, ("net",))
    return {place.path: change for place, change in adapter.networks["net"].items()}


def test_lokr_is_a_kronecker_product(tmp_path: Path) -> None:
    arrays = lokr(FLAT, OUT) | lokr(WINDOW, OUT, 3, 3)
    for name, change in changes(tmp_path, arrays).items():
        np.testing.assert_allclose(delta(change), lokr_delta(name, arrays), rtol=2e-5, atol=1e-5)
        assert change.rank == 3 * 2


@pytest.mark.parametrize("make", [lokr, loha])
def test_adapter_names_of_peft_are_left_out(make: Callable[..., Arrays], tmp_path: Path) -> None:
    arrays = make(FLAT, OUT) if make is lokr else make(FLAT)
    named = {
        key if key.endswith("alpha") else f"{key}.default": array for key, array in arrays.items()
    }
    (change,) = changes(tmp_path, named).values()
    (expected,) = changes(tmp_path, arrays).values()
    np.testing.assert_array_equal(delta(change), delta(expected))


def test_alpha_has_no_effect_on_whole_factors(tmp_path: Path) -> None:
    whole = {f"{FLAT}.lokr_w1": numbers(4, 3), f"{FLAT}.lokr_w2": numbers(5, 4)}
    (change,) = changes(tmp_path, whole | {f"{FLAT}.alpha": np.array(9, np.int64)}).values()
    np.testing.assert_allclose(delta(change), np.kron(*whole.values()), rtol=1e-6)


def test_loha_is_a_product_of_elements(tmp_path: Path) -> None:
    arrays = loha(FLAT) | loha(WINDOW, 3, 3, 3)
    for name, change in changes(tmp_path, arrays).items():
        np.testing.assert_allclose(delta(change), loha_delta(name, arrays), rtol=2e-5, atol=1e-5)
        assert change.rank == 9


def test_locon_with_a_tucker_decomposition(tmp_path: Path) -> None:
    down, mid, up = numbers(2, IN, 1, 1), numbers(3, 2, 3, 3), numbers(OUT, 3, 1, 1)
    arrays = {f"{WINDOW}.lora_down.weight": down, f"{WINDOW}.lora_mid.weight": mid}
    (change,) = changes(tmp_path, arrays | {f"{WINDOW}.lora_up.weight": up}).values()
    expected = np.einsum("mnhw,om,ni->oihw", mid, up[..., 0, 0], down[..., 0, 0])
    np.testing.assert_allclose(delta(change), expected.reshape(OUT, -1), rtol=1e-4, atol=1e-5)
    assert change.rank == 3


@pytest.mark.parametrize("make", [lokr, loha])
def test_parts_of_a_fused_layer_have_their_outputs(
    make: Callable[..., Arrays], tmp_path: Path
) -> None:
    arrays = lokr(QKV, 3 * OUT)
    expected = lokr_delta(QKV, arrays)
    if make is loha:
        arrays = loha(QKV)
        for part in ("w1_a", "w2_a"):
            arrays[f"{QKV}.hada_{part}"] = numbers(3 * OUT, 3, seed=len(part))
        expected = loha_delta(QKV, arrays)
    arrays[f"{QKV}.diff_b"] = numbers(3 * OUT)
    parts = changes(tmp_path, arrays)
    assert [*parts] == ["q", "k", "v"]
    np.testing.assert_allclose(
        np.concatenate([delta(change) for change in parts.values()]), expected, rtol=2e-5, atol=1e-5
    )
    for change, rows in zip(parts.values(), np.split(expected, 3), strict=True):
        kept, _ = low_rank(change, 9)
        np.testing.assert_allclose(delta(kept), rows, rtol=1e-4, atol=1e-4)
        assert change.bias is not None and len(change.bias.array) == OUT


def test_swapped_outputs_move_with_their_bias_and_magnitudes(tmp_path: Path) -> None:
    arrays = lokr(SWAPPED, OUT) | {
        f"{SWAPPED}.diff_b": numbers(OUT),
        f"{SWAPPED}.dora_scale": numbers(OUT, 1),
    }
    (change,) = changes(tmp_path, arrays).values()
    expected = np.roll(lokr_delta(SWAPPED, arrays), OUT // 2, axis=0)
    np.testing.assert_allclose(delta(change), expected, rtol=1e-5, atol=1e-5)
    assert change.bias is not None and change.magnitude is not None
    np.testing.assert_array_equal(change.bias.float32(), np.roll(numbers(OUT), OUT // 2))
    np.testing.assert_array_equal(
        change.magnitude.values, np.roll(numbers(OUT, 1).ravel(), OUT // 2)
    )


@pytest.mark.parametrize(
    ("key", "shape", "of_inputs"),
    [
        ("dora_scale", (OUT, 1), False),
        ("dora_scale", (1, IN), True),
        ("lora_magnitude_vector", (OUT,), False),
        ("lora_magnitude_vector.weight", (OUT,), False),
    ],
)
def test_magnitudes_are_of_outputs_or_of_inputs(
    key: str, shape: tuple[int, ...], of_inputs: bool, tmp_path: Path
) -> None:
    arrays = low_rank_arrays(FLAT) | {f"{FLAT}.{key}": numbers(*shape)}
    (change,) = changes(tmp_path, arrays).values()
    assert change.magnitude is not None and change.magnitude.of_inputs == of_inputs
    np.testing.assert_array_equal(change.magnitude.values, numbers(*shape).ravel())


def low_rank_arrays(name: str, rank: int = 2, *window: int) -> Arrays:
    return {
        f"{name}.lora_down.weight": numbers(rank, IN, *window),
        f"{name}.lora_up.weight": numbers(OUT, rank),
    }


def without(arrays: Arrays, *parts: str) -> Arrays:
    return {key: array for key, array in arrays.items() if not key.endswith(parts)}


HUGE = 50_000

HOSTILE: dict[str, tuple[Arrays, str]] = {
    "a huge Kronecker product": (
        {f"{FLAT}.lokr_w1": numbers(HUGE, 1), f"{FLAT}.lokr_w2": numbers(HUGE, 1)},
        f"from 1 to {HUGE**2} features there and from 12 to 20",
    ),
    "LoHa of many inputs": (
        loha(FLAT) | {f"{FLAT}.hada_w{n}_b": numbers(3, HUGE) for n in (1, 2)},
        f"from {HUGE} to 20 features there",
    ),
    "a huge inner rank": (
        loha(FLAT)
        | {f"{FLAT}.hada_w1_a": numbers(OUT, HUGE), f"{FLAT}.hada_w1_b": numbers(HUGE, IN)},
        f"rank {HUGE} of a matrix of 20 x 12; reduce it",
    ),
    "a huge Tucker core": (
        loha(WINDOW)
        | {
            **{
                f"{WINDOW}.hada_t1": numbers(HUGE, 1, 3, 3),
                f"{WINDOW}.hada_t2": numbers(3, 3, 3, 3),
            },
            **{f"{WINDOW}.hada_w1_a": numbers(HUGE, 1), f"{WINDOW}.hada_w1_b": numbers(1, IN)},
            **{f"{WINDOW}.hada_w2_a": numbers(3, OUT), f"{WINDOW}.hada_w2_b": numbers(3, IN)},
        },
        f"rank {HUGE} of a matrix of 1 x 12",
    ),
    "factors that do not chain": (
        lokr(FLAT, OUT) | {f"{FLAT}.lokr_w2_b": numbers(3, 4)},
        "shapes that do not fit each other: flat.lokr_w2_a",
    ),
    "factors of other sizes": (
        loha(FLAT) | {f"{FLAT}.hada_w2_a": numbers(OUT + 1, 3)},
        "the factors of its LoHa do not fit each other",
    ),
    "a window in the first factor": (
        {f"{WINDOW}.lokr_w1": numbers(4, 3, 3, 3), f"{WINDOW}.lokr_w2": numbers(5, 4)},
        "the factors of its LoKr do not fit each other",
    ),
    "another window": (
        {f"{WINDOW}.lokr_w1": numbers(4, 3), f"{WINDOW}.lokr_w2": numbers(5, 4, 9, 1)},
        "window 9x1 there and from 12 to 20 features, window 3x3",
    ),
    "half of LoKr": (without(lokr(FLAT, OUT), "w2_a"), "incomplete LoKr; it needs lokr_w1"),
    "half of LoHa": (without(loha(FLAT), "w2_b"), "incomplete LoHa; it needs hada_w1_a"),
    "one core of LoHa": (
        loha(WINDOW) | {f"{WINDOW}.hada_t1": numbers(3, 3, 3, 3)},
        "incomplete LoHa; it needs",
    ),
    "LoKr and LoRA": (lokr(FLAT, OUT) | low_rank_arrays(FLAT), "both low-rank matrices and LoKr"),
    "a vector for a matrix": (
        lokr(FLAT, OUT) | {f"{FLAT}.lokr_w1": numbers(12)},
        "lokr_w1 is no matrix: its shape is",
    ),
    "magnitudes of another layer": (
        low_rank_arrays(FLAT) | {f"{FLAT}.dora_scale": numbers(7, 1)},
        "magnitudes of shape .7, 1. for 12 inputs and 20 outputs",
    ),
    "a single magnitude": (
        low_rank_arrays(FLAT) | {f"{FLAT}.dora_scale": np.ones((), np.float32)},
        "magnitudes of shape",
    ),
    "magnitudes alone": (
        {f"{FLAT}.dora_scale": numbers(OUT, 1)},
        r"magnitudes \(DoRA\) without low-rank matrices",
    ),
    "magnitudes of inputs of several layers": (
        lokr(QKV, 3 * OUT) | {f"{QKV}.dora_scale": numbers(1, IN)},
        "magnitudes of the inputs of a layer that is several layers",
    ),
    "NaN": (
        lokr(FLAT, OUT) | {f"{FLAT}.lokr_w1": np.full((4, 3), np.nan, np.float32)},
        "NaN or infinity in flat.lokr_w1",
    ),
    "a core of another rank": (
        low_rank_arrays(WINDOW) | {f"{WINDOW}.lora_mid.weight": numbers(3, 2, 3, 3)},
        "do not fit each other",
    ),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_sizes_are_refused_before_anything_is_allocated(case: str, tmp_path: Path) -> None:
    arrays, reason = HOSTILE[case]
    file = write(tmp_path / "a.safetensors", arrays)
    tracemalloc.start()
    for use in (inspect, read):
        with pytest.raises(AdapterError, match=reason):
            use(file, NAMES)
    assert tracemalloc.get_traced_memory()[1] < 2**20
    tracemalloc.stop()
