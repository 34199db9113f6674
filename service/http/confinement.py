"""Confinement of a child process that reads clients' files, by refusing it system calls.

Code that a hostile file makes a decoder run cannot open sockets, start programs or processes, send
signals, trace others, nor delete, rename or change the modes of files. It can open files; the
child's RLIMIT_FSIZE keeps it from writing to them. On other systems and processors nothing is
refused.

Source: Linux, Documentation/userspace-api/seccomp_filter.rst; include/uapi/linux: seccomp.h,
filter.h, audit.h, prctl.h; arch/*/include/uapi/asm/unistd*.h.
"""

from __future__ import annotations

import ctypes
import errno
import platform
import struct
from collections.abc import Iterable
from typing import NamedTuple

_NO_NEW_PRIVS, _SECCOMP, _FILTER = 38, 22, 2
"""Options of prctl(2)."""
_LOAD, _EQUAL, _AT_LEAST, _HAS_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
"""Instructions of a filter: load a word of the call; jump; give the verdict."""
_NUMBER, _ARCHITECTURE, _FLAGS = 0, 4, 16
"""Places of these words in `struct seccomp_data`; clone's flags are its first argument."""
_ALLOW = 0x7FFF0000
_REFUSE, _UNKNOWN = 0x00050000 | errno.EPERM, 0x00050000 | errno.ENOSYS
_CLONE3, _THREAD = 435, 0x00010000
_X32 = 0x40000000
"""Number from which on x86-64 has the same calls again."""


class SystemCalls(NamedTuple):
    """Numbers of system calls of one processor."""

    architecture: int
    clone: int
    """Refused but for threads; clone3, whose flags no filter sees, is said not to be there."""
    refused: tuple[int, ...]
    """Sockets, programs, signals, tracing, namespaces, changes of files by their paths."""


_COMMON = (424, 425, 438)
"""pidfd_send_signal, io_uring_setup (which does what others are refused), pidfd_getfd."""
CALLS = {
    "x86_64": SystemCalls(
        architecture=0xC000003E,
        clone=56,
        refused=(
            *(41, 42, 43, 44, 46, 49, 50, 53, 288),  # sockets
            *(57, 58, 59, 322),  # fork, vfork, execve, execveat
            *(62, 129, 200, 234, 297),  # kill and its kin
            *(101, 310, 311, 321, 272, 308, 165, 161, 155),  # ptrace to pivot_root
            *(76, 82, 83, 84, 85, 86, 87, 88, 90, 92, 94, 133),  # truncate to mknod
            *(258, 259, 260, 263, 264, 265, 266, 268, 316),  # the same of folders
            *_COMMON,
        ),
    ),
    "aarch64": SystemCalls(
        architecture=0xC00000B7,
        clone=220,
        refused=(
            *(198, 199, 200, 201, 202, 203, 206, 211, 242),
            *(221, 281),
            *(129, 130, 131, 138, 240),
            *(117, 270, 271, 280, 97, 268, 40, 51, 41),
            *(45, 33, 34, 35, 36, 37, 38, 53, 54, 276),
            *_COMMON,
        ),
    ),
}
"""Numbers by machine."""


def refuse_calls() -> bool:
    """Refuse system calls for good; return whether Linux does.

    Files are still opened: modules are imported when a file wants them.
    """
    calls = CALLS.get(platform.machine())
    if calls is None or platform.system() != "Linux":
        return False
    program = b"".join(_instructions(calls))
    buffer = ctypes.create_string_buffer(program, len(program))
    count = len(program) // struct.calcsize("HBBI")
    header = struct.pack("HxxxxxxP", count, ctypes.addressof(buffer))
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    return not prctl(_NO_NEW_PRIVS, 1, 0, 0, 0) and not prctl(_SECCOMP, _FILTER, header, 0, 0)


def _instructions(calls: SystemCalls) -> Iterable[bytes]:
    """Yield a filter that refuses these calls; of another architecture it refuses all."""
    verdicts = [_ALLOW, _REFUSE, _UNKNOWN]
    tests = [
        (_EQUAL, _CLONE3, _UNKNOWN),
        (_AT_LEAST, _X32, _REFUSE),
        *((_EQUAL, number, _REFUSE) for number in sorted(calls.refused)),
    ]
    yield _instruction(_LOAD, _ARCHITECTURE)
    yield _instruction(_EQUAL, calls.architecture, unless=4 + len(tests) + verdicts.index(_REFUSE))
    yield _instruction(_LOAD, _NUMBER)
    yield _instruction(_EQUAL, calls.clone, unless=2)
    yield _instruction(_LOAD, _FLAGS)
    yield _instruction(
        _HAS_BIT, _THREAD, then=len(tests), unless=len(tests) + verdicts.index(_REFUSE)
    )
    for left, (test, number, verdict) in zip(range(len(tests), 0, -1), tests, strict=True):
        yield _instruction(test, number, then=left - 1 + verdicts.index(verdict))
    yield from (_instruction(_RETURN, verdict) for verdict in verdicts)


def _instruction(code: int, value: int, then: int = 0, unless: int = 0) -> bytes:
    """Return an instruction.

    Args:
        then, unless: instructions to skip where a test holds, and where it does not.
    """
    return struct.pack("HBBI", code, then, unless, value)
