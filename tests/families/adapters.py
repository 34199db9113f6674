"""Random adapters for pipelines of any family, and engines that share compiled programs.

The adapters' files name their keys as PEFT and diffusers do.
"""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, TypeVar

import jax
import numpy as np
from flax import nnx
from jax.stages import Compiled
from safetensors.numpy import save_file

from deploy.bench.engine.adapters import layers_by_name
from models.adapters.adaptable_layers import names_of
from models.adapters.banks import page_arrays, page_axis
from models.adapters.files.adapter import Adapter, KernelShape
from models.adapters.files.formats import inspect, read
from models.adapters.files.name_table import Names, NetworkNames
from models.adapters.fuse import fusing
from models.adapters.install import install_banks
from models.interface.adapters import with_bank_pages
from models.interface.pipeline import Fields, Pipeline, PreparedRow
from models.parallel.axis_rules import Layout
from models.spec.lora import Expert, RequestedLora, ScaleInterval, always, pages_of
from models.weights.loader import Sharding
from tests.families.suite import images_of
from tests.parallel.placed_pipeline import placed as on_devices
from workers.engine.batching import Batch
from workers.engine.engine import Engine
from workers.engine.row import Row
from workers.engine.stages import ready
from workers.programs.aot_cache import Key
from workers.programs.batch_sizes import BatchSizes
from workers.programs.bucket_programs import Program
from workers.programs.step_latency import BatchLayout

T = TypeVar("T")
Arrays = dict[str, np.ndarray]
Kind = Literal["lora", "dora", "lokr", "loha"]
STRENGTH = 0.3
"""Approximate share of a layer's output that an adapter adds: enough for a clearly different
image."""


@dataclass
class Loras:
    """Adapters of a pipeline, in files of a folder.

    Args:
        pipeline: May be abstract, and may have banks.
    """

    pipeline: Pipeline
    folder: Path
    made: dict[str, RequestedLora] = field(default_factory=dict)
    """Adapters by their names."""
    _files: dict[str, Path] = field(default_factory=dict)
    """Files by their digests."""

    def __getitem__(self, name: str) -> RequestedLora:
        return self.made[name]

    def make(
        self,
        name: str,
        rank: int = 4,
        *,
        only: Sequence[str] = (),
        expert: Expert | None = None,
        share: float = 1.0,
        kind: Kind = "lora",
    ) -> RequestedLora:
        """Write a random adapter, different for each name, and return it as in a request.

        Args:
            rank: of a LoRA and DoRA; of a LoKr and LoHa, rank of each product.
            only: Networks that it changes, or empty for all.
            share: Share of the layers that it changes.
        """
        path = self.folder / f"{name}.safetensors"
        chosen = self.names.of(expert)
        rng = np.random.default_rng(list(name.encode()))
        arrays: Arrays = {}
        for network in chosen.networks:
            if not only or network.network in only:
                arrays |= random_arrays(network, rank, rng, share, kind)
        save_file(arrays, path)
        info = inspect(path, chosen)
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        self._files[digest] = path
        self.made[name] = RequestedLora(
            name=name,
            digest=digest,
            pages=pages_of(info.rank, info.has_magnitudes),
            networks=info.networks,
            scales=always(1.0),
            has_magnitudes=info.has_magnitudes,
        )
        return self.made[name]

    @cached_property
    def names(self) -> Names:
        """Names of the pipeline's layers."""
        return names_of(self.pipeline)

    @property
    def paths(self) -> dict[str, str]:
        """Files by their digests, for JSON."""
        return {digest: str(path) for digest, path in self._files.items()}

    async def find(self, lora: RequestedLora, tenant: str) -> Path:
        """Return an adapter's file. Engines call this."""
        return self._files[lora.digest]

    def read(self, lora: RequestedLora) -> Adapter:
        """Read an adapter's file."""
        return read(self._files[lora.digest], self.names, lora.expert)


def random_arrays(
    network: NetworkNames, rank: int, rng: np.random.Generator, share: float, kind: Kind = "lora"
) -> Arrays:
    """Return the arrays of an adapter for one network, of at least one layer."""
    arrays: Arrays = {}
    for number, (name, shape) in enumerate(layers_by_name(network)):
        if number and rng.random() >= share:
            continue
        of_layer = KINDS[kind](shape, rank, rng)
        head = f"{network.dotted[0]}{name}."
        arrays |= {head + key: array.astype(np.float32) for key, array in of_layer.items()}
    return arrays


