"""Documentation of Redis keys: the schema and each script's header name all keys that the scripts
use.

`audit.py` checks at run time that no other keys exist.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from service.jobs.redis import keys
from service.jobs.scripts import composition
from tests.service.jobs.audit import SCHEMA

TEXTS = {path.stem: path.read_text() for path in Path(composition.__file__).parent.glob("*.lua")}
USED = re.compile(r"\b(?:key|of_model)\('(\w+)'")
CHANNELS = {"wake", "stopped", "queued"}


def head(name: str) -> str:
    header = re.match(r"(--.*\n)+", TEXTS[name])
    return header[0] if header else ""


def named(name: str) -> set[str]:
    """Words in the script's header, and in the headers that it refers to (`common's`)."""
    heads = head(name)
    if name in composition.SHARED or "common's" in heads:
        heads += "".join(map(head, composition.SHARED))
    extra = composition.EXTRA_SOURCES.values()
    heads += "".join(head(part) for part in extra if f"{part}'s" in heads)
    return set(re.findall(r"\w+", heads))


@pytest.mark.parametrize("name", sorted(TEXTS))
def test_keys_are_named(name: str) -> None:
    used = set(USED.findall(TEXTS[name]))
    assert used <= {pattern.split(":")[0] for pattern in SCHEMA} | CHANNELS
    assert used <= named(name)


def test_channels_are_named() -> None:
    section = (keys.__doc__ or "").partition("Channels: ")[2]
    assert set(re.findall(r"`(\w+)`", section.partition("\n\n")[0])) == CHANNELS
