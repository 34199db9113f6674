"""Kinds of files that people give as weights, recognized by their first bytes. No JAX.

The ending of a name decides nothing: downloads are renamed, and a repository's file may be a
pointer, a web page or an error message.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

BEGINNING_BYTES = 512
"""Number of first bytes that `kind_of` needs."""
MAX_HEADER_BYTES = 100_000_000
"""Maximum header length of the safetensors format, and of GGUF files here."""
MAX_HEADER_MARKS = 2_000_000
"""Maximum braces, brackets and commas of a header, which bound the memory of parsing it: about
180,000 arrays, or megabytes of metadata."""
ENDINGS = (".safetensors", ".sft", ".gguf")
"""Endings of weight files, in lowercase, where only names are known: in listings and URLs."""
PEFT_FILE, PEFT_CONFIG = "adapter_model.safetensors", "adapter_config.json"
"""Names of an adapter's weights and config in a folder that PEFT saves."""


@dataclass(frozen=True)
class FileKind:
    """Recognized kind of a file that a user may have given by mistake.

    Args:
        title: noun phrase for messages.
        remedy: what to do with the file; empty: a reader decides.
    """

    title: str
    remedy: str = ""

    @property
    def refusal(self) -> str:
        """Message about a file of this kind that is not supported, without the file's name."""
        return f"{self.title}; {self.remedy}"


_CONVERT = (
    "where you trust it, convert it once: "
    'python -c "import sys, torch; from safetensors.torch import save_file; '
    "d = torch.load(sys.argv[1], map_location='cpu', weights_only=True); "
    "d = d.get('params_ema', d.get('params', d.get('state_dict', d))); "
    "save_file({k: v.contiguous() for k, v in d.items() if hasattr(v, 'contiguous')}, "
    'sys.argv[2])" IN.ckpt OUT.safetensors'
)
_AGAIN = "download the file itself, with the access token that its page asks for"

SAFETENSORS = FileKind("a safetensors file")
GGUF = FileKind("a GGUF file")
EMPTY = FileKind("an empty file", "fetch or export it again")
ZEROS = FileKind("a file that begins with zeros, as an interrupted download", "fetch it again")
POINTER = FileKind(
    "a git-lfs pointer, not the weights that it names",
    "fetch them with `git lfs pull`, or download the file from its repository",
)
PAGE = FileKind("an HTML or XML page, such as a login or error page, not weights", _AGAIN)
TEXT = FileKind("a text, such as the error message of a server, not weights", _AGAIN)
PICKLE = FileKind(
    "a pickled checkpoint, which can run code when it is read and is never opened", _CONVERT
)
ZIPPED = FileKind(
    "a ZIP archive, such as a pickled checkpoint of PyTorch (.pt, .ckpt), which can run code when "
    "it is read and is never opened",
    _CONVERT,
)
ARCHIVE = FileKind("a compressed archive", "unpack it, and give the weights in it")
ARRAY = FileKind("a NumPy or HDF5 file, not weights in safetensors", "export them as safetensors")
UNKNOWN = FileKind("a file of an unknown kind")

_MAGICS: tuple[tuple[FileKind, tuple[bytes, ...]], ...] = (
    (GGUF, (b"GGUF",)),
    (POINTER, (b"version https://git-lfs", b"version https://hawser")),
    (ZIPPED, (b"PK\x03\x04", b"PK\x05\x06")),
    (PICKLE, tuple(b"\x80" + bytes([protocol]) for protocol in range(2, 6))),
    (ARCHIVE, (b"\x1f\x8b", b"7z\xbc\xaf\x27\x1c", b"Rar!", b"\xfd7zXZ", b"\x28\xb5\x2f\xfd")),
    (ARRAY, (b"\x93NUMPY", b"\x89HDF")),
)
_LENGTH_BYTES = 8
_TEXT = re.compile(rb"[\t\n\f\r\x20-\x7e\x80-\xff]+")
_OLD_PICKLE = re.compile(rb"\(?(?:[dl]p\d+\n|c[\w.]+\n[\w.]+\n)")
"""Beginning of a pickle of protocol 0, which is a text: a list, dictionary or import."""
_PAGE = re.compile(
    rb"(?:\xef\xbb\xbf)?\s*<(?:!doctype|html|head|\?xml|error|script)", re.IGNORECASE
)


def kind_of(beginning: bytes, size: int) -> FileKind:
    """Recognize a file by its first `BEGINNING_BYTES` bytes.

    A header that cannot be is still that of its kind: the kind's reader states what is wrong.

    Args:
        size: of the file, in bytes.
    """
    tests: tuple[tuple[FileKind, Callable[[bytes], bool]], ...] = (
        (EMPTY, lambda data: not size),
        (SAFETENSORS, _is_safetensors),
        (ZEROS, lambda data: not any(data)),
        *((kind, lambda data, magics=magics: data.startswith(magics)) for kind, magics in _MAGICS),
        (PAGE, lambda data: _PAGE.match(data) is not None),
        (PICKLE, lambda data: _OLD_PICKLE.match(data) is not None),
        (TEXT, lambda data: _TEXT.fullmatch(data) is not None and _is_utf8(data)),
    )
    return next((kind for kind, matches in tests if matches(beginning)), UNKNOWN)


def _is_safetensors(beginning: bytes) -> bool:
    """Return whether a file begins as safetensors: a length below a terabyte, then a JSON object.

    Source: huggingface/safetensors, README.md, "Format".
    """
    return beginning[_LENGTH_BYTES : _LENGTH_BYTES + 1] == b"{" and not any(beginning[5:8])


def _is_utf8(beginning: bytes) -> bool:
    """Return whether bytes are UTF-8, except for a character that is cut off at the end."""
    try:
        beginning.decode()
    except UnicodeDecodeError as error:
        return error.start >= len(beginning) - 3 and len(beginning) == BEGINNING_BYTES
    return True


def header_marks(header: bytes) -> int:
    """Return the number of braces, brackets and commas of a JSON header."""
    return sum(header.count(mark) for mark in (b"{", b"[", b","))


def has_weight_ending(name: str) -> bool:
    """Return whether a file name has a weight file's extension, in any case."""
    return name.lower().endswith(ENDINGS)
