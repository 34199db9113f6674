"""Several renderings of an object → one text of a template, with a condition where they differ."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from graphlib import TopologicalSorter
from itertools import chain, groupby, pairwise
from operator import itemgetter
from typing import Any

import yaml

Case = tuple[str, ...]
"""Value of each choice."""
Variants = Mapping[Case, Any]
"""Renderings by case; a case that is missing has none."""
IDENTITIES = ("name", "mountPath", "key")
"""Keys by which items of a list are the same ones."""
END = "{{- end }}"


@dataclass(frozen=True)
class Choice:
    """Something that differs between renderings."""

    expression: str
    """Expression by which the template asks for its value."""
    values: tuple[str, ...]

    def is_one_of(self, values: Sequence[str]) -> str:
        """Return a condition of the template."""
        if len(values) == 1:
            return f'eq {self.expression} "{values[0]}"'
        listed = " ".join(f'"{value}"' for value in values)
        return f"has {self.expression} (list {listed})"


@dataclass(frozen=True)
class Merger:
    """Merges renderings that differ by these choices."""

    choices: Sequence[Choice]
    dump: Callable[[Any], str]
    """Writes YAML."""

    def document(self, variants: Variants, cases: Iterable[Case], head: str = "---") -> str:
        """Return the text of an object that some of all cases have, below a line of its own."""
        lines = chain([head] if head else [], self._mapping(variants, 0))
        return "\n".join(_below([(self.condition([*variants], [*cases]), lines)])) + "\n"

    def condition(self, there: Sequence[Case], cases: Sequence[Case]) -> str:
        """Return what is true of these of all cases alone; empty: they are all.

        Raises: ValueError: no conjunction of the choices says it.
        """
        parts, product = [], set(cases)
        for at, choice in enumerate(self.choices):
            have = {case[at] for case in there}
            if have != {case[at] for case in cases}:
                parts.append(choice.is_one_of([one for one in choice.values if one in have]))
                product = {case for case in product if case[at] in have}
        if product != set(there):
            raise ValueError(f"no conjunction: {sorted(there)} of {sorted(cases)}")
        if len(parts) < 2:
            return "".join(parts)
        return " ".join(["and", *(f"({part})" for part in parts)])

    def _mapping(self, variants: Variants, indent: int) -> Iterator[str]:
        """Yield the lines of a mapping."""
        parts = []
        for key in _in_order(list(one) for one in variants.values()):
            there = {case: one[key] for case, one in variants.items() if key in one}
            condition = self.condition([*there], [*variants])
            parts.append((condition, self._entry(key, there, indent)))
        yield from _below(parts)

    def _entry(self, key: str, variants: Variants, indent: int) -> Iterator[str]:
        """Yield a key with its value."""
        first, *others = variants.values()
        if all(one == first for one in others):
            yield from self._dumped({key: first}, indent)
        elif all(isinstance(one, dict) and one for one in variants.values()):
            yield from self._dumped({key: None}, indent, cut=" null")
            yield from self._mapping(variants, indent + 2)
        elif identity := _identity(variants.values()):
            yield from self._dumped({key: None}, indent, cut=" null")
            yield from self._items(identity, variants, indent)
        else:
            yield from self._chain({case: {key: one} for case, one in variants.items()}, indent)

    def _items(self, identity: str, variants: Variants, indent: int) -> Iterator[str]:
        """Yield the items of a list."""
        parts = []
        for name in _in_order([item[identity] for item in one] for one in variants.values()):
            there = {
                case: item
                for case, one in variants.items()
                for item in one
                if item[identity] == name
            }
            condition = self.condition([*there], [*variants])
            parts.append((condition, self._item(identity, name, there, indent)))
        yield from _below(parts)

    def _item(self, identity: str, name: Any, variants: Variants, indent: int) -> Iterator[str]:
        """Yield an item of a list."""
        first, *others = variants.values()
        if all(one == first for one in others):
            yield from self._dumped([first], indent)
            return
        yield from self._dumped([{identity: name}], indent)
        rest = {
            case: {key: value for key, value in one.items() if key != identity}
            for case, one in variants.items()
        }
        yield from self._mapping(rest, indent + 2)

    def _chain(self, variants: Variants, indent: int) -> Iterator[str]:
        """Yield one of several values, by conditions one after the other."""
        groups: list[tuple[Any, list[Case]]] = []
        for case, value in variants.items():
            for known, cases in groups:
                if known == value:
                    cases.append(case)
                    break
            else:
                groups.append((value, [case]))
        word = "if"
        for value, cases in groups[:-1]:
            yield f"{{{{- {word} {self.condition(cases, [*variants])} }}}}"
            yield from self._dumped(value, indent)
            word = "else if"
        yield "{{- else }}"
        yield from self._dumped(groups[-1][0], indent)
        yield END

    def _dumped(self, value: Any, indent: int, cut: str = "") -> Iterator[str]:
        """Yield YAML, without what is cut off its end."""
        for line in self.dump(value).removesuffix("\n").removesuffix(cut).split("\n"):
            yield f"{' ' * indent}{line}" if line else ""


def _below(parts: Iterable[tuple[str, Iterable[str]]]) -> Iterator[str]:
    """Yield lines, each part of them below its condition, if it has one."""
    for condition, together in groupby(parts, key=itemgetter(0)):
        yield from [f"{{{{- if {condition} }}}}"] if condition else []
        yield from chain.from_iterable(lines for _, lines in together)
        yield from [END] if condition else []


def _identity(lists: Iterable[Any]) -> str | None:
    """Return the key by which all items of these lists are told apart, if there is one."""
    found = [*lists]
    if not all(isinstance(one, list) and one for one in found):
        return None
    for key in IDENTITIES:
        names = [[item.get(key) for item in one if isinstance(item, dict)] for one in found]
        if all(
            None not in of_one and len({*of_one}) == len(of_one) == len(one)
            for of_one, one in zip(names, found, strict=True)
        ):
            return key
    return None


def _in_order(lists: Iterable[list[Any]]) -> list[Any]:
    """Return what any of the lists has, in the order of all of them.

    Raises: graphlib.CycleError: they have no common order.
    """
    order = TopologicalSorter[Any]()
    for one in lists:
        for before, item in pairwise([None, *one]):
            order.add(item, *([] if before is None else [before]))
    return [*order.static_order()]


def plain(value: Any) -> str:
    """Return YAML without aliases, texts of several lines as blocks, and no line broken."""
    return yaml.dump(value, Dumper=Dumper, sort_keys=False, width=10**6, allow_unicode=True)


class Dumper(yaml.SafeDumper):
    """YAML as people write it."""

    def ignore_aliases(self, data: Any) -> bool:
        """Write out what is there twice."""
        return True


UNSURE = re.compile(r"[-+]?\.?[0-9].*|[yn]", re.IGNORECASE)
"""Texts that some readers of YAML take for numbers or truth values, and PyYAML does not."""


def scalar(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    """Represent a text so that every reader takes it for one."""
    style = '"' if UNSURE.fullmatch(text) else "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


Dumper.add_representer(str, scalar)
