"""Case to measure, and the model for it: its real configs, with random weights."""

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
from models.interface.pipeline import Fields, Pipeline, Prepared
from models.loading.random_weights import RandomWeights
from models.loading.sources import SHAPES
from models.spec.lora import pages_of
from models.spec.quality_presets import OF_EIGHT_BITS, EightBitProducts
from service.settings.models import ModelSettings
from service.settings.pools import PoolSettings
from workers.loading import model as loading
from workers.loading.layout import own
from workers.loading.model import MeshSlice
from workers.plan.make import check
from workers.programs import warmup

DEMO = Path(demo.__file__).parent
PROMPT = "a red circle on a blue background"


@dataclass(frozen=True)
class EngineCase:
    """Model at one size."""

    model: str
    """A name of `models.published.CHECKPOINTS`, or a folder or hub id, of which configs alone
    count."""
    request: Fields
    """Fields that differ from the model's defaults."""
    batch: int = 1
    """Requests side by side."""
    exact_rows: int | None = None
    """Rows of the program that steps them; None: all of them."""
    batching: Literal["exact", "fast"] = "exact"
    """Batching as a model's setting; here it decides which flags a GPU's compiler gets."""
    mesh: str | Mapping[str, int] = "auto"
    devices: range | None = None
    """Devices of this machine; None: all of them."""
    dtype: str = "bfloat16"
    activation_dtype: str | None = None
    eight_bit: EightBitProducts | None = None
    """Blocks have weights of 8 bits instead of exact ones, multiplied so; None: exact ones."""
    vae_tiling: bool | None = None
    lora_rank: int | None = None
    """Rank of the adapters that each row has in further rounds; None: there are none."""
    repeats: int = 5
    tiny: bool = False
    """The demo model's networks of the same family, for machines without an accelerator."""

    @property
    def fields(self) -> dict[str, Any]:
        """Return the fields with the preset that its 8 bits are in."""
        preset = {"quality": OF_EIGHT_BITS[self.eight_bit]} if self.eight_bit else {}
        return {**preset, **self.request}


@dataclass(frozen=True)
class Opened:
    """A model on its devices."""

    pipeline: Pipeline
    slice: MeshSlice
    fields: Fields
    """Fields of a whole request."""
    is_tiled: bool
    """Whether images are decoded in tiles."""


def opened(ask: EngineCase) -> Opened:
    """The model with random weights, laid out as a pool would have it. Sets JAX up.

    Raises:
        models.checkpoint.folder.CheckpointError: no such model; names those that there are.
        workers.loading.model.NoRoom, ConfigError: it does not fit; says by how
            much.
        models.interface.pipeline.RequestError: the model cannot make this; names the field.
    """
    with configs_of(ask) as folder:
        model = ModelSettings.model_validate(
            {
                "source": str(folder),
                "image_prompts": published.image_prompts(ask.model, folder),
                "controls": published.controls(ask.model, folder),
                "refiner": published.refiner(ask.model, folder),
                "dtype": ask.dtype,
                "activation_dtype": ask.activation_dtype,
                "eight_bit": "instead" if ask.eight_bit else None,
                "batching": ask.batching,
                "exact_rows": (ask.exact_rows or ask.batch) if ask.batching == "exact" else None,
                "vae_tiling": ask.vae_tiling,
                "warmup": [ask.fields],
            }
        )
        pool = PoolSettings.model_validate(
            {
                "model": ask.model,
                "mesh": ask.mesh,
                "slots": ask.batch,
            }
        )
        loading.set_up(pool, model, ask.devices)
        shapes = loading.read(pool, model, reader=SHAPES, rounding=loading.rounding_of(model))
        check(shapes.spec, ask.request)
        prepared = warmup.prepare(shapes, *_fields(shapes, ask))
        model = model.model_copy(update={"lora_pages": _pages(ask, networks_of(prepared))})
        where = loading.planned(ask.model, pool, model, own(ask.devices))
        everywhere = NamedSharding(where.layout.mesh, PartitionSpec())
        chosen = where.model or model
        pipeline = loading.placed(pool, chosen, where, RandomWeights(everywhere))
    (fields,) = _fields(pipeline, ask)
    return Opened(pipeline, where, fields, bool(chosen.vae_tiling))


def networks_of(prepared: Prepared) -> set[str]:
    """Return the networks that denoise a request."""
    return {step.phase.network for step in prepared.steps}


def _pages(ask: EngineCase, networks: Collection[str]) -> int:
    """Pages for adapters of all rows, each of one network."""
    return pages_of(ask.lora_rank) * ask.batch * len(networks) if ask.lora_rank else 0


def _fields(pipeline: Pipeline, ask: EngineCase) -> list[Fields]:
    return warmup.requests(pipeline.spec, [{"prompt": PROMPT, **ask.fields}])


@contextmanager
def configs_of(ask: EngineCase) -> Iterator[Path]:
    """A folder with the model's configs. Raises: CheckpointError: no such model."""
    with TemporaryDirectory() as made:
        folder = Path(made)
        if ask.model in published.CHECKPOINTS:
            published.write(ask.model, folder)
        else:
            folder = _found(ask.model)
        yield DEMO / registry.family(str(folder)) if ask.tiny else folder


def _found(model: str) -> Path:
    """Raises: CheckpointError: says which names there are."""
    try:
        return resolve(model, patterns=CONFIGS)
    except CheckpointError as error:
        names = ", ".join(published.CHECKPOINTS)
        raise CheckpointError(f"{error}; the names known here are {names}") from None
