"""GGUF files: every format of numbers, shapes, and hostile headers."""

from __future__ import annotations

import math
import struct
import tracemalloc
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, GGUFReader, GGUFWriter, quants

from models.checkpoint.direct_io import BufferPool
from models.checkpoint.fingerprint import config_digest, fingerprint
from models.checkpoint.folder import CheckpointError
from models.checkpoint.gguf_file import KINDS, MAX_ITEMS, read_gguf_header
from models.checkpoint.headers import read_header
from models.checkpoint.number_formats import BLOCKS, FORMATS
from models.checkpoint.safetensors import ComponentFiles, open_tensors
from models.checkpoint.tensor import Tensor
from models.checkpoint.weight_file import open_weights
from tests.models.gguf_files import random_blocks, write_gguf

PLAIN = ("F32", "F16", "BF16")
SHAPE = (7, 768)


def written(file: Path, kind: str, raw: np.ndarray) -> Path:
    """Write a file with a single array, next to metadata of every type."""
    writer = GGUFWriter(file, "flux")
    writer.add_description("a text that is skipped")
    writer.add_array("tokenizer.ggml.tokens", ["a", "b" * 1000])
    writer.add_array("numbers", [1.5, 2.5])
    writer.add_bool("flag", True)
    writer.add_tensor("first.bias", np.ones(5, np.float32))
    writer.add_tensor("x.weight", raw, raw_dtype=GGMLQuantizationType[kind])
    for write in (
        writer.write_header_to_file,
        writer.write_kv_data_to_file,
        writer.write_tensors_to_file,
    ):
        write()
    writer.close()
    return file


def opened(file: Path, stack: ExitStack) -> dict[str, Tensor]:
    return open_tensors(ComponentFiles("x", (file,)), stack)


@pytest.mark.parametrize("kind", [*BLOCKS, *PLAIN])
def test_numbers_are_those_of_the_package(kind: str, tmp_path: Path) -> None:
    """The package reads the file itself, too: its header as well as its numbers."""
    if kind in PLAIN:
        raw = quants.quantize(
            np.random.default_rng(0).normal(size=SHAPE).astype("f4"), GGMLQuantizationType[kind]
        )
    else:
        raw = random_blocks(kind, SHAPE)
    file = written(tmp_path / "x.gguf", kind, raw)
    of_package = next(item for item in GGUFReader(file).tensors if item.name == "x.weight")
    expected = quants.dequantize(of_package.data, of_package.tensor_type).reshape(SHAPE)
    with ExitStack() as stack:
        tensor = opened(file, stack)["x.weight"]
        assert (tensor.kind, tensor.shape) == (kind, SHAPE)
        np.testing.assert_array_equal(tensor.read(0, 7).astype("f4"), expected)
        np.testing.assert_array_equal(tensor.read(2, 5).astype("f4"), expected[2:5])
        *before, last = (part() for part in tensor.parts(1, 7, BufferPool(0).take))
        assert all(part is None for part in before) and last is not None
        np.testing.assert_array_equal(last.astype("f4"), expected[1:])


def test_q8_0_and_q4_0_by_their_formulas(tmp_path: Path) -> None:
    """Source: ggml, ggml-quants.c, dequantize_row_q8_0 and dequantize_row_q4_0."""
    for kind in ("Q8_0", "Q4_0"):
        raw = random_blocks(kind, (1, 64)).reshape(2, -1)
        scales = raw[:, :2].copy().view(np.float16).astype(np.float32)
        if kind == "Q8_0":
            expected = scales * raw[:, 2:].view(np.int8)
        else:
            nibbles = np.concatenate([raw[:, 2:] & 15, raw[:, 2:] >> 4], axis=1)
            expected = scales * (nibbles.astype(np.int32) - 8)
        file = written(tmp_path / f"{kind}.gguf", kind, raw.reshape(1, -1))
        with ExitStack() as stack:
            output = opened(file, stack)["x.weight"].read(0, 1)
        np.testing.assert_array_equal(output.ravel(), expected.astype(np.float32).ravel())


