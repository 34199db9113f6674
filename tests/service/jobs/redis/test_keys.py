"""The schema of Redis' keys names all that the scripts use, and so does each script's own header.
That nothing else is there when they run, `audit.py` sees."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from service.jobs.redis import keys
from service.jobs.scripts import runner
from tests.service.jobs.audit import SCHEMA

TEXTS = {path.stem: path.read_text() for path in Path(runner.__file__).parent.glob("*.lua")}
USED = re.compile(r"\b(?:key|of_model)\('(\w+)'")
CHANNELS = {"wake", "stopped", "queued"}


def head(name: str) -> str:
    found = re.match(r"(--.*\n)+", TEXTS[name])
    return found[0] if found else ""


def named(name: str) -> set[str]:
    """In its head, and in those of the scripts that it points to (`common's`)."""
    heads = head(name)
    if name in runner.SHARED or "common's" in heads:
        heads += "".join(map(head, runner.SHARED))
    heads += "".join(head(part) for part in runner.OF_TWO.values() if f"{part}'s" in heads)
    return set(re.findall(r"\w+", heads))


@pytest.mark.parametrize("name", sorted(TEXTS))
def test_keys_are_named(name: str) -> None:
    used = set(USED.findall(TEXTS[name]))
    assert used <= {pattern.split(":")[0] for pattern in SCHEMA} | CHANNELS
    assert used <= named(name)


def test_channels_are_named() -> None:
    said = (keys.__doc__ or "").partition("Channels: ")[2]
    assert set(re.findall(r"`(\w+)`", said.partition("\n\n")[0])) == CHANNELS
