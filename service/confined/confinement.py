"""Sandbox for a child process that reads clients' files: memory, file and system call limits.

Code that a hostile file injects into a decoder cannot open sockets, start programs or processes,
send signals or trace others, or change their limits. Nor can it delete, rename or change the modes
of files (seccomp). It can read only the files of Python, installed packages and system libraries,
which late imports need (Landlock, from Linux 5.13 on). It can write no files. Other systems and
processors enforce nothing.

A network namespace would add nothing: no call can open a socket, and a child inherits none but its
standard streams. Creating a namespace requires user namespaces, which containers usually forbid.

Source: Linux, Documentation/userspace-api/seccomp_filter.rst and landlock.rst; include/uapi/linux:
    seccomp.h, filter.h, audit.h, prctl.h, landlock.h; arch/*/include/uapi/asm/unistd*.h.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import resource
import struct
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

_NO_NEW_PRIVS = 38
"""Option of prctl(2)."""
_SET_FILTER, _ALL_THREADS = 1, 1
"""Operation and flag of seccomp(2)."""
_LOAD, _EQUAL, _AT_LEAST, _HAS_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
"""BPF instructions: load a word of the call; jump; return the verdict."""
_NUMBER, _ARCHITECTURE, _FLAGS = 0, 4, 16
"""Offsets of these words in `struct seccomp_data`. Clone's flags are its first argument."""
_ALLOW = 0x7FFF0000
_REFUSE, _UNKNOWN = 0x00050000 | errno.EPERM, 0x00050000 | errno.ENOSYS
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
"""System calls of Landlock, on every processor."""
_PATH_BENEATH = 1
_READ_FILE, _READ_FOLDER, _ALL_FILE_ACCESS = 1 << 2, 1 << 3, (1 << 13) - 1
"""Access rights of Landlock's first version."""
_SYSTEM_LIBRARIES = ("/usr", "/lib", "/lib64")
_CLONE3, _THREAD = 435, 0x00010000
_X32 = 0x40000000
"""Number from which x86-64 repeats the calls (x32 ABI)."""

BASE_BYTES = 320 * 2**20
"""Memory of a child without pixels: the interpreter, its libraries, and the file itself."""
BYTES_A_PIXEL = 24
"""Memory per pixel. WebP decoding needs four copies of four bytes; a progressive JPEG needs its
coefficients and two copies."""


class SystemCalls(NamedTuple):
    """Numbers of Linux system calls for one processor architecture."""

    architecture: int
    seccomp: int
    clone: int
    """Denied except for threads. clone3, whose flags filters cannot read, returns ENOSYS."""
    refused: tuple[int, ...]
    """Sockets, programs, signals, limits, tracing, namespaces, changes of files by path."""


_COMMON = (424, 425, 438, 452)
"""pidfd_send_signal, io_uring_setup (which bypasses the filter), pidfd_getfd, fchmodat2."""
CALLS = {
    "x86_64": SystemCalls(
        architecture=0xC000003E,
        seccomp=317,
        clone=56,
        refused=(
            *(41, 42, 43, 44, 46, 49, 50, 53, 288, 307),  # sockets
            *(57, 58, 59, 322),  # fork, vfork, execve, execveat
            *(62, 129, 200, 234, 297, 302),  # kill and related calls, prlimit64
            *(101, 310, 311, 321, 272, 308, 165, 161, 155),  # ptrace to pivot_root
            *(76, 82, 83, 84, 85, 86, 87, 88, 90, 92, 94, 133),  # truncate to mknod
            *(258, 259, 260, 263, 264, 265, 266, 268, 316),  # the same, relative to folders
            *_COMMON,
        ),
    ),
    "aarch64": SystemCalls(
        architecture=0xC00000B7,
        seccomp=277,
        clone=220,
        refused=(
            *(198, 199, 200, 201, 202, 203, 206, 211, 242, 269),
            *(221, 281),
            *(129, 130, 131, 138, 240, 261),
            *(117, 270, 271, 280, 97, 268, 40, 51, 41),
            *(45, 33, 34, 35, 36, 37, 38, 53, 54, 276),
            *_COMMON,
        ),
    ),
}
"""Numbers by machine."""