def test_blocks_may_run_across_rows(tmp_path: Path) -> None:
    """A convolution's blocks are of all its numbers; its shape is in the metadata."""
    shape = (8, 3, 4, 4, 2)
    decoded = write_gguf(
        {"conv": torch.zeros(shape)}, tmp_path / "x.gguf", kind_of=lambda key, tensor: "Q6_K"
    )
    with ExitStack() as stack:
        tensor = opened(tmp_path / "x.gguf", stack)["conv"]
        for first, stop in ((0, 8), (1, 2), (5, 8), (3, 3)):
            expected = decoded["conv"][first:stop].numpy()
            np.testing.assert_array_equal(tensor.read(first, stop), expected)


def test_parts_of_a_long_tensor_are_its_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("models.checkpoint.tensor.PART", 2 * SHAPE[1])
    raw = random_blocks("Q4_K", SHAPE)
    with ExitStack() as stack:
        tensor = opened(written(tmp_path / "x.gguf", "Q4_K", raw), stack)["x.weight"]
        parts = tensor.parts(0, 7, BufferPool(0).take)
        results = [part() for part in parts]
        assert len(parts) == 4 and all(part is None for part in results[:-1])
        np.testing.assert_array_equal(results[-1], tensor.read(0, 7))


def test_fingerprints_cover_content_and_header(tmp_path: Path) -> None:
    """Other numbers change the fingerprint only; other formats the digest of configs as well."""
    files = []
    for name, kind, seed in (("a", "Q4_K", 0), ("b", "Q4_K", 1), ("c", "Q5_K", 0)):
        (tmp_path / name).mkdir()
        raw = random_blocks(kind, SHAPE, seed)
        files.append(written(tmp_path / name / "x.gguf", kind, raw))
    assert len({fingerprint(file) for file in files}) == 3
    first, second, third = map(config_digest, files)
    assert first == second != third


@pytest.mark.parametrize(("number", "kind"), [*KINDS.items(), (99, "type 99")])
def test_every_type_has_its_name(number: int, kind: str, tmp_path: Path) -> None:
    if number != 99:
        assert GGMLQuantizationType(number).name == kind
    header = raw_header(infos=[info("x", (256,), number, 0)])
    with ExitStack() as stack:
        assert opened(put(tmp_path / "x", header + bytes(2048)), stack)["x"].kind == kind


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value)) + value.encode()


def info(name: str, dims: tuple[int, ...], kind: int, offset: int) -> bytes:
    axes = struct.pack(f"<I{len(dims)}Q", len(dims), *dims)
    return text(name) + axes + struct.pack("<IQ", kind, offset)


def raw_header(
    *,
    version: int = 3,
    fields: tuple[bytes, ...] = (),
    infos: list[bytes] | None = None,
    counts: tuple[int, int] | None = None,
) -> bytes:
    """Return a header padded to 32 bytes."""
    arrays = infos or []
    count = counts or (len(arrays), len(fields))
    head = b"GGUF" + struct.pack("<IQQ", version, *count) + b"".join((*fields, *arrays))
    return head + bytes(-len(head) % 32)


def put(file: Path, content: bytes) -> Path:
    file.write_bytes(content)
    return file


