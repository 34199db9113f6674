"""FLUX.1 at full size with abstract shapes: every size is traced and nothing is allocated."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from models import published
from models.flow.spec import DEFAULT_LATENTS_PX
from models.flux.load import load
from models.flux.pipeline import FluxPipeline
from models.interface.step_program import StepProgram
from models.loading.sources import Reading, Shapes
from models.sampling.flow_match import FlowMatchStep
from models.text.tokenizer import ClipTokenizer, T5Tokenizer
from tests.models.needs import without_effect
from tests.parity.tiny import clip_tokenizer, t5_tokenizer


class ShapesAndWords(Shapes):
    """Reader that loads only tokenizers and leaves weights abstract."""

    clip_tokenizer = staticmethod(ClipTokenizer)
    t5_tokenizer = staticmethod(T5Tokenizer)


PARAMETERS = {  # of FLUX.1-dev, FLUX.1-schnell and their encoders, as published on the hub
    "transformer": {True: 11_901_408_320, False: 11_891_178_560},
    "clip": 123_060_480,
    "t5": 4_762_310_656,
    "vae": 83_819_683,
}


@pytest.fixture(scope="module", params=[True, False], ids=["dev", "schnell"])
def pipeline(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> FluxPipeline:
    folder = tmp_path_factory.mktemp("flux")
    published.write("flux-dev" if request.param else "flux-schnell", folder)
    clip_tokenizer(77).save_pretrained(folder / "tokenizer")
    t5_tokenizer(512).save_pretrained(folder / "tokenizer_2")
    return load("flux", folder, jnp.bfloat16, reading=Reading(reader=ShapesAndWords()))


def count(state: nnx.State) -> int:
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(state))


def test_parameters_are_those_of_the_published_checkpoints(pipeline: FluxPipeline) -> None:
    guidance = pipeline.config.guidance_embeds
    assert count(pipeline.weights.transformer) == PARAMETERS["transformer"][guidance]
    for name in ("clip", "t5", "vae"):
        assert count(getattr(pipeline.weights, name)) == PARAMETERS[name]


@pytest.mark.parametrize("prompts", [1, 2])
def test_image_of_1024_traces_every_program(pipeline: FluxPipeline, prompts: int) -> None:
    side = DEFAULT_LATENTS_PX
    ids = {
        "clip_ids": jax.ShapeDtypeStruct((prompts, 77), jnp.int32),
        "t5_ids": jax.ShapeDtypeStruct((prompts, 512), jnp.int32),
    }
    noise = jax.ShapeDtypeStruct((side, side, 16), jnp.float32)
    row = jax.eval_shape(pipeline.encode, pipeline.weights, {**ids, "noise": noise})
    assert row["latents"].shape == (4096, 64)
    assert row["prompt_embeds"].shape == (prompts, 512, 4096)
    rows = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((2, *leaf.shape), leaf.dtype), row)
    names = ("timestep", "solver.sigma", "solver.sigma_next", "guidance_scale", "true_cfg_scale")
    values = {name: jax.ShapeDtypeStruct((2,), jnp.float32) for name in names}
    step = jax.jit(pipeline.step, static_argnums=0)
    program = StepProgram("transformer", guided=prompts == 2, solver=FlowMatchStep())
    after = jax.eval_shape(step, program, pipeline.weights, rows, values)
    assert jax.tree.map(jnp.shape, after) == jax.tree.map(jnp.shape, rows)
    pixels = jax.eval_shape(pipeline.decode, pipeline.weights, row)
    assert (pixels.shape, pixels.dtype) == ((1024, 1024, 3), jnp.uint8)


def test_defaults_are_those_of_the_published_pipelines(pipeline: FluxPipeline) -> None:
    spec = pipeline.spec
    assert (spec.defaults["width"], spec.defaults["max_sequence_length"]) == (1024, 512)
    assert spec.limits.size_multiple_px == 16
    assert spec.defaults_for("image-to-image")["strength"] == 0.6
    if pipeline.config.guidance_embeds:
        assert spec.defaults_for("image-to-image")["guidance_scale"] == 7.0
        assert spec.defaults["guidance_scale"] == 3.5


def test_a_guidance_scale_is_taken_where_the_network_has_an_input_for_it(
    pipeline: FluxPipeline,
) -> None:
    spec, guidance = pipeline.spec, pipeline.config.guidance_embeds
    assert ("guidance_scale" in spec.fields) is guidance
    assert ("guidance_scale" in spec.defaults_for("image-to-image")) is guidance


def test_fields_listed_as_ineffective_have_no_effect(pipeline: FluxPipeline) -> None:
    small = {"width": 64, "height": 64, "num_inference_steps": 2}
    negative = {"negative_prompt": "a star", "negative_prompt_2": "a blue star"}
    assert pipeline.spec.needs.keys() == {*negative, "true_cfg_scale"}
    assert without_effect(pipeline, small | negative) == negative.keys()
    assert without_effect(pipeline, small | negative | {"true_cfg_scale": 3.0}) == set()


def test_truncated_prompts_are_reported_by_encoder(pipeline: FluxPipeline) -> None:
    fields = pipeline.spec.defaults | {"prompt": "a red circle " * 80, "seed": 1}
    fields |= {"width": 64, "height": 64}
    (warning,) = pipeline.prepare(fields, {}).warnings
    assert warning.field == "prompt"
    assert warning.message.startswith("CLIP reads 77 tokens; not read: 'a red circle")
    assert warning.message.endswith("more characters)'")
    (_, second) = pipeline.prepare(fields | {"max_sequence_length": 64}, {}).warnings
    assert second.message.startswith("T5 reads 64 tokens")
