"""Untrusted safetensors files: each is read or refused with little memory."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from models.adapters.files.adapter import AdapterError
from models.adapters.files.tensor_file import opened
from models.spec.file_kinds import MAX_HEADER_BYTES, MAX_HEADER_MARKS
from tests.models.adapters.published_names import write, write_raw

NUMBERS = np.array([0.0, -0.0, 1.0, -2.5, 3e-5, 65504.0], np.float32)


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16"])
def test_arrays_are_read_in_every_type(kind: str, tmp_path: Path) -> None:
    bits = (NUMBERS.view(np.uint32) >> 16).astype(np.uint16)
    arrays: dict[str, Any] = {"F32": NUMBERS, "F16": NUMBERS.astype(np.float16), "BF16": bits}
    expected: np.ndarray = {**arrays, "BF16": (bits.astype(np.uint32) << 16).view(np.float32)}[kind]
    file = write(tmp_path / "a", {"first": arrays[kind], "b": arrays[kind].reshape(2, 3)})
    with opened(file) as tensors:
        stored = tensors.stored(tensors.entries["b"])
        np.testing.assert_array_equal(stored.float32(), expected.reshape(2, 3).astype(np.float32))


@pytest.mark.parametrize("kind", [np.float32, np.float16, np.uint16])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_numbers_that_are_not_finite_are_refused(
    kind: type[np.generic], value: float, tmp_path: Path
) -> None:
    array = np.zeros(200_000, np.float32)
    array[-1] = value
    stored = (array.view(np.uint32) >> 16).astype(kind) if kind is np.uint16 else array.astype(kind)
    is_refused = pytest.raises(AdapterError, match="NaN or infinity in x")
    with opened(write(tmp_path / "a", {"x": stored})) as file, is_refused:
        file.stored(file.entries["x"])


EIGHT_BITS = {"F8_E4M3": ml_dtypes.float8_e4m3fn, "F8_E5M2": ml_dtypes.float8_e5m2}


@pytest.mark.parametrize("kind", EIGHT_BITS)
def test_8_bit_floats_are_read_exactly(kind: str, tmp_path: Path) -> None:
    numbers = np.arange(256, dtype=np.uint8).view(EIGHT_BITS[kind]).astype(np.float32)
    bits = np.arange(256, dtype=np.uint8)[np.isfinite(numbers)]
    with opened(write(tmp_path / "a", {"x": bits}, of_bytes=kind)) as file:
        stored = file.stored(file.entries["x"])
    np.testing.assert_array_equal(stored.float32(), numbers[np.isfinite(numbers)])


@pytest.mark.parametrize(
    ("kind", "bits"), [("F8_E4M3", 0x7F), ("F8_E4M3", 0xFF), ("F8_E5M2", 0x7C), ("F8_E5M2", 0x7F)]
)
def test_8_bit_floats_that_are_not_finite_are_refused(kind: str, bits: int, tmp_path: Path) -> None:
    file = write(tmp_path / "a", {"x": np.array([0, bits], np.uint8)}, of_bytes=kind)
    with opened(file) as tensors, pytest.raises(AdapterError, match="NaN or infinity in x"):
        tensors.stored(tensors.entries["x"])


def test_64_bit_floats_are_rounded(tmp_path: Path) -> None:
    with opened(write(tmp_path / "a", {"x": np.array([1 / 3, -1e-300])})) as file:
        stored = file.stored(file.entries["x"]).array
        assert stored.dtype == np.float32 and stored.tolist() == [np.float32(1 / 3), 0]
    is_refused = pytest.raises(AdapterError, match="NaN or infinity in x")
    with opened(write(tmp_path / "a", {"x": np.array([1e300])})) as file, is_refused:
        file.stored(file.entries["x"])


def entry(**changes: object) -> str:
    fields = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8], **changes}
    return json.dumps({"x": fields})


TWICE = '{"x":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"x":1}'
OVERLAP = json.dumps(
    {
        name: {"dtype": "F32", "shape": [2], "data_offsets": [first, first + 8]}
        for name, first in (("a", 0), ("b", 4))
    }
)


@pytest.mark.parametrize(
    ("header", "reason"),
    [
        ("not JSON at all", r"not a whole safetensors file \(invalid JSON at character 0\)"),
        ("[1, 2]", "not an object"),
        ("[" * 100_000, "not a whole"),
        ('{"x":' * 3_000 + "1" + "}" * 3_000, "not a whole"),
        (TWICE, "there twice"),
        (OVERLAP, "does not begin where"),
        (entry(data_offsets=[8, 16]), "does not begin where"),
        (entry(data_offsets=[0, 4]), "other bytes"),
        (entry(data_offsets=[8, 0]), "other bytes"),
        (entry(data_offsets=[0]), "without dtype"),
        (entry(shape=[3]), "other bytes"),
        (entry(shape=[2**62, 2**62], data_offsets=[0, 2**126]), "end at byte"),
        (entry(shape=[-2]), "no whole numbers"),
        (entry(shape=[2.0]), "no whole numbers"),
        (entry(shape=[True, 2]), "no whole numbers"),
        (entry(shape=[1] * 40 + [2]), "other bytes"),
        (entry(shape=None), "without dtype"),
        (entry(dtype=7), "without dtype"),
        (entry(dtype="F8_E8M0"), "F8_E8M0: weights of this type are not read"),
        ('{"__metadata__":{"a":1}}', "no texts by name"),
        ('{"__metadata__":[]}', "no texts by name"),
        ("{}", "end at byte"),
    ],
)
def test_a_header_that_is_wrong_is_refused(header: str, reason: str, tmp_path: Path) -> None:
    file = write_raw(tmp_path / "a", header, bytes(8))
    with pytest.raises(AdapterError, match=reason), opened(file):
        pass


@pytest.mark.parametrize(
    ("content", "length"),
    [(b"\xff", None), (b"{}", 2**63), (b"{}", 3), (b"{}", 0), (b"{}", 1)],
)
def test_a_length_that_is_wrong_is_refused(
    content: bytes, length: int | None, tmp_path: Path
) -> None:
    file = tmp_path / "a"
    file.write_bytes(content if length is None else length.to_bytes(8, "little") + content)
    with pytest.raises(AdapterError, match="no header"), opened(file):
        pass


def test_a_header_of_megabytes_of_metadata_is_read(tmp_path: Path) -> None:
    file = write(tmp_path / "a", {"x": NUMBERS}, {"tags": "x" * (20 * 2**20)})
    with opened(file) as tensors:
        assert len(tensors.metadata["tags"]) == 20 * 2**20 and [*tensors.entries] == ["x"]


@pytest.mark.parametrize("part", ["[],", '{"a":{}},', "1,"])
def test_a_header_of_too_many_parts_is_not_parsed(part: str, tmp_path: Path) -> None:
    header = f'{{"x": [{part * (MAX_HEADER_MARKS + 1)}1]}}'
    file = write_raw(tmp_path / "a", header)
    tracemalloc.start()
    with pytest.raises(AdapterError, match=r"a header of \d+ parts, more than"), opened(file):
        pass
    assert tracemalloc.get_traced_memory()[1] < 2 * len(header)
    tracemalloc.stop()


def test_a_header_that_is_too_long_is_not_read(tmp_path: Path) -> None:
    file = tmp_path / "a"
    with file.open("wb") as stream:
        stream.write((MAX_HEADER_BYTES + 1).to_bytes(8, "little"))
        stream.truncate(2**33)  # sparse, without disk blocks
    tracemalloc.start()
    with pytest.raises(AdapterError, match="more than"), opened(file):
        pass
    assert tracemalloc.get_traced_memory()[1] < 2**20
    tracemalloc.stop()


def test_a_file_that_ends_too_early_is_refused(tmp_path: Path) -> None:
    file = write(tmp_path / "a", {"x": NUMBERS})
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(AdapterError, match="end at byte"), opened(file):
        pass


def test_file_truncated_while_it_is_read_is_rejected(tmp_path: Path) -> None:
    file = write(tmp_path / "a", {"x": NUMBERS})
    with opened(file) as tensors:
        file.write_bytes(file.read_bytes()[:-8])
        with pytest.raises(AdapterError, match="ends within"):
            tensors.stored(tensors.entries["x"])


@pytest.mark.parametrize("name", ["missing", "."])
def test_unopenable_file_is_named(name: str, tmp_path: Path) -> None:
    with pytest.raises(AdapterError, match="cannot be read"), opened(tmp_path / name):
        pass
