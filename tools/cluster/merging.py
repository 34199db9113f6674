"""Merge of several renderings of an object into one template, with conditions on differences."""

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
"""Renderings by case; missing cases lack the object."""
IDENTITIES = ("name", "mountPath", "key")
"""Keys that identify items of a list."""
END = "{{- end }}"


@dataclass(frozen=True)
class Choice:
    """Choice in the values, such as the kind of Redis, that changes the rendered manifests."""

    expression: str
    """Template expression of its value."""
    values: tuple[str, ...]

    def is_one_of(self, values: Sequence[str]) -> str:
        """Return the template condition that the choice has one of these values."""
        if len(values) == 1:
            return f'eq {self.expression} "{values[0]}"'
        listed = " ".join(f'"{value}"' for value in values)
        return f"has {self.expression} (list {listed})"


@dataclass(frozen=True)
class Merger:
    """Merger of several renderings of a manifest into one template with conditions."""

    choices: Sequence[Choice]
    dump: Callable[[Any], str]
    """Writes YAML."""

    def document(self, variants: Variants, cases: Iterable[Case], head: str = "---") -> str:
        """Return the template of an object that some cases have, after a `head` line."""
        lines = chain([head] if head else [], self._mapping(variants, 0))
        return "\n".join(_below([(self.condition([*variants], [*cases]), lines)])) + "\n"

    def condition(self, chosen: Sequence[Case], cases: Sequence[Case]) -> str:
        """Return the condition that holds for exactly these cases; empty for all cases.

        Raises: ValueError: no conjunction of the choices expresses it.
        """
        parts, product = [], set(cases)
        for index, choice in enumerate(self.choices):
            have = {case[index] for case in chosen}
            if have != {case[index] for case in cases}:
                parts.append(choice.is_one_of([value for value in choice.values if value in have]))
                product = {case for case in product if case[index] in have}
        if product != set(chosen):
            raise ValueError(f"no conjunction: {sorted(chosen)} of {sorted(cases)}")
        if len(parts) < 2:
            return "".join(parts)
        return " ".join(["and", *(f"({part})" for part in parts)])

    def _mapping(self, variants: Variants, indent: int) -> Iterator[str]:
        """Yield the template lines of a mapping that differs between renderings."""
        parts = []
        for key in _in_order(list(variant) for variant in variants.values()):
            values = {case: variant[key] for case, variant in variants.items() if key in variant}
            condition = self.condition([*values], [*variants])
            parts.append((condition, self._entry(key, values, indent)))
        yield from _below(parts)

    def _entry(self, key: str, variants: Variants, indent: int) -> Iterator[str]:
        """Yield the template lines of a mapping's key and value."""
        first, *others = variants.values()
        if all(variant == first for variant in others):
            yield from self._dumped({key: first}, indent)
        elif all(isinstance(variant, dict) and variant for variant in variants.values()):
            yield from self._dumped({key: None}, indent, cut=" null")
            yield from self._mapping(variants, indent + 2)
        elif identity := _identity(variants.values()):
            yield from self._dumped({key: None}, indent, cut=" null")
            yield from self._items(identity, variants, indent)
        else:
            yield from self._chain(
                {case: {key: variant} for case, variant in variants.items()}, indent
            )

    def _items(self, identity: str, variants: Variants, indent: int) -> Iterator[str]:
        """Yield the template lines of a list that differs between renderings."""
        parts = []
        for name in _in_order(
            [item[identity] for item in variant] for variant in variants.values()
        ):
            items = {
                case: item
                for case, variant in variants.items()
                for item in variant
                if item[identity] == name
            }
            condition = self.condition([*items], [*variants])
            parts.append((condition, self._item(identity, name, items, indent)))
        yield from _below(parts)

    def _item(self, identity: str, name: Any, variants: Variants, indent: int) -> Iterator[str]:
        """Yield the template lines of an item of a list."""
        first, *others = variants.values()
        if all(variant == first for variant in others):
            yield from self._dumped([first], indent)
            return
        yield from self._dumped([{identity: name}], indent)
        rest = {
            case: {key: value for key, value in variant.items() if key != identity}
            for case, variant in variants.items()
        }
        yield from self._mapping(rest, indent + 2)

    def _chain(self, variants: Variants, indent: int) -> Iterator[str]:
        """Yield the different values with if, else if and else."""
        groups: list[tuple[Any, list[Case]]] = []
        for case, value in variants.items():
            for grouped, cases in groups:
                if grouped == value:
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
        """Yield a value's YAML lines, without the suffix `cut`."""
        for line in self.dump(value).removesuffix("\n").removesuffix(cut).split("\n"):
            yield f"{' ' * indent}{line}" if line else ""


def _below(parts: Iterable[tuple[str, Iterable[str]]]) -> Iterator[str]:
    """Yield lines, grouped by their condition, if any."""
    for condition, group in groupby(parts, key=itemgetter(0)):
        yield from [f"{{{{- if {condition} }}}}"] if condition else []
        yield from chain.from_iterable(lines for _, lines in group)
        yield from [END] if condition else []


def _identity(lists: Iterable[Any]) -> str | None:
    """Return the key that identifies all items of these lists, or None."""
    all_lists = [*lists]
    if not all(isinstance(items, list) and items for items in all_lists):
        return None
    for key in IDENTITIES:
        names = [[item.get(key) for item in items if isinstance(item, dict)] for items in all_lists]
        if all(
            None not in of_one and len({*of_one}) == len(of_one) == len(items)
            for of_one, items in zip(names, all_lists, strict=True)
        ):
            return key
    return None


def _in_order(lists: Iterable[list[Any]]) -> list[Any]:
    """Return the union of the lists, in an order that is consistent with all.

    Raises: graphlib.CycleError: they have no common order.
    """
    order = TopologicalSorter[Any]()
    for items in lists:
        for before, item in pairwise([None, *items]):
            order.add(item, *([] if before is None else [before]))
    return [*order.static_order()]


def plain(value: Any) -> str:
    """Return YAML without aliases or line breaks, with multi-line texts as blocks."""
    text: str = yaml.dump(value, Dumper=Dumper, sort_keys=False, width=10**6, allow_unicode=True)
    return text


class Dumper(yaml.SafeDumper):
    """YAML dumper without aliases, with safe quoting."""

    def ignore_aliases(self, data: Any) -> bool:
        """Write repeated values in full."""
        return True


UNSURE = re.compile(r"[-+]?\.?[0-9].*|[yn]", re.IGNORECASE)
"""Texts that some YAML readers parse as numbers or booleans, but PyYAML does not."""


def scalar(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    """Represent a text so that every reader parses it as text."""
    style = '"' if UNSURE.fullmatch(text) else "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


Dumper.add_representer(str, scalar)
