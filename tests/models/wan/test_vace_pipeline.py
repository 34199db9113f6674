"""VACE pipelines at published sizes in bfloat16 with abstract shapes, their spec and buckets."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from PIL import Image

from models.spec.request import RequestError
from models.text.tokenizer import T5Tokenizer
from models.wan import published
from models.wan.checkpoint import WanCheckpoint
from models.wan.load import abstract_modules
from models.wan.pipeline import Tools
from models.wan.spec import make_spec
from models.wan.vace_config import VaceConfig
from models.wan.vace_pipeline import VacePipeline
from service.jobs.scheduling.cost_model import volume_of
from tests.models.wan.test_pipeline import SCHEDULER, UMT5, VAE_2_1, abstract, words
from tests.parity.distances import png

__all__ = ["words"]

RED = png(Image.new("RGB", (64, 48), "red"))
CONTROL = {"control_video.0": RED, "mask_video.0": RED}
TWO = {"reference_images.0": RED, "reference_images.1": RED}
SMALL = {"width": 64, "height": 64, "num_frames": 5, "num_inference_steps": 2}


def make(words: Path, name: str = "VACE_1_3B", **changes: Any) -> VacePipeline:
    config = replace(VaceConfig.from_dict(getattr(published, name)), **changes)
    checkpoint = WanCheckpoint({"transformer": config}, UMT5, VAE_2_1)
    modules = abstract_modules(checkpoint, jnp.bfloat16)
    spec = make_spec("vace", (words,), checkpoint, {})
    return VacePipeline(spec, checkpoint, modules, Tools(SCHEDULER, T5Tokenizer(words), None))


def fields(pipeline: VacePipeline, **changes: Any) -> dict[str, Any]:
    return {**pipeline.spec.defaults, "prompt": "a red circle", "seed": 1, **changes}


@pytest.mark.parametrize(("name", "hints"), [("VACE_1_3B", 15), ("VACE_14B", 8)])
def test_published_model_traces_every_program(words: Path, name: str, hints: int) -> None:
    pipeline = make(words, name)
    prepared = pipeline.prepare(fields(pipeline), {**CONTROL, **TWO})
    row = jax.eval_shape(pipeline.encode, pipeline.weights, abstract(dict(prepared.inputs)))
    assert (row["latents"].shape, row["latents"].dtype) == ((23, 60, 104, 16), jnp.float32)
    assert (row["control"].shape, row["control"].dtype) == ((21, 60, 104, 96), jnp.bfloat16)
    assert (row["references"].shape, row["references"].dtype) == ((2, 60, 104, 16), jnp.bfloat16)
    assert row["hint_scales"].shape == (hints,)
    step = jax.jit(pipeline.step, static_argnums=0)
    for chosen in {step.program: step for step in prepared.steps}.values():
        values = {name: jax.ShapeDtypeStruct((1,), jnp.float32) for name in chosen.values}
        after = jax.eval_shape(step, chosen.program, pipeline.weights, abstract(row, 1), values)
        assert after == abstract(row, 1), "a row keeps its shape and dtypes from step to step"
    pixels = jax.eval_shape(pipeline.decode, pipeline.weights, row)
    assert (pixels.shape, pixels.dtype) == ((81, 480, 832, 3), jnp.uint8)
    assert jax.eval_shape(pipeline.preview, pipeline.weights, row).shape == (21, 60, 104, 3)


def test_rows_with_as_many_references_share_a_bucket(words: Path) -> None:
    pipeline = make(words)
    request = fields(pipeline, **SMALL)
    single = {"reference_images.0": RED}
    buckets = [pipeline.prepare(request, images).bucket for images in ({}, single, TWO)]
    assert len({*buckets}) == 3
    ends = {"image": RED, "last_image": RED}
    scaled = fields(pipeline, **SMALL, conditioning_scale=[0.5])
    assert {pipeline.prepare(scaled, images).bucket for images in ({}, CONTROL, ends)} == {
        buckets[0]
    }


def test_more_references_than_rope_reaches_are_refused(words: Path) -> None:
    pipeline = make(words, rope_max_seq_len=4)
    request = fields(pipeline, **{**SMALL, "num_frames": 13})
    pipeline.prepare(request, {})
    with pytest.raises(RequestError, match="5 latent frames are more than 4") as error:
        pipeline.prepare(request, {"reference_images.0": RED})
    assert error.value.field == "reference_images"


def test_spec_lists_inputs_and_their_cost(words: Path) -> None:
    spec = make(words).spec
    assert spec.tasks == ("text-to-video", "image-to-video")
    expected = {"control_video", "mask_video", "reference_images", "image", "last_image"}
    assert spec.fields >= {*expected, "conditioning_scale"}
    assert (spec.limits.max_reference_images, spec.limits.conditioning_scales) == (8, 15)
    request = {**spec.defaults, "control_video": "a key"}
    without, with_references = (
        spec.bucket({**request, **more}) for more in ({}, {"reference_images": ["a", "b"]})
    )
    assert volume_of(without) == 832 * 480 * 81
    assert volume_of(with_references) == 832 * 480 * (81 + 8)
