"""Multipart forms with files: accepted parts, and errors for malformed or large forms."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from fastapi import Request
from starlette.requests import ClientDisconnect

from service.errors.problems import (
    BodyTooLarge,
    Invalid,
    Malformed,
    Problem,
    Unavailable,
    UnsupportedMedia,
)
from service.http.form_parts import WRITE_BYTES, FilePart, MemoryPart
from service.http.inflight_limits import SharedLimit
from service.http.multipart import FRAMING_BYTES, read_form
from service.routes.compat.forms import FilesPart

TYPE = "multipart/form-data; boundary=edge"
MAX_BYTES = 1000


def part(name: str, data: bytes, *headers: str) -> bytes:
    head = "\r\n".join((f'Content-Disposition: form-data; name="{name}"', *headers))
    return b"--edge\r\n%s\r\n\r\n%s\r\n" % (head.encode(), data)


def form(*parts: bytes) -> bytes:
    return b"".join(parts) + b"--edge--\r\n"


def cut(body: bytes, size: int) -> list[bytes]:
    return [body[start : start + size] for start in range(0, len(body), size)]


def request(chunks: Iterable[bytes], *, breaks: bool = False, **headers: str) -> Request:
    """A request with this body in chunks; with `breaks`, the client disconnects before its end."""
    messages: Iterator[dict[str, Any]] = (
        {"type": "http.request", "body": chunk, "more_body": True} for chunk in chunks
    )
    end = {"type": "http.disconnect"} if breaks else {"type": "http.request", "more_body": False}

    async def receive() -> dict[str, Any]:
        return next(messages, end)

    named = {"content-type": TYPE} | {key.replace("_", "-"): text for key, text in headers.items()}
    raw = [(name.encode(), value.encode()) for name, value in named.items()]
    return Request({"type": "http", "method": "POST", "path": "/", "headers": raw}, receive)


class Form:
    """Reader of a form with a file and a text part."""

    def __init__(self, max_bytes: int = MAX_BYTES, out: io.IOBase | None = None) -> None:
        self.out = out or io.BytesIO()
        self.file = FilePart(max_bytes, "the file", self.out)
        self.name = MemoryPart(20, "name")

    async def read(self, request: Request) -> None:
        await read_form(request, {"file": self.file, "name": self.name})


DATA = b"--edge\r\n-\r\n--edg\r\n" + bytes(range(256))
"""File contents with sequences that resemble a boundary."""


@pytest.mark.parametrize("size", [1, 7, 10_000])
async def test_parts_are_read_with_any_chunking(size: int) -> None:
    body = form(part("name", "Größe".encode()), part("file", DATA[8:], "Content-Type: any/thing"))
    read = Form()
    await read.read(request(cut(body, size)))
    assert read.out.getvalue() == DATA[8:]  # type: ignore[attr-defined]
    assert read.file.digest == hashlib.sha256(DATA[8:]).hexdigest()
    assert (read.name.text(), read.file.bytes) == ("Größe", len(DATA[8:]))


async def test_large_form_file_is_not_buffered_in_memory() -> None:
    waiting = []

    class Out(io.BytesIO):
        def write(self, data: Any) -> int:
            waiting.append(len(data))
            return len(data)

    size = 20 * WRITE_BYTES
    body = form(part("file", bytes(size)))
    await Form(size, Out()).read(request(cut(body, 2**16)))
    assert sum(waiting) == size and max(waiting) < 2 * WRITE_BYTES


async def refusal(read: Form, sent: Request) -> Problem:
    with pytest.raises(Problem) as error:
        await read.read(sent)
    return error.value


async def test_many_empty_parts_are_refused() -> None:
    """Each takes memory that no limit on the parts' bytes counts."""
    limit = SharedLimit("bytes", "too_many", 2**20, 2**20)
    files = FilesPart(2**20, "image", limit.hold("acme"))
    body = form(*[part("image", b"")] * 10_000)
    with pytest.raises(Malformed, match="send fewer parts"):
        await read_form(request(cut(body, 2**16)), {"image": files})
    assert len(files.files) < 2500


@pytest.mark.parametrize(
    "content_type",
    ["", "application/json", "multipart/form-data", "multipart/mixed; boundary=edge"],
)
async def test_another_content_type_is_refused(content_type: str) -> None:
    problem = await refusal(Form(), request([], content_type=content_type))
    assert isinstance(problem, UnsupportedMedia) and "NAME=@PATH for a file" in problem.detail


async def test_a_content_encoding_is_refused() -> None:
    problem = await refusal(Form(), request([], content_encoding="gzip"))
    assert isinstance(problem, UnsupportedMedia)


