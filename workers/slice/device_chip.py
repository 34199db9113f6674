"""Lookup of a device's chip in the table of chips."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

import jax

from workers.slice.chips import BROAD_TPU, CHIPS, GIB, Chip

KINDS: Mapping[str, str] = {
    "TPU v4": "v4",
    "TPU v5 lite": "v5e",
    "TPU v5e": "v5e",
    "TPU v5p": "v5p",
    "TPU v5": "v5p",
    "TPU v6 lite": "v6e",
    "TPU v6e": "v6e",
    "TPU7x": "tpu7x",
    "TPU v7x": "tpu7x",
    "A100": "a100-80",
    "H100": "h100",
    "H200": "h200",
    "L40S": "l40s",
    "L4": "l4",
}
"""Chip by a pattern of a device's kind; the first match counts."""
CPU = Chip("cpu", "gpu", 1e11, 4 * GIB, 2e10, 5e9, 1e9, BROAD_TPU)
"""Placeholder for any CPU: ranks layouts, but its times mean nothing."""


def chip_of(devices: Sequence[jax.Device]) -> Chip:
    """Return the chip of these devices, with the memory that this process's device reports.

    An unknown kind gets the rates of an H100, which suffices to rank layouts.
    """
    device = next(item for item in devices if item.process_index == jax.process_index())
    chip = _by_kind(device)
    if is_described(device):
        return chip
    limit = (device.memory_stats() or {}).get("bytes_limit") or _share_of_host(device)
    return chip if limit is None else replace(chip, memory_bytes=int(limit))


def is_described(device: jax.Device) -> bool:
    """Return whether a device is only described by a compiler, not present."""
    return bool(device.client.runtime_type == "compile_only_runtime")


def known_chip(device: jax.Device) -> Chip | None:
    """Return the chip in the table, or None for a CPU or an unknown accelerator."""
    if device.platform == "cpu":
        return None
    device_kind = device.device_kind
    matches = (name for kind, name in KINDS.items() if re.search(rf"{kind}\b", device_kind))
    name = next(matches, None)
    return None if name is None else CHIPS[name]


def _by_kind(device: jax.Device) -> Chip:
    return CPU if device.platform == "cpu" else known_chip(device) or CHIPS["h100"]


def _share_of_host(device: jax.Device) -> int | None:
    """Return a virtual CPU device's share of the host's memory; None for accelerators."""
    if device.platform != "cpu":
        return None
    host = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return int(host // jax.local_device_count("cpu"))
