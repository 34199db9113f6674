"""Flags for XLA and libtpu by chip and model: data (flags.toml), set before JAX starts."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from workers.accelerators import TPUS

TABLE = Path(__file__).with_suffix(".toml")
VARIABLES: Mapping[str, str] = {"libtpu": "LIBTPU_INIT_ARGS", "xla": "XLA_FLAGS"}
"""Kind of flag → the environment variable that takes it."""


def chosen(
    chip: str | None, family: str, batching: str = "exact", table: Path = TABLE
) -> dict[str, tuple[str, ...]]:
    """The flags for this family on this chip, by kind; none for a chip without a set."""
    found: dict[str, dict[str, str]] = {kind: {} for kind in VARIABLES}
    for entry in tomllib.loads(table.read_text())["set"]:
        wanted = family in entry.get("families", [family])
        if chip in entry["chips"] and wanted and batching in entry.get("batching", [batching]):
            for kind, flags in found.items():
                flags.update({flag.partition("=")[0]: flag for flag in entry.get(kind, [])})
    return {kind: tuple(flags.values()) for kind, flags in found.items() if flags}


def of_settings(
    flags: Literal["auto"] | Sequence[str], chip: str | None, family: str, batching: str = "exact"
) -> dict[str, tuple[str, ...]]:
    """As the pool's settings have it. On a TPU libtpu reads them all."""
    if flags == "auto":
        return chosen(chip, family, batching)
    kind = "libtpu" if chip in TPUS.values() else "xla"
    return {kind: tuple(flags)} if flags else {}


def environment(flags: Mapping[str, Sequence[str]], base: Mapping[str, str]) -> dict[str, str]:
    """What to set, behind and so under what the operator has set there by hand."""
    return {
        variable: " ".join([*flags[kind], *base.get(variable, "").split()])
        for kind, variable in VARIABLES.items()
        if flags.get(kind)
    }
