"""A pool's process with steps and tiles that last, while a file lies beside its settings: a test
meets it in the midst of a job, however late it comes to look. It is `atelier` in all else."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PACE_S = 0.25
"""Of a step or a tile; a job of some dozens of them takes longer than any test is late."""


@contextmanager
def slowly(config: Path) -> Iterator[None]:
    """Hold all pools of these settings to the pace, meanwhile."""
    file = _file(config)
    file.touch()
    try:
        yield
    finally:
        file.unlink()


def pace() -> None:
    """Let this process be held to the pace."""
    from workers.engine.step_loop import StepLoop
    from workers.engine.upscaling import Upscaling

    file = _file(Path(os.environ["ATELIER_CONFIG"]))

    def paced(of: type, name: str) -> None:
        plain = getattr(of, name)

        def late(*args: Any) -> Any:
            if file.exists():
                time.sleep(PACE_S)
            return plain(*args)

        setattr(of, name, late)

    paced(StepLoop, "_settle")
    paced(Upscaling, "_draw")


def _file(config: Path) -> Path:
    return config.with_name("slow")


if __name__ == "__main__":
    import atelier

    pace()
    sys.exit(atelier.main())