BROKEN = {
    "nothing": b"",
    "no boundary": b"x" * 100,
    "no end": part("file", b"x"),
    "cut off in a header": part("file", b"x")[:20],
    "a header without end": b"--edge\r\n" + b"x" * 10_000,
    "headers without end": b"--edge\r\n" + b"a: b\r\n" * 100,
    "no such header": b"--edge\r\n\0: x\r\n\r\n",
}


@pytest.mark.parametrize("kind", BROKEN)
async def test_a_broken_form_is_malformed(kind: str) -> None:
    problem = await refusal(Form(), request([BROKEN[kind]]))
    assert isinstance(problem, Malformed) and "the form is invalid" in problem.detail


async def test_a_boundary_that_is_too_long_is_malformed() -> None:
    sent = request([], content_type=f"multipart/form-data; boundary={'x' * 300}")
    assert isinstance(await refusal(Form(), sent), Malformed)


@pytest.mark.parametrize(
    ("name", "parts", "said"),
    [
        ("other", [part("other", b"")], "is not a part of the form; available: file, name"),
        ("body", [part("", b"")], "is not a part of the form; available: file, name"),
        (
            "names",
            [part("names", b"")],
            "is not a part of the form; available: file, name; did you mean name?",
        ),
        ("steps", [part("steps", b"")], "is not a part of the form; available: file, name"),
        (
            "name[]",
            [part("name[]", b"")],
            "is not a part of the form; send all of name as JSON, in the part name",
        ),
        (
            "name[a]",
            [part("name[a]", b"")],
            "is not a part of the form; send all of name as JSON, in the part name",
        ),
        ("other[]", [part("other[]", b"")], "is not a part of the form; available: file, name"),
        ("file", [part("file", b""), part("file", b"")], "occurs twice"),
    ],
)
async def test_unknown_or_repeated_form_parts_are_rejected(
    name: str, parts: list[bytes], said: str
) -> None:
    problem = await refusal(Form(), request([form(*parts)]))
    assert isinstance(problem, Invalid)
    assert [(error.field, error.message) for error in problem.errors] == [(name, said)]


async def test_a_text_is_utf_8() -> None:
    read = Form()
    await read.read(request([form(part("name", b"\xff"))]))
    with pytest.raises(Malformed, match="name: byte 0 is not UTF-8"):
        read.name.text()


def endless(reads: list[int]) -> Iterator[bytes]:
    yield part("file", b"")[:-2]
    while True:
        reads.append(1)
        yield bytes(100)


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ([part("file", bytes(MAX_BYTES + 1))], f"the file may have {MAX_BYTES} bytes"),
        ([part("name", bytes(21))], "name may have 20 bytes"),
    ],
)
async def test_a_part_that_is_too_large_is_refused(parts: list[bytes], said: str) -> None:
    problem = await refusal(Form(), request([form(*parts)]))
    assert isinstance(problem, BodyTooLarge) and problem.detail == said


async def test_an_endless_file_ends_with_the_refusal() -> None:
    """A client that waits for `100 Continue` is not asked for more, and no more is read."""
    reads: list[int] = []
    problem = await refusal(Form(), request(endless(reads), expect="100-continue"))
    assert isinstance(problem, BodyTooLarge) and len(reads) == MAX_BYTES // 100 + 1


async def test_form_with_too_large_content_length_is_not_read() -> None:
    reads: list[int] = []
    sent = request(endless(reads), expect="100-continue", content_length=str(10**9))
    problem = await refusal(Form(), sent)
    assert isinstance(problem, BodyTooLarge) and not reads
    assert problem.detail == (
        f"the form may have {FRAMING_BYTES + MAX_BYTES + 20} bytes, of which the file may have"
        f" {MAX_BYTES}"
    )


async def test_data_after_the_form_is_bounded() -> None:
    """The bound holds however large the parts may be."""
    complete = form(part("file", b"x"))
    problem = await refusal(Form(2**30), request([complete, *[bytes(2**15)] * 3]))
    assert isinstance(problem, Malformed) and "follow it" in problem.detail
    await Form().read(request([complete, bytes(FRAMING_BYTES)]))


async def test_a_client_that_leaves() -> None:
    with pytest.raises(ClientDisconnect):
        await Form().read(request([part("file", b"x")], breaks=True))


async def test_full_disk_is_reported() -> None:
    class Full(io.BytesIO):
        def write(self, data: Any) -> int:
            raise OSError(28, "No space left on device")

    problem = await refusal(Form(out=Full()), request([form(part("file", b"x"))]))
    assert isinstance(problem, Unavailable) and "no space for the file" in problem.detail
