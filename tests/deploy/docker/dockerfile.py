"""A Dockerfile, read as far as ours go: stages, instructions, their flags."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
FOLDER = ROOT / "deploy" / "docker"

_VARIABLE = re.compile(r"\$(?:\{(\w+)\}|(\w+))")
_FLAG = re.compile(r"--([\w-]+)=(\S+)\s+")


@dataclass(frozen=True)
class Instruction:
    name: str
    """In capitals."""
    flags: Mapping[str, str]
    text: str

    @property
    def words(self) -> list[str]:
        """Of a list in JSON, or else between spaces."""
        if self.text.startswith("["):
            return list(json.loads(self.text))
        return self.text.split()


@dataclass(frozen=True)
class Stage:
    name: str
    """"" for the last one, where it has none."""
    base: str
    """An image, or the name of an earlier stage; with variables in it."""
    instructions: tuple[Instruction, ...]

    def named(self, name: str) -> list[Instruction]:
        return [each for each in self.instructions if each.name == name]


@dataclass(frozen=True)
class Dockerfile:
    arguments: Mapping[str, str]
    """Before the first stage, with their defaults."""
    stages: tuple[Stage, ...]

    @classmethod
    def read(cls, path: Path) -> Dockerfile:
        arguments: dict[str, str] = {}
        stages: list[Stage] = []
        for each in _instructions(path.read_text("utf-8")):
            if each.name == "FROM":
                base, *named = re.split(r"\s+AS\s+", each.text)
                stages.append(Stage(named[0] if named else "", base, ()))
            elif stages:
                last = stages[-1]
                stages[-1] = Stage(last.name, last.base, (*last.instructions, each))
            else:
                name, _, value = each.text.partition("=")
                arguments[name] = value
        return cls(arguments, tuple(stages))

    def chain(self, given: Mapping[str, str]) -> list[Stage]:
        """What the last stage is made of with these arguments, the first one on a foreign image."""
        by_name = {stage.name: stage for stage in self.stages}
        values = {**self.arguments, **given}
        chain = [self.stages[-1]]
        while (base := filled(chain[0].base, values)) in by_name:
            chain.insert(0, by_name[base])
        return chain


def filled(text: str, values: Mapping[str, str]) -> str:
    """With the variables' values. Raises: KeyError: there is no such variable."""
    return _VARIABLE.sub(lambda found: values[found[1] or found[2]], text)


def _instructions(text: str) -> Iterator[Instruction]:
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    whole = re.sub(r"\\\n\s*", " ", "\n".join(lines))
    for line in filter(None, map(str.strip, whole.splitlines())):
        name, _, rest = line.partition(" ")
        rest, flags = rest.strip(), {}
        while found := _FLAG.match(rest):
            flags[found[1]] = found[2]
            rest = rest[found.end() :]
        yield Instruction(name.upper(), flags, rest)
