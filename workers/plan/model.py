"""A model without its weights: from a checkpoint's configs, or by a published checkpoint's name."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from models import published, registry
from models.checkpoint.hub import CONFIGS, resolve, single_file
from models.interface.pipeline import Pipeline
from models.loading.sources import SHAPES, ControlSource, ImagePromptSource
from models.spec.model_spec import ModelSpec
from models.weights.loader import Sharding
from service.settings.models import ModelSettings
from workers.jaxpr.logical_mesh import logical_layout
from workers.plan.trace import Sketch, sketch
from workers.programs import warmup

MAX_CONTROLS: int = ModelSettings.model_fields["max_controls"].default
NO_DEFAULTS: Mapping[str, Any] = {}


def abstract(
    source: str,
    dtype: str,
    sharding: Sharding,
    *,
    defaults: Mapping[str, Any] = NO_DEFAULTS,
    base: str | None = None,
    **how: Any,
) -> Pipeline:
    """The pipeline with shapes for weights, each where it is said to lie; nothing big is read.

    Args:
        source: as in the settings (of a hub id the configs alone are fetched), or a name of
            `models.published.CHECKPOINTS`.
        base, how: as `models.registry.load` has it.

    Raises: models.checkpoint.folder.CheckpointError: no such model, or one that is not served.
    """
    with _folder(source) as place:
        how = {**beside(source, Path(place)), **how}
        return registry.load(
            source, place, dtype, defaults, base=base, sharding=sharding, reader=SHAPES, **how
        )


def beside(source: str, place: Path) -> dict[str, Any]:
    """Return what `models.registry.load` is told of the networks beside a published checkpoint."""
    prompts, controls = published.image_prompts(source, place), published.controls(source, place)
    return {
        "image_prompts": {name: ImagePromptSource(at) for name, at in prompts.items()},
        "controls": {name: ControlSource(**one) for name, one in controls.items()},
        "max_controls": MAX_CONTROLS if controls else 0,
        "refiner": published.refiner(source, Path(place)),
    }


def sketch_of(
    source: str,
    dtype: str,
    request: Mapping[str, Any],
    *,
    defaults: Mapping[str, Any] = NO_DEFAULTS,
    base: str | None = None,
    check: Callable[[ModelSpec], None] = lambda spec: None,
    **how: Any,
) -> Sketch:
    """Sketch what a model's request asks of devices, whatever they are: for `reckon` and `search`.

    Args:
        request: fields that differ from the model's defaults, such as height and width.
        check: of the request, by what the model is; may raise.
        how: as `models.registry.load` has it.

    Raises: CheckpointError; models.interface.pipeline.RequestError: the model cannot make this.
    """
    logical = logical_layout()
    pipeline = abstract(
        source,
        dtype,
        logical.of_parameter,
        defaults=defaults,
        base=base,
        swap_experts=False,
        **how,
    )
    check(pipeline.spec)
    (fields,) = warmup.requests(pipeline.spec, [request])
    return sketch(pipeline, fields, logical)


@contextmanager
def _folder(source: str) -> Iterator[str]:
    """Return the folder of the configs; a file, with its own place for them, is left as it is."""
    if source in published.CHECKPOINTS:
        with TemporaryDirectory() as folder:
            published.write(source, Path(folder))
            yield folder
    elif single_file(source):
        yield source
    else:
        yield str(resolve(source, patterns=CONFIGS))
