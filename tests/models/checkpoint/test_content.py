"""Every reader of weight files decides by content: the ending of a name means nothing."""

from __future__ import annotations

import json
import pickle
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

from models import registry
from models.adapters.files.adapter import AdapterError
from models.adapters.files.tensor_file import opened
from models.checkpoint.folder import CheckpointError, read_config
from models.checkpoint.hub import resolve_file, single_file
from models.checkpoint.single_file import shapes_of
from models.ltx.upsampler_checkpoint import find_upsampler
from models.sdxl import control_file
from models.sdxl import single_file as sdxl_file
from models.sdxl.config import UNetConfig
from models.sdxl.ip_adapter_file import config_of
from models.sdxl.published import SDXL_BASE
from models.spec.file_kinds import MAX_HEADER_MARKS
from models.upscale.config import read_shapes
from tests.models.gguf_files import write_gguf

POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 23802932552\n"
CONTENTS = {
    "an empty file; fetch or export it again": b"",
    "a git-lfs pointer, not the weights that it names; fetch them with `git lfs pull`": POINTER,
    "an HTML or XML page, such as a login or error page": b"<!doctype html>\n<html></html>",
    "a text, such as the error message of a server": b'{"error": "gated"}',
    "a pickled checkpoint, which can run code": pickle.dumps({"x": 1}),
    "a ZIP archive, such as a pickled checkpoint of PyTorch": b"PK\x03\x04" + bytes(40),
    "a file that begins with zeros, as an interrupted download": bytes(4096),
}
"""Messages, and files that are no weights."""


def adapter(file: Path) -> None:
    with opened(file):
        pass


READERS: dict[str, Callable[[Path], Any]] = {
    "a model": lambda file: registry.load("x", str(file), "float32", {}),
    "a model with a base": lambda file: registry.load("x", str(file), "float32", {}, base="/none"),
    "SDXL": sdxl_file.check,
    "an upscaler": read_shapes,
    "a ControlNet": lambda file: control_file.read_file(file, {}),
    "an IP-Adapter": lambda file: config_of(file, UNetConfig.from_dict(SDXL_BASE["unet"])),
    "a latent upsampler": lambda file: find_upsampler(file.parent, str(file), 8),
    "an adapter": adapter,
}


@pytest.mark.parametrize("message", CONTENTS)
@pytest.mark.parametrize("reader", READERS)
def test_file_without_weights_is_named_by_every_reader(
    reader: str, message: str, tmp_path: Path
) -> None:
    file = tmp_path / "model.safetensors"
    file.write_bytes(CONTENTS[message])
    with pytest.raises((CheckpointError, AdapterError)) as raised:
        READERS[reader](file)
    assert f"model.safetensors is {message}" in str(raised.value)
    assert raised.value.__context__ is None, "no other library has tried to read it"


@pytest.mark.parametrize("name", ["a.SAFETENSORS", "a.sft", "a.ckpt", "a.pth", "a"])
def test_weights_are_read_under_any_name(name: str, tmp_path: Path) -> None:
    file = tmp_path / name
    save_file({"x": np.zeros((2, 3), np.float32)}, file)
    assert shapes_of(file) == {"x": (2, 3)}
    assert single_file(str(file)) == file
    adapter(file)


@pytest.mark.parametrize("name", ["a.SAFETENSORS", "a.sft", "a.gguf"])
def test_the_only_weight_file_of_a_folder_may_have_any_of_the_endings(
    name: str, tmp_path: Path
) -> None:
    (tmp_path / "README.md").write_text("no weights")
    (tmp_path / name).write_bytes(b"x")
    assert resolve_file(str(tmp_path)) == tmp_path / name
    (tmp_path / "b.safetensors").write_bytes(b"x")
    with pytest.raises(CheckpointError, match=rf"name one weight file of it; there is {name}, b"):
        resolve_file(str(tmp_path))


def test_a_gguf_file_is_read_under_any_name_and_refused_for_adapters(tmp_path: Path) -> None:
    file = tmp_path / "a.safetensors"
    write_gguf({"x.weight": torch.zeros(2, 32)}, file)
    assert shapes_of(file) == {"x.weight": (2, 32)}
    with pytest.raises(AdapterError, match="is a GGUF file; send the adapter as safetensors"):
        adapter(file)


