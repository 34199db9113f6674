"""Parser for the project's Dockerfiles: stages, instructions and flags."""

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
    """Name in capitals."""
    flags: Mapping[str, str]
    text: str

    @property
    def words(self) -> list[str]:
        """Words of a JSON list, or of text separated by spaces."""
        if self.text.startswith("["):
            return list(json.loads(self.text))
        return self.text.split()


@dataclass(frozen=True)
class Stage:
    name: str
    """"" for a last stage without a name."""
    base: str
    """An image or an earlier stage's name; may contain variables."""
    instructions: tuple[Instruction, ...]

    def named(self, name: str) -> list[Instruction]:
        return [each for each in self.instructions if each.name == name]


@dataclass(frozen=True)
class Dockerfile:
    arguments: Mapping[str, str]
    """ARGs before the first stage, with their defaults."""
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

    def chain(self, overrides: Mapping[str, str]) -> list[Stage]:
        """Return the stages that the last stage builds on, base first; the first uses an external
        image."""
        by_name = {stage.name: stage for stage in self.stages}
        values = {**self.arguments, **overrides}
        chain = [self.stages[-1]]
        while (base := filled(chain[0].base, values)) in by_name:
            chain.insert(0, by_name[base])
        return chain


def filled(text: str, values: Mapping[str, str]) -> str:
    """Fill in variables. Raises: KeyError: a variable is undefined."""
    return _VARIABLE.sub(lambda match: values[match[1] or match[2]], text)


def _instructions(text: str) -> Iterator[Instruction]:
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", " ", "\n".join(lines))
    for line in filter(None, map(str.strip, joined.splitlines())):
        name, _, rest = line.partition(" ")
        rest, flags = rest.strip(), {}
        while match := _FLAG.match(rest):
            flags[match[1]] = match[2]
            rest = rest[match.end() :]
        yield Instruction(name.upper(), flags, rest)
