"""Composition of a script: its own text, behind those definitions of shared files that it uses.

A server makes every function of a script anew at each call, used or not, and keeps all of them in
memory for each script. So a script has no others than it may reach.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

_COMMENT = re.compile(r"--.*")
_STATEMENT = re.compile(r"^(?=\w)(?!end\b|else).*\n(?:(?:[ )}\]].*|end\b.*|else.*)?\n)*", re.M)
"""Statement at the top of a Lua text, with all lines that belong to it."""
_DEFINED = re.compile(r"local (?:function )?(\w+(?:, \w+)*)")
_NAME = re.compile(r"(?<![.\w'])[A-Za-z_]\w*")


def composed(shared: Sequence[str], own: str) -> str:
    """Return a script's text behind those statements of shared ones that it reaches.

    Statements that define nothing, such as loops, stay with what they need.
    """
    statements = _STATEMENT.findall(_COMMENT.sub("", "\n".join(shared)))
    own = _COMMENT.sub("", own)
    reached = _names(own)
    kept: set[int] = set()
    while more := {
        place
        for place, statement in enumerate(statements)
        if place not in kept and _is_needed(statement, reached)
    }:
        kept |= more
        reached = reached.union(*(_names(statements[place]) for place in more))
    return "".join([*(statements[place] for place in sorted(kept)), own])


def _is_needed(statement: str, reached: set[str]) -> bool:
    defined = _DEFINED.match(statement)
    return defined is None or not reached.isdisjoint(defined[1].split(", "))


def _names(text: str) -> set[str]:
    return set(_NAME.findall(text))
