"""Kinds of files by their first bytes."""

from __future__ import annotations

import pickle

import pytest

from models.spec.file_kinds import (
    ARCHIVE,
    ARRAY,
    BEGINNING_BYTES,
    EMPTY,
    GGUF,
    PAGE,
    PICKLE,
    POINTER,
    SAFETENSORS,
    TEXT,
    UNKNOWN,
    ZEROS,
    ZIPPED,
    FileKind,
    has_weight_ending,
    kind_of,
)

LENGTH = (640).to_bytes(8, "little")
"""Length of a header, whose first bytes are those of a pickle."""
FILES: tuple[tuple[FileKind, bytes], ...] = (
    (EMPTY, b""),
    (SAFETENSORS, LENGTH + b'{"x":'),
    (SAFETENSORS, bytes(8) + b"{}"),
    (GGUF, b"GGUF\x03\x00\x00\x00" + bytes(16)),
    (ZEROS, bytes(BEGINNING_BYTES)),
    (POINTER, b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n"),
    (PAGE, b"\xef\xbb\xbf\n<!DOCTYPE html><html>"),
    (PAGE, b'<?xml version="1.0"?><Error><Code>AccessDenied</Code></Error>'),
    (TEXT, b'{"error": "Access to this model is restricted"}'),
    (TEXT, "Entry not found: schöne Grüße".encode()),
    (TEXT, ("x" * (BEGINNING_BYTES - 1) + "é").encode()),
    *((PICKLE, pickle.dumps({"a": [1.5]}, protocol)) for protocol in (0, 2, 3, 4, 5)),
    (PICKLE, b"cos\nsystem\n(V exit 1\ntR."),
    (ZIPPED, b"PK\x03\x04" + bytes(26)),
    (ARCHIVE, b"\x1f\x8b\x08\x00" + bytes(20)),
    (ARRAY, b"\x93NUMPY\x01\x00"),
    (UNKNOWN, b"\x10"),
    (UNKNOWN, b"\xff" * 8 + b"{}"),
    (UNKNOWN, b"\xc3\x28 is no UTF-8"),
)


@pytest.mark.parametrize(("kind", "content"), FILES)
def test_a_file_is_recognized_by_its_first_bytes(kind: FileKind, content: bytes) -> None:
    assert kind_of(content[:BEGINNING_BYTES], len(content)) is kind


def test_safetensors_header_is_not_detected_as_a_pickle() -> None:
    assert LENGTH.startswith(b"\x80\x02")


@pytest.mark.parametrize("name", ["a.safetensors", "A.SAFETENSORS", "a.sft", "a.Q4_K.gguf"])
def test_endings_of_weight_files_are_of_any_case(name: str) -> None:
    assert has_weight_ending(name) and not has_weight_ending(f"{name}.txt")
