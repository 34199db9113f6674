"""Texts of the scripts: each script's file, preceded by the shared definitions that it uses.

A server creates every function of a script at each call, used or not, and keeps them in memory per
script. So a script contains only functions that it may reach.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from functools import cache
from importlib.resources import files

SHARED = ("common", "order", "quota", "ledger", "transitions")
"""Source files that every script may use, in this order."""
EXTRA_SOURCES = {
    "delete": "forget",
    "reap": "forget",
    "claim_jobs": "next_job",
    "preempt": "next_job",
}
"""Additional source file of these scripts, after the shared ones."""
PREPENDED = {*SHARED, *EXTRA_SOURCES.values()}
"""Source files that are not scripts themselves."""
_COMMENT = re.compile(r"--.*")
_STATEMENT = re.compile(r"^(?=\w)(?!end\b|else).*\n(?:(?:[ )}\]].*|end\b.*|else.*)?\n)*", re.M)
"""Top-level statement of a Lua text, with all its lines."""
_DEFINED = re.compile(r"local (?:function )?(\w+(?:, \w+)*)")
_NAME = re.compile(r"(?<![.\w'])[A-Za-z_]\w*")


def parts(name: str) -> tuple[str, ...]:
    """Return the names of a script's source files, in their order."""
    extra = (EXTRA_SOURCES[name],) if name in EXTRA_SOURCES else ()
    return (*SHARED, *extra, name)


@cache
def source(name: str) -> str:
    """Return the text that the server runs: the script after the shared functions it uses."""
    folder = files(__package__)
    *shared, text = (folder.joinpath(f"{part}.lua").read_text() for part in parts(name))
    return composed(shared, text)


@cache
def digest(text: str) -> str:
    """Return the SHA-1 by which the server caches a script."""
    return hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()


def composed(shared: Sequence[str], text: str) -> str:
    """Return a Lua script's text after the shared statements that it reaches.

    Statements that define nothing, such as loops, are always included.

    Args:
        text: text of the script itself.
    """
    statements = _STATEMENT.findall(_COMMENT.sub("", "\n".join(shared)))
    text = _COMMENT.sub("", text)
    reached = _names(text)
    included: set[int] = set()
    while more := {
        place
        for place, statement in enumerate(statements)
        if place not in included and _is_needed(statement, reached)
    }:
        included |= more
        reached = reached.union(*(_names(statements[place]) for place in more))
    return "".join([*(statements[place] for place in sorted(included)), text])


def _is_needed(statement: str, reached: set[str]) -> bool:
    defined = _DEFINED.match(statement)
    return defined is None or not reached.isdisjoint(defined[1].split(", "))


def _names(text: str) -> set[str]:
    return set(_NAME.findall(text))
