"""Benchmark case, and the model for it: real configs with random weights."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

from jax.sharding import NamedSharding, PartitionSpec

from models import demo, published, registry
from models.checkpoint.folder import CheckpointError
from models.checkpoint.hub import CONFIGS, resolve
from models.interface.pipeline import Fields, Pipeline, PreparedRow
from models.loading.random_weights import RandomWeights
from models.loading.sources import SHAPES
from models.spec.lora import pages_of
from models.spec.quality_presets import EIGHT_BIT_PRESETS, EightBitProducts
from service.settings.models import ModelSettings
from service.settings.pools import PoolSettings
from workers.loading import model as loading
from workers.loading.layout import slice_devices
from workers.loading.model import MeshSlice
from workers.plan.make import check
from workers.programs import warmup

DEMO = Path(demo.__file__).parent
PROMPT = "a red circle on a blue background"


@dataclass(frozen=True)
class EngineCase:
    """Model at one size, with the options of a measurement."""

    model: str
    """A name of `models.published.CHECKPOINTS`, or a folder or hub id, of which only configs are
    read."""
    request: Fields
    """Fields that differ from the model's defaults."""
    batch: int = 1
    """Concurrent requests."""
    exact_rows: int | None = None
    """Rows of the step program; None: all."""
    batching: Literal["exact", "fast"] = "exact"
    """Batching mode, as in a model's settings; also selects a GPU's compiler flags."""
    mesh: str | Mapping[str, int] = "auto"
    devices: range | None = None
    """Devices of this machine; None: all."""
    dtype: str = "bfloat16"
    activation_dtype: str | None = None
    eight_bit: EightBitProducts | None = None
    """Product kind of 8-bit block weights, which replace the exact ones; None: exact weights."""
    vae_tiling: bool | None = None
    lora_rank: int | None = None
    """Rank of each row's adapters in additional rounds; None: no such rounds."""
    repeats: int = 5
    tiny: bool = False
    """Whether to use the family's demo networks, for machines without an accelerator."""

    @property
    def fields(self) -> dict[str, Any]:
        """Return the request's fields, with the preset that uses the 8-bit weights."""
        preset = {"quality": EIGHT_BIT_PRESETS[self.eight_bit]} if self.eight_bit else {}
        return {**preset, **self.request}


@dataclass(frozen=True)
class LoadedCase:
    """Benchmarked model, loaded on its devices."""

    pipeline: Pipeline
    slice: MeshSlice
    fields: Fields
    """Fields of a complete request."""
    is_tiled: bool
    """Whether images are decoded in tiles."""


def opened(case: EngineCase) -> LoadedCase:
    """Load the model with random weights, placed as in a pool. Changes the JAX configuration.

    Raises:
        models.checkpoint.folder.CheckpointError: no such model; names the known ones.
        workers.loading.model.NotEnoughMemory, ConfigError: it does not fit; states by how much.
        models.spec.request.RequestError: the model rejects the request; names the field.
    """
    with configs_of(case) as folder:
        model = ModelSettings.model_validate(
            {
                "source": str(folder),
                "image_prompts": published.image_prompts(case.model, folder),
                "controls": published.controls(case.model, folder),
                "refiner": published.refiner(case.model, folder),
                "dtype": case.dtype,
                "activation_dtype": case.activation_dtype,
                "eight_bit": "instead" if case.eight_bit else None,
                "batching": case.batching,
                "exact_rows": (case.exact_rows or case.batch) if case.batching == "exact" else None,
                "vae_tiling": case.vae_tiling,
                "warmup": [case.fields],
            }
        )
        pool = PoolSettings.model_validate(
            {
                "model": case.model,
                "mesh": case.mesh,
                "slots": case.batch,
            }
        )
        loading.set_up(pool, model, case.devices)
        shapes = loading.read(pool, model, reader=SHAPES, rounding=loading.rounding_of(model))
        check(shapes.spec, case.request)
        prepared = warmup.prepare(shapes, *_fields(shapes, case))
        model = model.model_copy(update={"lora_pages": _pages(case, networks_of(prepared))})
        where = loading.plan_slice(case.model, pool, model, slice_devices(case.devices))
        everywhere = NamedSharding(where.layout.mesh, PartitionSpec())
        chosen = where.model or model
        pipeline = loading.load_placed(pool, chosen, where, RandomWeights(everywhere))
    (fields,) = _fields(pipeline, case)
    return LoadedCase(pipeline, where, fields, bool(chosen.vae_tiling))


def networks_of(prepared: PreparedRow) -> set[str]:
    """Return the networks that denoise a request."""
    return {step.program.network for step in prepared.steps}


def _pages(case: EngineCase, networks: Collection[str]) -> int:
    """Return the number of bank pages that the adapters of all rows and networks need."""
    return pages_of(case.lora_rank) * case.batch * len(networks) if case.lora_rank else 0


def _fields(pipeline: Pipeline, case: EngineCase) -> list[Fields]:
    return warmup.requests(pipeline.spec, [{"prompt": PROMPT, **case.fields}])


@contextmanager
def configs_of(case: EngineCase) -> Iterator[Path]:
    """Yield a folder with the model's configs. Raises: CheckpointError: no such model."""
    with TemporaryDirectory() as made:
        folder = Path(made)
        if case.model in published.CHECKPOINTS:
            published.write(case.model, folder)
        else:
            folder = _fetched_configs(case.model)
        yield DEMO / registry.family(str(folder)) if case.tiny else folder


def _fetched_configs(model: str) -> Path:
    """Fetch the configs of a checkpoint. Raises: CheckpointError: states the known names."""
    try:
        return resolve(model, patterns=CONFIGS)
    except CheckpointError as error:
        names = ", ".join(published.CHECKPOINTS)
        raise CheckpointError(f"{error}; the names known here are {names}") from None