def test_git_lfs_pointer_is_named(tmp_path: Path) -> None:
    (tmp_path / "vae").mkdir()
    (tmp_path / "vae" / "config.json").write_bytes(POINTER)
    with pytest.raises(CheckpointError, match=r"not valid JSON .*it is a git-lfs pointer"):
        read_config(tmp_path, "vae")


def test_a_header_up_to_the_formats_limit_is_read(tmp_path: Path) -> None:
    """The bound itself is tested without such a file: nothing of it is read."""
    save_file({"x": np.zeros(3, np.float32)}, tmp_path / "a", {"tags": "x" * (30 * 2**20)})
    assert shapes_of(tmp_path / "a") == {"x": (3,)}
    with (tmp_path / "b").open("wb") as file:
        file.write((100_000_001).to_bytes(8, "little") + b"{")
        file.truncate(2**33)  # sparse, without disk blocks
    with pytest.raises(CheckpointError, match="a header of 100000001 bytes in a file of 858"):
        shapes_of(tmp_path / "b")


def test_a_header_of_too_many_parts_is_not_parsed(tmp_path: Path) -> None:
    header = b'{"x": [' + b"1," * MAX_HEADER_MARKS + b"1]}"
    (tmp_path / "a").write_bytes(len(header).to_bytes(8, "little") + header)
    tracemalloc.start()
    with pytest.raises(CheckpointError, match=r"a header of \d+ parts, more than"):
        shapes_of(tmp_path / "a")
    assert tracemalloc.get_traced_memory()[1] < 4 * len(header)
    tracemalloc.stop()


def header_of(*entries: tuple[list[int], list[int]]) -> bytes:
    """Return a header of float32 arrays with these shapes and offsets."""
    arrays = {
        f"x{number}": {"dtype": "F32", "shape": shape, "data_offsets": offsets}
        for number, (shape, offsets) in enumerate(entries)
    }
    header = json.dumps(arrays).encode()
    return len(header).to_bytes(8, "little") + header


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(header_of(([2], [0, 8]), ([2], [4, 12])) + bytes(12), id="overlapping"),
        pytest.param(header_of(([2], [0, 8]), ([2], [0, 8])) + bytes(8), id="the same bytes"),
        pytest.param(header_of(([2], [0, 8]), ([2], [12, 20])) + bytes(20), id="a hole"),
        pytest.param(header_of(([2], [8, 0])) + bytes(8), id="reversed"),
        pytest.param(header_of(([2**38], [0, 2**40])) + bytes(8), id="beyond the file"),
        pytest.param(header_of(([2**33, 2**33], [0, 8])) + bytes(8), id="a huge shape"),
        pytest.param(header_of(([2**62, 4], [0, 0])), id="a shape that overflows to 0"),
        pytest.param(header_of(([-2], [0, 8])) + bytes(8), id="a negative shape"),
    ],
)
def test_hostile_offsets_and_shapes_are_refused_within_bounds(
    content: bytes, tmp_path: Path
) -> None:
    (tmp_path / "a").write_bytes(content)
    tracemalloc.start()
    with pytest.raises(CheckpointError, match="not a whole safetensors file"):
        shapes_of(tmp_path / "a")
    assert tracemalloc.get_traced_memory()[1] < 4 << 20
    tracemalloc.stop()


def test_truncated_file_is_distinguished_from_a_bad_header(tmp_path: Path) -> None:
    save_file({"x": np.zeros(300, np.float32)}, tmp_path / "a")
    content = (tmp_path / "a").read_bytes()
    for damaged in (content[:40], content[:-4], content.replace(b"F32", b"Q99")):
        (tmp_path / "b").write_bytes(damaged)
        with pytest.raises(CheckpointError, match="not a whole safetensors file") as raised:
            shapes_of(tmp_path / "b")
        assert "Error" not in str(raised.value) and "Metadata" not in str(raised.value)
