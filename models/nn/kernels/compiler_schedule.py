"""Cycle counts of kernels, read from the TPU compiler's schedule.

For each kernel that it compiles, libtpu writes which units of a core are busy in each cycle. The
last listing, `final_hlo`, lacks the cycles in which nothing starts and all units wait for a matrix
unit: by that listing a kernel may be faster than the chip. `pre-delay_hlo` has them.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

LISTING = "pre-delay_hlo"


def dump_to(folder: str | Path) -> str:
    """Return flags for LIBTPU_INIT_ARGS, which libtpu reads once, when it is loaded."""
    return (
        f"--xla_jf_dump_to={folder} --xla_jf_dump_llo_text=true "
        f"--xla_jf_dump_llo_pass_label_regex={LISTING}.*"
    )


def cycles(folder: Path, compilation: Callable[[], object]) -> dict[str, int]:
    """Return the cycles of compiled kernels by file; branches and loop bodies count once.

    Args:
        folder: libtpu's dump folder, emptied first.
    """
    for old in folder.iterdir():
        old.unlink()
    compilation()
    return {path.name: _lines(path) for path in folder.glob(f"*{LISTING}*")}


def _lines(path: Path) -> int:
    """Count the lines of a compiler's utilization table: one per cycle."""
    return len(path.read_text().partition("UTILIZATION:\n")[2].splitlines())
