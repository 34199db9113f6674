"""Abstract models without weights, from a checkpoint's configs or a published checkpoint's name."""

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
    """Return the pipeline with abstract weights, placed by `sharding`; reads configs only.

    Args:
        source: as in the settings (only the configs of a hub id are fetched), or a name of
            `models.published.CHECKPOINTS`.
        base, how: as in `models.registry.load`.

    Raises: models.checkpoint.folder.CheckpointError: no such model, or an unsupported one.
    """
    with _folder(source) as place:
        how = {**neighboring_networks(source, Path(place)), **how}
        return registry.load(
            source, place, dtype, defaults, base=base, sharding=sharding, reader=SHAPES, **how
        )


def neighboring_networks(source: str, place: Path) -> dict[str, Any]:
    """Return arguments of `models.registry.load` for networks next to a published checkpoint."""
    prompts, controls = published.image_prompts(source, place), published.controls(source, place)
    return {
        "image_prompts": {name: ImagePromptSource(path) for name, path in prompts.items()},
        "controls": {name: ControlSource(**options) for name, options in controls.items()},
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
    """Trace a request's operations and memory, independent of devices, for `estimate` and `search`.

    Args:
        request: fields that differ from the model's defaults, such as height and width.
        check: validates the request against the model's spec; may raise.
        how: as in `models.registry.load`.

    Raises: CheckpointError; models.spec.request.RequestError: the model rejects the request.
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
    """Yield the folder of a model's configs; a single file is yielded unchanged."""
    if source in published.CHECKPOINTS:
        with TemporaryDirectory() as folder:
            published.write(source, Path(folder))
            yield folder
    elif single_file(source):
        yield source
    else:
        yield str(resolve(source, patterns=CONFIGS))
