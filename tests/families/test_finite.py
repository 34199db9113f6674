"""Non-finite outputs: a decoder that overflows fails the job, instead of a black image."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path
from typing import Any

import jax
import pytest

from models.interface.finite import IMAGE, SOUND, decode_checked
from models.interface.pipeline import Clip, Pipeline
from models.parallel.axis_rules import Layout
from tests.families.suite import EVERY, loaded
from workers.engine.engine import Engine
from workers.engine.errors import NON_FINITE, GenerationFailed


@pytest.fixture(scope="module")
def folder(family: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return EVERY[family].least(tmp_path_factory.mktemp("least") / family)


def request(family: str, pipeline: Pipeline) -> dict[str, Any]:
    return {**pipeline.spec.defaults, **EVERY[family].smallest_request, "seed": 1}


def test_every_part_of_an_output_is_checked(family: str, folder: Path) -> None:
    pipeline = loaded(family, folder, "float32")
    prepared = pipeline.prepare(request(family, pipeline), EVERY[family].images)
    row = jax.eval_shape(pipeline.encode, pipeline.weights, dict(prepared.inputs))
    for function in (pipeline.decode, pipeline.preview):
        output = jax.eval_shape(partial(decode_checked, function), pipeline.weights, row)
        parts = {IMAGE, SOUND} if isinstance(output.decoded, Clip) else {IMAGE}
        assert output.finite.keys() == parts, function


async def test_a_decoder_that_overflows_ends_the_job(
    family: str, folder: Path, layout: Layout
) -> None:
    pipeline = loaded(family, folder, "float32")
    pipeline.weights = jax.tree_util.tree_map_with_path(overflowing, pipeline.weights)
    engine = Engine(pipeline, layout, slots=1)
    try:
        with pytest.raises(GenerationFailed, match=r"the VAE's decoder.* float32") as failure:
            await engine.generate(request(family, pipeline), EVERY[family].images)
    finally:
        engine.close()
    assert failure.value.error.code == NON_FINITE


def overflowing(path: Any, weight: Any) -> Any:
    """Return infinite weights for the VAE's decoder, and all others unchanged."""
    name = jax.tree_util.keystr(path)
    return weight * math.inf if "vae" in name and "decoder" in name else weight
