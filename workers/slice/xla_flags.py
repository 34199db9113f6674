"""XLA and libtpu flags by chip and model, from xla_flags.toml; set before JAX starts."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from workers.slice.devices import TPUS

TABLE = Path(__file__).with_suffix(".toml")
VARIABLES: Mapping[str, str] = {"libtpu": "LIBTPU_INIT_ARGS", "xla": "XLA_FLAGS"}
"""Kind of flag → its environment variable."""


def chosen(
    chip: str | None, family: str, batching: str = "exact", table: Path = TABLE
) -> dict[str, tuple[str, ...]]:
    """Return the flag table's XLA flags for a family on a chip, by kind; empty for other chips."""
    sets = list(_sets(chip, family, batching, table))
    merged_flags = {kind: merged(*(entry.get(kind, ()) for entry in sets)) for kind in VARIABLES}
    return {kind: flags for kind, flags in merged_flags.items() if flags}


def of_settings(
    flags: Literal["auto"] | Sequence[str], chip: str | None, family: str, batching: str = "exact"
) -> dict[str, tuple[str, ...]]:
    """Combine the table's XLA flags with a pool's flags, which override them."""
    flags_of_table = chosen(chip, family, batching)
    if flags == "auto":
        return flags_of_table
    kind = "libtpu" if chip in TPUS.values() else "xla"
    with_own = {**flags_of_table, kind: merged(flags_of_table.get(kind, ()), flags)}
    return {kind: flags for kind, flags in with_own.items() if flags}


def check_batching(
    given: Sequence[str], chip: str | None, family: str, batching: str, table: Path = TABLE
) -> None:
    """Verify that XLA flags do not conflict with those that the batching mode needs.

    Raises: ValueError: a flag overrides one that the table has for this batching mode.
    """
    sets = [entry for entry in _sets(chip, family, batching, table) if "batching" in entry]
    needed = merged(*(entry.get(kind, ()) for entry in sets for kind in VARIABLES))
    given_by_name = {name_of(flag): flag for flag in given}
    for flag in needed:
        value = given_by_name.get(name_of(flag), flag)
        if value != flag:
            raise ValueError(f'batching = "{batching}" needs {flag}, not {value}')


def merged(*sets: Sequence[str]) -> tuple[str, ...]:
    """Merge sets of XLA flags; the last of each name wins."""
    return tuple({name_of(flag): flag for flags in sets for flag in flags}.values())


def name_of(flag: str) -> str:
    """Return the name of an XLA flag."""
    return flag.partition("=")[0]


def _sets(chip: str | None, family: str, batching: str, table: Path) -> Iterator[dict[str, Any]]:
    """Yield the entries of the XLA flag table for this chip, family and batching mode."""
    for entry in tomllib.loads(table.read_text())["set"]:
        wanted = family in entry.get("families", [family])
        if chip in entry["chips"] and wanted and batching in entry.get("batching", [batching]):
            yield entry


def environment(flags: Mapping[str, Sequence[str]], base: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables with XLA flags; the operator's own flags override them."""
    return {
        variable: " ".join([*flags[kind], *base.get(variable, "").split()])
        for kind, variable in VARIABLES.items()
        if flags.get(kind)
    }
