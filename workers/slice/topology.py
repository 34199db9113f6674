"""Accelerator topologies, such as `v6e:2x4` or `h100:8`: chip and number of devices."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from workers.slice.chips import CHIPS, Chip

TPU_SIZES = {
    "v4": ("2x2x1", "2x2x2"),
    "v5e": ("1x1", "2x2", "2x4", "4x4"),
    "v5p": ("2x2x1", "2x2x2"),
    "v6e": ("1x1", "2x2", "2x4", "4x4"),
    "tpu7x": ("2x2x1", "2x2x2"),
}
"""Slices that were tested with libtpu's compiler."""
ALIASES = {"v7x": "tpu7x"}


class PlanError(ValueError):
    """Error of an impossible plan; the message states what is possible."""


@dataclass(frozen=True)
class Topology:
    """One slice of TPUs, or the GPUs of one host."""

    name: str
    chip: Chip
    devices: int

    @classmethod
    def parse(cls, text: str) -> Topology:
        """Parse the text of a topology: chip and size, such as `v6e:2x4`.

        Raises: PlanError: unknown chip or size; names the valid ones.
        """
        match = re.fullmatch(r"(?P<chip>[\w-]+):(?P<size>\d+(?:x\d+)*)", text.lower())
        name = ALIASES.get(match["chip"], match["chip"]) if match else ""
        if match is None or name not in CHIPS:
            raise PlanError(f"topology {text!r} is not known; there are {_valid_topologies()}")
        chip, size = CHIPS[name], match["size"]
        if (chip.kind == "gpu" and "x" in size) or int(math.prod(map(int, size.split("x")))) < 1:
            raise PlanError(f"topology {text!r}: of {name} say how many, as in {name}:8")
        if chip.kind == "tpu" and size not in TPU_SIZES[name]:
            raise PlanError(f"topology {text!r}: of {name} there are {', '.join(TPU_SIZES[name])}")
        devices = math.prod(map(int, size.split("x")))
        return cls(f"{name}:{size}", chip, round(devices / chip.chips))


def _valid_topologies() -> str:
    tpus = ", ".join(f"{name}:{sizes[-1]}" for name, sizes in TPU_SIZES.items())
    gpus = ", ".join(f"{name}:8" for name, chip in CHIPS.items() if chip.kind == "gpu")
    return f"{tpus} (or smaller), {gpus} (or another number)"
