"""Detection of this machine's accelerators, and their visibility to a process, before JAX starts.

It does not import JAX, which would claim the accelerators.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

GOOGLE = "0x1ae0"
NVIDIA = "0x10de"
DISPLAY_CLASSES = ("0x0300", "0x0302")
TPUS: Mapping[str, str] = {
    "0x005e": "v4",
    "0x0062": "v5p",
    "0x0063": "v5e",
    "0x006f": "v6e",
    "0x0076": "v7x",
}
"""PCI device → chip. Source: jax/_src/hardware_utils.py."""

BOUNDS: Mapping[int, str] = {1: "1,1,1", 2: "1,2,1", 4: "2,2,1", 8: "2,4,1"}
"""Arrangement of a number of chips of one host, for libtpu."""


def chip(pci: Path = Path("/sys/bus/pci/devices")) -> str | None:
    """Return this machine's kind of accelerator, such as `v6e` or `nvidia`, or None."""
    for device in sorted(pci.glob("*")):
        vendor = _read(device / "vendor")
        if vendor == GOOGLE and (name := TPUS.get(_read(device / "device"))):
            return name
        if vendor == NVIDIA and _read(device / "class")[:6] in DISPLAY_CLASSES:
            return "nvidia"
    return None


def visible(devices: Sequence[int]) -> dict[str, str]:
    """Return environment variables that restrict a process to these accelerators.

    Raises: ValueError: a TPU host cannot be divided this way, or `CUDA_VISIBLE_DEVICES` has fewer.
    """
    if len(devices) not in BOUNDS and chip() in TPUS.values():
        parts = ", ".join(map(str, BOUNDS))
        raise ValueError(f"a TPU host has slices of {parts} chips, not of {len(devices)}")
    named = ",".join(map(str, devices))
    shown = os.environ.get("CUDA_VISIBLE_DEVICES")
    return {
        "CUDA_VISIBLE_DEVICES": named if shown is None else _among(shown, devices),
        "TPU_VISIBLE_CHIPS": named,
        "TPU_CHIPS_PER_PROCESS_BOUNDS": BOUNDS.get(len(devices), ""),
        "TPU_PROCESS_BOUNDS": "1,1,1",
    }


def _among(shown: str, devices: Sequence[int]) -> str:
    """Return these GPUs of the operator's `CUDA_VISIBLE_DEVICES`; empty if it is empty."""
    gpus = shown.split(",") if shown else []
    if gpus and len(gpus) <= max(devices):
        raise ValueError(f"CUDA_VISIBLE_DEVICES={shown} has no GPU number {max(devices)}")
    return ",".join(gpus[number] for number in devices if gpus)


def _read(file: Path) -> str:
    try:
        return file.read_text().strip()
    except OSError:
        return ""