ONE = [info("x", (4,), 0, 0)]
HOSTILE = {
    "counts of arrays": (raw_header(counts=(2**63, 0)), f"more than {MAX_ITEMS}"),
    "counts of metadata": (raw_header(counts=(0, 2**64 - 1)), f"more than {MAX_ITEMS}"),
    "fewer arrays than counted": (raw_header(counts=(MAX_ITEMS, 0)), "does not end within"),
    "a long name": (raw_header(infos=[struct.pack("<Q", 2**60)]), "a name of"),
    "a long text": (
        raw_header(fields=(text("a") + struct.pack("<IQ", 8, 2**62),)),
        "does not end within",
    ),
    "a long array": (
        raw_header(fields=(text("a") + struct.pack("<IIQ", 9, 10, 2**61),)),
        "does not end within",
    ),
    "many texts": (
        raw_header(fields=(text("a") + struct.pack("<IIQ", 9, 8, 2**40),)),
        "texts, more than",
    ),
    "arrays in arrays": (
        raw_header(fields=(text("a") + struct.pack("<IIQ", 9, 9, 1),)),
        "an array of the type 9",
    ),
    "an unknown type of metadata": (
        raw_header(fields=(text("a") + struct.pack("<I", 77),)),
        "unknown type 77",
    ),
    "many axes": (raw_header(infos=[info("x", (1,) * 9, 0, 0)]), "of 9 axes"),
    "a huge shape": (raw_header(infos=[info("x", (2**63, 2**63), 0, 0)]), "outside the file"),
    "an offset beyond the file": (raw_header(infos=[info("x", (4,), 0, 2**63)]), "outside"),
    "arrays in arrays' bytes": (
        raw_header(infos=[*ONE, info("y", (4,), 0, 8)]) + bytes(64),
        "in another array",
    ),
    "a name twice": (raw_header(infos=ONE * 2) + bytes(64), "of one name"),
    "half a block": (raw_header(infos=[info("x", (31,), 8, 0)]) + bytes(64), "whole number"),
    "no alignment": (
        raw_header(fields=(text("general.alignment") + struct.pack("<II", 4, 0),), infos=ONE),
        "no power of two",
    ),
    "another shape": (
        raw_header(
            fields=(text("comfy.gguf.orig_shape.x") + struct.pack("<IIQ2i", 9, 5, 2, -2, -2),),
            infos=ONE,
        )
        + bytes(64),
        "with two shapes",
    ),
    "a shape of many axes": (
        raw_header(
            fields=(text("comfy.gguf.orig_shape.x") + struct.pack("<IIQ", 9, 5, 9) + bytes(36),)
        ),
        "a shape of 9 axes",
    ),
    "version 1": (raw_header(version=1), "GGUF version 1 is not read"),
    "big-endian": (raw_header(version=3 << 24), "GGUF in big-endian byte order is not read"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_header_is_refused_within_bounds(name: str, tmp_path: Path) -> None:
    content, message = HOSTILE[name]
    file = open_weights(put(tmp_path / "x.gguf", content))
    tracemalloc.start()
    with pytest.raises(CheckpointError, match=message):
        read_header(tmp_path / "x.gguf", file)
    assert tracemalloc.get_traced_memory()[1] < 4 << 20
    tracemalloc.stop()
    file.close()


def mutants(content: bytes, header: int) -> Iterator[bytes]:
    """Yield damaged copies: cut off, with other bits, and with extreme lengths."""
    random = np.random.default_rng(0)
    yield from (content[:stop] for stop in range(4, header, 5))
    for _ in range(150):
        damaged = bytearray(content)
        for at in random.integers(4, header, 3):
            damaged[at] = random.integers(256)
        yield bytes(damaged)
    for at in range(8, header - 8, 3):
        for value in (0, 1, 2**31, 2**63, 2**64 - 1):
            yield content[:at] + struct.pack("<Q", value) + content[at + 8 :]


def test_damaged_headers_are_refused_or_read_and_never_more(tmp_path: Path) -> None:
    """A damaged header gives an error of this project, or arrays within the file."""
    tensors = {"a.weight": torch.zeros(4, 64), "b": torch.zeros(3), "c": torch.zeros(16, 4, 2, 2)}
    write_gguf(tensors, tmp_path / "good.gguf")
    content = (tmp_path / "good.gguf").read_bytes()
    header = read_gguf_header(tmp_path, open_weights(tmp_path / "good.gguf")).stop
    refused = 0
    for damaged in mutants(content, header):
        file = put(tmp_path / "x.gguf", damaged)
        try:
            with ExitStack() as stack:
                for tensor in opened(file, stack).values():
                    if tensor.kind in FORMATS and math.prod(tensor.shape):
                        tensor.read(0, tensor.shape[0] if tensor.shape else 1)
        except CheckpointError:
            refused += 1
    assert refused > 300