def environment() -> dict[str, str]:
    """Return the environment variables of a child process.

    It has neither settings nor secrets. NumPy starts no threads, since Landlock confines only the
    thread that calls `refuse_files`, and threads that it starts later.
    """
    names = ("LD_LIBRARY_PATH",)
    passed_on = {name: os.environ[name] for name in names if name in os.environ}
    return {**passed_on, "OPENBLAS_NUM_THREADS": "1"}


def bound_memory(max_pixels: int) -> None:
    """Limit the memory of this process, which decodes images, and forbid writing files."""
    bounds = {
        resource.RLIMIT_AS: memory_bytes(max_pixels),
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_FSIZE: 0,
    }
    for kind, limit in bounds.items():
        resource.setrlimit(kind, (limit, limit))


def memory_bytes(max_pixels: int) -> int:
    """Compute the memory that a process may use to decode images of that many pixels."""
    return BASE_BYTES + BYTES_A_PIXEL * max_pixels


def refuse_calls() -> bool:
    """Deny system calls permanently, in all threads; return whether Linux enforces it."""
    calls = CALLS.get(platform.machine())
    if calls is None or platform.system() != "Linux":
        return False
    program = b"".join(_instructions(calls))
    buffer = ctypes.create_string_buffer(program, len(program))
    count = len(program) // struct.calcsize("HBBI")
    header = struct.pack("HxxxxxxP", count, ctypes.addressof(buffer))
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_NO_NEW_PRIVS, 1, 0, 0, 0)
    is_refused: bool = libc.syscall(calls.seccomp, _SET_FILTER, _ALL_THREADS, header) == 0
    return is_refused


def refuse_files(*descriptors: int) -> bool:
    """Deny opening files in this thread, except those that imports need.

    Returns whether Linux enforces it.

    Args:
        descriptors: open files that may be opened again.
    """
    if platform.system() != "Linux":
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    handled = ctypes.c_uint64(_ALL_FILE_ACCESS)
    ruleset = libc.syscall(_CREATE_RULESET, ctypes.byref(handled), ctypes.sizeof(handled), 0)
    if ruleset < 0:
        return False
    for folder in _imported_from():
        opened = os.open(folder, os.O_PATH)
        _allow(libc, ruleset, opened, _READ_FILE | _READ_FOLDER)
        os.close(opened)
    for descriptor in descriptors:
        _allow(libc, ruleset, descriptor, _READ_FILE)
    libc.prctl(_NO_NEW_PRIVS, 1, 0, 0, 0)
    is_refused: bool = libc.syscall(_RESTRICT_SELF, ruleset, 0) == 0
    os.close(ruleset)
    return is_refused


def _imported_from() -> Iterable[str]:
    """Yield folders that imports read: Python's, installed packages', ours and the system's."""
    packages = (str(Path(__file__).parents[2] / name) for name in ("models", "service"))
    folders = (sys.prefix, sys.base_prefix, *packages, *_SYSTEM_LIBRARIES)
    yield from (folder for folder in folders if Path(folder).is_dir())


def _allow(libc: ctypes.CDLL, ruleset: int, descriptor: int, access: int) -> None:
    """Allow access to a file, or to everything in a folder, in a Landlock rule set."""
    rule = struct.pack("=Qi", access, descriptor)
    libc.syscall(_ADD_RULE, ruleset, _PATH_BENEATH, rule, 0)


def _instructions(calls: SystemCalls) -> Iterable[bytes]:
    """Yield a BPF program that denies these calls, and all calls of other architectures."""
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
    for remaining, (test, number, verdict) in zip(range(len(tests), 0, -1), tests, strict=True):
        yield _instruction(test, number, then=remaining - 1 + verdicts.index(verdict))
    yield from (_instruction(_RETURN, verdict) for verdict in verdicts)


def _instruction(code: int, value: int, then: int = 0, unless: int = 0) -> bytes:
    """Encode one instruction of the seccomp (BPF) program.

    Args:
        then, unless: instructions to skip if a test is true, and if it is false.
    """
    return struct.pack("HBBI", code, then, unless, value)
