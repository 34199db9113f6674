"""Names of a model's layers in files of adapters, as values that travel: front ends unpack them.

No name is taken apart to guess: all names of a model's layers are listed, and a key has to be one
of them behind one of the prefixes. `models.adapters.layer_names` makes the list from networks.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from models.adapters.files.adapter import AdapterError, KernelShape, Place
from models.spec.lora import Expert

Layers = Mapping[Place, KernelShape]
"""Layers that a name stands for, in the order in which their outputs lie behind each other: more
than one where the authors' layer is several of ours."""


@dataclass(frozen=True)
class Named:
    """Goal of a name."""

    network: str
    layers: Layers
    is_swapped: bool = False
    """Whether the authors' layer has its outputs' halves the other way round."""
    narrow: int | None = None
    """Inputs of the layer in checkpoints that see least, the first of its own: files made for them
    change these alone. None: all have as many."""


@dataclass(frozen=True)
class NetworkNames:
    """Names of one network's layers."""

    network: str
    """Name of the network in the pipeline's weights."""
    names: Mapping[str, Layers]
    """Layers by their names with dots, without a prefix."""
    dotted: tuple[str, ...]
    """Prefixes of names with dots."""
    underscored: tuple[str, ...]
    """Prefixes of names with underscores for dots."""
    swapped: frozenset[str] = frozenset()
    """Names whose layers have their outputs' halves the other way round."""
    expert: Expert | None = None
    """Expert of Wan 2.2 that the network is; None: there are none."""
    narrow: Mapping[str, int] = field(default_factory=dict)
    """Inputs of layers in checkpoints of this network that see least, by name."""
    unread: tuple[str, ...] = ()
    """Expressions of layers whose differences (`diff`, `diff_b`) diffusers leaves out."""
    unread_alone: tuple[str, ...] = ()
    """Expressions of layers whose bias diffusers leaves out where there are no matrices."""

    def find(self, name: str) -> Named | None:
        """Return the goal of a key's part in front of `.lora_A.weight` and its like."""
        for prefix in self.dotted:
            own = name.removeprefix(prefix)
            if name.startswith(prefix) and own in self.names:
                return self._named(own)
        for prefix in self.underscored:
            own = self._with_dots.get(name.removeprefix(prefix), "")
            if name.startswith(prefix) and own:
                return self._named(own)
        return None

    def _named(self, own: str) -> Named:
        return Named(self.network, self.names[own], own in self.swapped, self.narrow.get(own))

    @cached_property
    def _with_dots(self) -> Mapping[str, str]:
        return {name.replace(".", "_"): name for name in self.names}


@dataclass(frozen=True)
class Names:
    """Names of all layers of a model that adapters can change."""

    networks: tuple[NetworkNames, ...]

    def of(self, expert: Expert | None) -> Names:
        """Return the names that a file for an expert has; for none: for the first one.

        Raises: AdapterError: the model has no such expert.
        """
        experts = [one.expert for one in self.networks if one.expert is not None]
        if expert is not None and expert not in experts:
            raise AdapterError(
                f"it is for the expert of {expert} noise, which this model does not have: leave "
                "the expert out"
            )
        chosen = expert or next(iter(experts), None)
        return Names(tuple(one for one in self.networks if one.expert in (None, chosen)))

    def find(self, name: str) -> Named | None:
        """Return the goal of a key's part in front of `.lora_A.weight` and its like."""
        for network in self.networks:
            if (found := network.find(name)) is not None:
                return found
        return None


def packed(names: Names) -> str:
    """Return names as a short text. Networks of the same names have them once."""
    tables: list[str] = []
    networks = []
    for one in names.networks:
        table = json.dumps(_table(one.names), separators=(",", ":"))
        if table not in tables:
            tables.append(table)
        networks.append(
            [
                *(one.network, tables.index(table), one.dotted, one.underscored),
                *(sorted(one.swapped), one.expert, one.narrow, one.unread, one.unread_alone),
            ]
        )
    text = json.dumps([networks, tables], separators=(",", ":"))
    return base64.b64encode(zlib.compress(text.encode(), 9)).decode()


def unpacked(text: str) -> Names:
    """Return the names that `packed` has made a text of."""
    networks, tables = json.loads(zlib.decompress(base64.b64decode(text)))
    layers = [_layers(json.loads(table)) for table in tables]
    return Names(tuple(_network(own, layers[own[1]]) for own in networks))


def _network(own: list[Any], names: Mapping[str, Layers]) -> NetworkNames:
    network, _, dotted, underscored, swapped, expert, narrow, unread, unread_alone = own
    return NetworkNames(
        network,
        names,
        tuple(dotted),
        tuple(underscored),
        frozenset(swapped),
        expert,
        narrow,
        tuple(unread),
        tuple(unread_alone),
    )


def _table(names: Mapping[str, Layers]) -> list[Any]:
    """Return names and layers; a layer that several names have is there once, by its number."""
    numbers: dict[tuple[Place, KernelShape], int] = {}
    own = {
        name: [numbers.setdefault(item, len(numbers)) for item in layers.items()]
        for name, layers in names.items()
    }
    return [[[*place, *shape] for place, shape in numbers], own]


def _layers(table: list[Any]) -> dict[str, Layers]:
    places = [
        (Place(path, layer), KernelShape(inputs, outputs, tuple(window)))
        for path, layer, inputs, outputs, window in table[0]
    ]
    return {name: dict(places[number] for number in own) for name, own in table[1].items()}