def _lora(shape: KernelShape, rank: int, rng: np.random.Generator) -> Arrays:
    inputs = (shape.in_features, *shape.window)
    up = STRENGTH * rng.standard_normal((shape.out_features, rank)) / np.sqrt(rank)
    return {
        "lora_A.weight": rng.standard_normal((rank, *inputs)) / np.sqrt(np.prod(inputs)),
        "lora_B.weight": up.reshape(*up.shape, *(1 for _ in shape.window)),
    }


def _dora(shape: KernelShape, rank: int, rng: np.random.Generator) -> Arrays:
    """Return a LoRA, with magnitudes of the outputs near those of random weights."""
    magnitudes = rng.uniform(0.7, 1.3, (1, shape.out_features, *(1 for _ in shape.window)))
    vector = {"lora_magnitude_vector.weight": magnitudes if shape.window else magnitudes[0]}
    return _lora(shape, rank, rng) | vector


def _lokr(shape: KernelShape, rank: int, rng: np.random.Generator) -> Arrays:
    """Return a factor of up to 4 x 4, and one of a product; the ranks multiply."""
    out, into = (
        next(side for side in (4, 3, 2, 1) if size % side == 0)
        for size in (shape.out_features, shape.in_features)
    )
    columns = shape.in_features // into * int(np.prod(shape.window))
    first = STRENGTH * rng.standard_normal((shape.out_features // out, rank)) / np.sqrt(rank)
    return {
        "lokr_w1": rng.standard_normal((out, into)),
        "lokr_w2_a": first,
        "lokr_w2_b": rng.standard_normal((rank, columns)) / np.sqrt(columns * into),
    }


def _loha(shape: KernelShape, rank: int, rng: np.random.Generator) -> Arrays:
    """Return two products; their ranks multiply."""
    columns = shape.in_features * int(np.prod(shape.window))
    return {
        "hada_w1_a": rng.standard_normal((shape.out_features, rank)) / np.sqrt(rank),
        "hada_w1_b": rng.standard_normal((rank, columns)),
        "hada_w2_a": STRENGTH * rng.standard_normal((shape.out_features, rank)) / np.sqrt(rank),
        "hada_w2_b": rng.standard_normal((rank, columns)) / np.sqrt(columns),
    }


KINDS: Mapping[Kind, Callable[[KernelShape, int, np.random.Generator], Arrays]] = {
    "lora": _lora,
    "dora": _dora,
    "lokr": _lokr,
    "loha": _loha,
}
"""Functions that return the arrays of one layer, by the kind of adapter."""


def asking(fields: Fields, *loras: RequestedLora) -> dict[str, Any]:
    """Return the request with these adapters."""
    return {**fields, "loras": [lora.model_dump(mode="json") for lora in loras]}


def scaled(lora: RequestedLora, scale: float) -> RequestedLora:
    """Return the adapter with another scale."""
    return lora.model_copy(update={"scales": always(scale)})


def by_steps(lora: RequestedLora, *scales: tuple[float, float, float]) -> RequestedLora:
    """Return the adapter with scales by steps: start, stop and scale of each interval."""
    intervals = (ScaleInterval(start=a, stop=b, scale=scale) for a, b, scale in scales)
    return lora.model_copy(update={"scales": tuple(intervals)})


def banked(pipeline: Pipeline, pages: int, sharding: Sharding | None = None) -> Pipeline:
    """Return the same model with its own banks, since an engine takes them over."""
    model = copy.copy(pipeline)
    install_banks(model, pages, sharding)
    return model


def filled(
    pipeline: Any, loras: Loras, adapters: Sequence[RequestedLora], pages: int
) -> tuple[Pipeline, Callable[[PreparedRow], PreparedRow]]:
    """Return the same model with these adapters in its banks, and a function that refers a request
    to them.

    The adapters take pages from the last one down.

    Args:
        adapters: In the order of the request.
    """
    model: Any = banked(pipeline, pages)
    free = list(reversed(range(pages)))
    places = []
    for lora in adapters:
        taken = [free.pop(0) for _ in range(lora.pages)]
        places += taken
        for network, changes in loras.read(lora).networks.items():
            module = nnx.merge(getattr(model.graphs, network), getattr(model.weights, network))
            _fill(module, page_arrays(module, changes, len(taken)), taken)
            model.weights = model.weights._replace(**{network: nnx.state(module)})
    return model, lambda prepared: with_bank_pages(prepared, places)


def _fill(network: nnx.Module, arrays: Mapping[str, np.ndarray], pages: Sequence[int]) -> None:
    for path, leaf in nnx.to_flat_state(nnx.state(network)):
        array = arrays.get(".".join(map(str, path)))
        if array is not None:
            value = np.array(leaf.get_value())
            np.moveaxis(value, page_axis(leaf), 0)[list(pages)] = np.moveaxis(
                array, page_axis(leaf), 0
            )
            leaf.set_value(jax.numpy.asarray(value))


def merged(pipeline: Any, changes: Sequence[tuple[Adapter, float]]) -> Pipeline:
    """Return the same model with adapters, at these scales, added to its kernels."""
    model: Any = copy.copy(pipeline)
    for adapter, scale in changes:
        for network, change in fusing(adapter, scale, model).items():
            state = getattr(model.weights, network)
            flat = [
                (path, leaf.replace(change(".".join(map(str, path)), leaf[...] + 0)))
                for path, leaf in nnx.to_flat_state(state)
            ]
            model.weights = model.weights._replace(**{network: nnx.from_flat_state(flat)})
    return model


async def begun(engine: Engine, stack: AsyncExitStack, fields: Fields) -> Row:
    """Return a row before its first step.

    Its adapters stay in the banks while the stack is open.
    """
    prepared = engine.pipeline.prepare(fields, images_of(engine.pipeline.spec.name))
    programs = await engine._machinery.programs.compiled(fields, prepared)
    reserved = engine.adapters.reserved(prepared, "", lambda: None)
    prepared = await stack.enter_async_context(reserved)
    state = engine._stages.encode(programs, prepared)
    return Row(programs, prepared.steps, state, lambda row: None, lambda row, failure: None)


def states_after(engine: Engine, rows: Sequence[Row]) -> list[Any]:
    """Return the rows' states after their next step, in one launch of the engine's only size."""
    (size,) = engine.batching.sizes
    batch = Batch(rows[0].step_kind, tuple(rows), BatchLayout(size))
    weights = engine.step_loop._weights.load_expert(batch.step_kind.expert)
    return list(batch.run(weights)[0][: len(rows)])


async def leave_one(engine: Engine, fields: Fields, way: BatchLayout) -> None:
    """Restrict a request's steps to one batch layout, and compile it."""
    programs = await engine._machinery.programs.compiled(
        fields, engine.pipeline.prepare(fields, images_of(engine.pipeline.spec.name))
    )
    for step_kind in programs.step_kinds.values():
        await ready(step_kind.programs[way])
        step_kind.programs = {way: step_kind.programs[way]}


@dataclass
class Model:
    """Model, its adapters, and engines that share their programs."""

    plain: Pipeline
    """Pipeline without banks."""
    loras: Loras
    fields: Fields
    """Fields of a request."""
    kept: MemoryCache = field(default_factory=lambda: MemoryCache())

    @contextmanager
    def engine(
        self,
        pages: int,
        layout: Layout,
        slots: int = 4,
        batching: BatchSizes | None = None,
        merge: Sequence[tuple[Adapter, float]] = (),
    ) -> Iterator[Engine]:
        """Yield an engine with its own banks.

        Args:
            pages: Pages of each bank, or 0 for no banks.
            merge: Adapters in its weights, with their scales.
        """
        pipeline = on_devices(banked(merged(self.plain, merge), pages), layout)
        files = self.loras.find
        engine = Engine(pipeline, layout, slots, batching, executables=self.kept, lora_files=files)
        try:
            yield engine
        finally:
            engine.close()


class MemoryCache:
    """Executables in memory: engines of a model share what one of them has compiled."""

    def __init__(self) -> None:
        self._programs: dict[str, Compiled] = {}
        self._facts: dict[str, Any] = {}

    def program(
        self,
        key: Callable[[], Key],
        devices: Sequence[jax.Device],
        build: Callable[[], Compiled],
    ) -> Program:
        """Return the program of this key, compiled once."""
        name = json.dumps([key(), [device.id for device in devices]], sort_keys=True)
        if name not in self._programs:
            self._programs[name] = build()
        return self._programs[name]

    def fact(self, key: Callable[[], Key], find: Callable[[], T]) -> T:
        """Return the fact of this key, found once."""
        name = json.dumps(key(), sort_keys=True)
        if name not in self._facts:
            self._facts[name] = find()
        value: T = self._facts[name]
        return value

    def recall(self, key: Callable[[], Key]) -> Any:
        """Return the fact of this key, or None if it is not known yet."""
        return self._facts.get(json.dumps(key(), sort_keys=True))
