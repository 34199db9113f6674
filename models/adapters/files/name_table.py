"""Serializable names of a model's layers in adapter files, which front ends receive.

Keys are not parsed heuristically. All names of a model's layers are listed, and a key must consist
of a prefix and a listed name. `models.adapters.layer_names` creates the list from networks.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from models.adapters.files.adapter import AdapterError, KernelShape, LayerPosition
from models.spec.lora import Expert

Layers = Mapping[LayerPosition, KernelShape]
"""Layers of a name, in the order of their outputs; several if the authors' layer fuses several
layers, and none if other checkpoints have the layer and this one lacks it."""


@dataclass(frozen=True)
class NamedLayers:
    """Network and layers that a name in an adapter's file refers to."""

    network: str
    layers: Layers
    is_swapped: bool = False
    """Whether the authors' layer has its output halves in reverse order."""
    narrow: int | None = None
    """Input features of the layer in the checkpoints with the fewest. Files made for these
    checkpoints change only these first inputs. None: all checkpoints have equal inputs."""


@dataclass(frozen=True)
class NetworkNames:
    """Names of one network's layers in adapter files."""

    network: str
    """Name of the network in the pipeline's weights."""
    names: Mapping[str, Layers]
    """Layers by dotted name without prefix."""
    dotted: tuple[str, ...]
    """Prefixes of names with dots."""
    underscored: tuple[str, ...]
    """Prefixes of names with underscores instead of dots."""
    swapped: frozenset[str] = frozenset()
    """Names whose layers have their output halves in reverse order."""
    expert: Expert | None = None
    """Expert of Wan 2.2 that the network is; None: not an expert."""
    narrow: Mapping[str, int] = field(default_factory=dict)
    """Minimum input features of layers among the network's checkpoints, by name."""
    unread: tuple[str, ...] = ()
    """Expressions of layers whose differences (`diff`, `diff_b`) diffusers ignores."""
    unread_alone: tuple[str, ...] = ()
    """Expressions of layers whose bias diffusers ignores if they have no matrices."""

    def find(self, name: str) -> NamedLayers | None:
        """Return the layers of a key, given without its ending such as `.lora_A.weight`."""
        for prefix in self.dotted:
            plain = name.removeprefix(prefix)
            if name.startswith(prefix) and plain in self.names:
                return self._named(plain)
        flat = name.replace(".", "_").rstrip("_")  # converters mix dots and underscores
        for prefix in self.underscored:
            plain = self._with_dots.get(flat.removeprefix(prefix), "")
            if flat.startswith(prefix) and plain:
                return self._named(plain)
        return None

    def _named(self, name: str) -> NamedLayers:
        return NamedLayers(
            self.network, self.names[name], name in self.swapped, self.narrow.get(name)
        )

    @cached_property
    def _with_dots(self) -> Mapping[str, str]:
        return {name.replace(".", "_"): name for name in self.names}


@dataclass(frozen=True)
class Names:
    """Names of all layers of a model that adapters can change."""

    networks: tuple[NetworkNames, ...]
    hidden_sizes: Mapping[str, int] = field(default_factory=dict)
    """Hidden sizes of the text encoders that read embeddings."""

    def of(self, expert: Expert | None) -> Names:
        """Return the names for an expert's files; None: the first expert.

        Raises: AdapterError: the model has no such expert.
        """
        experts = [network.expert for network in self.networks if network.expert is not None]
        if expert is not None and expert not in experts:
            raise AdapterError(
                f"it is for the expert of {expert} noise, which this model does not have: leave "
                "the expert out"
            )
        chosen = expert or next(iter(experts), None)
        networks = (network for network in self.networks if network.expert in (None, chosen))
        return replace(self, networks=tuple(networks))

    def find(self, name: str) -> NamedLayers | None:
        """Return the layers of a key, given without its ending such as `.lora_A.weight`."""
        for network in self.networks:
            if (named := network.find(name)) is not None:
                return named
        return None


def packed(names: Names) -> str:
    """Serialize the names of layers compactly. Networks with equal names share a table."""
    tables: list[str] = []
    networks = []
    for network in names.networks:
        table = json.dumps(_table(network.names), separators=(",", ":"))
        if table not in tables:
            tables.append(table)
        networks.append(
            [
                *(network.network, tables.index(table), network.dotted, network.underscored),
                *(
                    sorted(network.swapped),
                    network.expert,
                    network.narrow,
                    network.unread,
                    network.unread_alone,
                ),
            ]
        )
    text = json.dumps([networks, tables], separators=(",", ":"))
    return base64.b64encode(zlib.compress(text.encode(), 9)).decode()


def unpacked(text: str) -> Names:
    """Deserialize the layer names that `packed` serialized."""
    networks, tables = json.loads(zlib.decompress(base64.b64decode(text)))
    layers = [_layers(json.loads(table)) for table in tables]
    return Names(tuple(_network(fields, layers[fields[1]]) for fields in networks))


def _network(fields: list[Any], names: Mapping[str, Layers]) -> NetworkNames:
    network, _, dotted, underscored, swapped, expert, narrow, unread, unread_alone = fields
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
    """Return the distinct layers, and the layers' indices by name."""
    numbers: dict[tuple[LayerPosition, KernelShape], int] = {}
    by_name = {
        name: [numbers.setdefault(item, len(numbers)) for item in layers.items()]
        for name, layers in names.items()
    }
    return [[[*place, *shape] for place, shape in numbers], by_name]


def _layers(table: list[Any]) -> dict[str, Layers]:
    places = [
        (LayerPosition(path, layer), KernelShape(inputs, outputs, tuple(window)))
        for path, layer, inputs, outputs, window in table[0]
    ]
    return {name: dict(places[number] for number in numbers) for name, numbers in table[1].items()}
