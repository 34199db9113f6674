"""The TPU compiler's own schedule of a kernel: how many cycles it has laid out.

libtpu writes down, of each kernel that it compiles, which of a core's units work in each cycle.
The last listing of all, `final_hlo`, has lost the cycles in which nothing starts and everybody
waits for a matrix unit: by that one a kernel may be faster than the chip. `pre-delay_hlo` still
has them.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

LISTING = "pre-delay_hlo"


def dump_to(folder: str | Path) -> str:
    """Flags for LIBTPU_INIT_ARGS, which libtpu reads once, when it is loaded."""
    return (
        f"--xla_jf_dump_to={folder} --xla_jf_dump_llo_text=true "
        f"--xla_jf_dump_llo_pass_label_regex={LISTING}.*"
    )


def cycles(folder: Path, compilation: Callable[[], object]) -> dict[str, int]:
    """Return cycles of what is compiled, by file; branches and loop bodies count once.

    Args:
        folder: where libtpu was told to write; emptied.
    """
    for old in folder.iterdir():
        old.unlink()
    compilation()
    return {path.name: _lines(path) for path in folder.glob(f"*{LISTING}*")}


def _lines(path: Path) -> int:
    """Count the lines of the utilization table: one a cycle, its numbers the slots in use."""
    return len(path.read_text().partition("UTILIZATION:\n")[2].splitlines())
