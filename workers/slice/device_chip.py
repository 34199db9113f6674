"""The chip that a device of this process is, as the table of chips has it."""

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
"""Chip by a pattern of a device's kind. The first that matches counts."""
CPU = Chip("cpu", "gpu", 1e11, 4 * GIB, 2e10, 5e9, 1e9, BROAD_TPU)
"""Chip that stands for any machine: ranks layouts, and claims nothing about seconds."""


def chip_of(devices: Sequence[jax.Device]) -> Chip:
    """The chip of devices that are there, with the memory that this process's say they have.

    A kind that is not in the table gets the rates of an H100: good enough to rank layouts.
    """
    device = next(one for one in devices if one.process_index == jax.process_index())
    chip = _by_kind(device)
    if is_described(device):
        return chip
    limit = (device.memory_stats() or {}).get("bytes_limit") or _share_of_host(device)
    return chip if limit is None else replace(chip, memory_bytes=int(limit))


def is_described(device: jax.Device) -> bool:
    """Return whether a device is not there: a compiler describes it."""
    return device.client.runtime_type == "compile_only_runtime"


def known_chip(device: jax.Device) -> Chip | None:
    """Return the chip of the table; None: no accelerator, or none of those."""
    if device.platform == "cpu":
        return None
    seen = device.device_kind
    found = (name for kind, name in KINDS.items() if re.search(rf"{kind}\b", seen))
    name = next(found, None)
    return None if name is None else CHIPS[name]


def _by_kind(device: jax.Device) -> Chip:
    return CPU if device.platform == "cpu" else known_chip(device) or CHIPS["h100"]


def _share_of_host(device: jax.Device) -> int | None:
    """Virtual devices share the machine's memory."""
    if device.platform != "cpu":
        return None
    host = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return int(host // jax.local_device_count("cpu"))
