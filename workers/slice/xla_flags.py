"""Flags for XLA and libtpu by chip and model: data (xla_flags.toml), set before JAX starts."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from workers.slice.devices import TPUS

TABLE = Path(__file__).with_suffix(".toml")
VARIABLES: Mapping[str, str] = {"libtpu": "LIBTPU_INIT_ARGS", "xla": "XLA_FLAGS"}
"""Kind of flag → the environment variable that takes it."""


def chosen(
    chip: str | None, family: str, batching: str = "exact", table: Path = TABLE
) -> dict[str, tuple[str, ...]]:
    """The flags for this family on this chip, by kind; none for a chip without a set."""
    sets = list(_sets(chip, family, batching, table))
    found = {kind: merged(*(entry.get(kind, ()) for entry in sets)) for kind in VARIABLES}
    return {kind: flags for kind, flags in found.items() if flags}


def of_settings(
    flags: Literal["auto"] | Sequence[str], chip: str | None, family: str, batching: str = "exact"
) -> dict[str, tuple[str, ...]]:
    """The table's, and the pool's own beside them or in their place; on a TPU for libtpu."""
    found = chosen(chip, family, batching)
    if flags == "auto":
        return found
    kind = "libtpu" if chip in TPUS.values() else "xla"
    with_own = {**found, kind: merged(found.get(kind, ()), flags)}
    return {kind: flags for kind, flags in with_own.items() if flags}


def check_batching(
    given: Sequence[str], chip: str | None, family: str, batching: str, table: Path = TABLE
) -> None:
    """Check flags against those that exact batching needs.

    Raises: ValueError: a flag undoes what the table has for this kind of batching alone.
    """
    sets = [one for one in _sets(chip, family, batching, table) if "batching" in one]
    needed = merged(*(one.get(kind, ()) for one in sets for kind in VARIABLES))
    own = {name_of(flag): flag for flag in given}
    for flag in needed:
        found = own.get(name_of(flag), flag)
        if found != flag:
            raise ValueError(f'batching = "{batching}" needs {flag}, not {found}')


def merged(*sets: Sequence[str]) -> tuple[str, ...]:
    """Flags of all sets; of one name the last."""
    return tuple({name_of(flag): flag for flags in sets for flag in flags}.values())


def name_of(flag: str) -> str:
    """Return the name of an XLA flag."""
    return flag.partition("=")[0]


def _sets(chip: str | None, family: str, batching: str, table: Path) -> Iterator[dict[str, Any]]:
    """Yield those entries of the table that hold for all of these."""
    for entry in tomllib.loads(table.read_text())["set"]:
        wanted = family in entry.get("families", [family])
        if chip in entry["chips"] and wanted and batching in entry.get("batching", [batching]):
            yield entry


def environment(flags: Mapping[str, Sequence[str]], base: Mapping[str, str]) -> dict[str, str]:
    """Return variables to set; what the operator has set there by hand comes last and wins."""
    return {
        variable: " ".join([*flags[kind], *base.get(variable, "").split()])
        for kind, variable in VARIABLES.items()
        if flags.get(kind)
    }
