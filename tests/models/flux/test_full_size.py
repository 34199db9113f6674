"""FLUX.1's real sizes by abstract shapes: nothing is allocated, every size is exercised."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from models.flux.config import FluxConfig
from models.flux.load import abstract_modules
from models.flux.pipeline import FluxPipeline
from models.flux.spec import DEFAULT_LATENTS_PX, make_spec
from models.interface.step_program import StepProgram
from models.sampling.flow_match import FlowMatchEuler, FlowMatchStep
from models.text.clip import ClipConfig
from models.text.t5 import T5Config
from models.text.tokenizer import ClipTokenizer, T5Tokenizer
from models.vae.config import VaeConfig
from tests.models.needs import without_effect
from tests.parity.tiny import clip_tokenizer, t5_tokenizer

CLIP_L = ClipConfig(
    vocab_size=49408, hidden_size=768, intermediate_size=3072, num_attention_heads=12
)
T5_XXL = T5Config(
    d_model=4096, d_ff=10240, num_layers=24, num_heads=64, feed_forward_proj="gated-gelu"
)
FLUX_VAE = VaeConfig(
    down_block_types=("DownEncoderBlock2D",) * 4,
    up_block_types=("UpDecoderBlock2D",) * 4,
    block_out_channels=(128, 256, 512, 512),
    layers_per_block=2,
    latent_channels=16,
    use_quant_conv=False,
    use_post_quant_conv=False,
    scaling_factor=0.3611,
    shift_factor=0.1159,
)
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
    config, schedule = FluxConfig(guidance_embeds=request.param), FlowMatchEuler()
    modules = abstract_modules(config, FLUX_VAE, CLIP_L, T5_XXL, jnp.bfloat16)
    folder = tmp_path_factory.mktemp("words")
    clip_tokenizer(77).save_pretrained(folder / "clip")
    t5_tokenizer(512).save_pretrained(folder / "t5")
    spec = make_spec("flux", (folder,), config, FLUX_VAE, schedule, {})
    tokenizers = ClipTokenizer(folder / "clip"), T5Tokenizer(folder / "t5")
    return FluxPipeline(spec, modules, schedule, *tokenizers)


def count(state: nnx.State) -> int:
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(state))


def test_parameters_are_those_of_the_published_checkpoints(pipeline: FluxPipeline) -> None:
    guidance = pipeline.config.guidance_embeds
    assert count(pipeline.weights.transformer) == PARAMETERS["transformer"][guidance]
    for name in ("clip", "t5", "vae"):
        assert count(getattr(pipeline.weights, name)) == PARAMETERS[name]


@pytest.mark.parametrize("prompts", [1, 2])
def test_a_picture_of_1024_goes_through_every_program(pipeline: FluxPipeline, prompts: int) -> None:
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


def test_what_its_spec_says_to_be_without_effect_is_so(pipeline: FluxPipeline) -> None:
    small = {"width": 64, "height": 64, "num_inference_steps": 2}
    negative = {"negative_prompt": "a star", "negative_prompt_2": "a blue star"}
    assert pipeline.spec.needs.keys() == {*negative, "true_cfg_scale"}
    assert without_effect(pipeline, small | negative) == negative.keys()
    assert without_effect(pipeline, small | negative | {"true_cfg_scale": 3.0}) == set()


def test_prompts_that_are_cut_are_told_by_encoder(pipeline: FluxPipeline) -> None:
    fields = pipeline.spec.defaults | {"prompt": "a red circle " * 80, "seed": 1}
    fields |= {"width": 64, "height": 64}
    (warning,) = pipeline.prepare(fields, {}).warnings
    assert warning.field == "prompt"
    assert warning.message.startswith("CLIP reads 77 tokens; not read: 'a red circle")
    assert warning.message.endswith("more characters)'")
    (_, second) = pipeline.prepare(fields | {"max_sequence_length": 64}, {}).warnings
    assert second.message.startswith("T5 reads 64 tokens")
