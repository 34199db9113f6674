"""Wan pipelines at published sizes in bfloat16: every program is traced, nothing allocated."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

from models.text.tokenizer import T5Tokenizer
from models.text.umt5 import UMT5Config
from models.vae.video_config import VideoVaeConfig
from models.vision.clip import ClipVisionConfig
from models.vision.preprocess import ClipPreprocessor
from models.wan import published
from models.wan.checkpoint import WanCheckpoint
from models.wan.config import WanConfig
from models.wan.load import abstract_modules, parameter_bytes
from models.wan.pipeline import Tools, WanPipeline
from models.wan.spec import make_spec
from tests.models.needs import without_effect
from tests.parity.tiny import t5_tokenizer

UMT5 = UMT5Config.from_dict(published.UMT5_XXL)
CLIP = ClipVisionConfig.from_dict(published.CLIP_VIT_H)
VAE_2_1 = VideoVaeConfig()
VAE_2_2 = VideoVaeConfig(
    base_dim=160,
    decoder_base_dim=256,
    z_dim=48,
    latents_mean=(0.0,) * 48,
    latents_std=(1.0,) * 48,
    is_residual=True,
    in_channels=12,
    out_channels=12,
    patch_size=2,
    scale_factor_spatial=16,
)
SCHEDULER = {
    "_class_name": "UniPCMultistepScheduler",
    "prediction_type": "flow_prediction",
    "use_flow_sigmas": True,
    "flow_shift": 5.0,
}
T2V, I2V, TI2V = (
    WanConfig.from_dict(config)
    for config in (published.T2V_14B, published.I2V_14B, published.TI2V_5B)
)
CHECKPOINTS = {
    "2.2 t2v": WanCheckpoint(
        {"transformer": T2V, "transformer_2": T2V}, UMT5, VAE_2_1, boundary_ratio=0.875
    ),
    "2.1 i2v": WanCheckpoint({"transformer": I2V}, UMT5, VAE_2_1, CLIP, from_image=True),
    "2.2 ti2v": WanCheckpoint({"transformer": TI2V}, UMT5, VAE_2_2, expand_timesteps=True),
}
CASES = [("2.2 t2v", False), ("2.1 i2v", True), ("2.2 ti2v", True)]


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("words")
    t5_tokenizer(512).save_pretrained(folder)
    return folder


def make(name: str, words: Path) -> WanPipeline:
    checkpoint = CHECKPOINTS[name]
    modules = abstract_modules(checkpoint, jnp.bfloat16)
    preprocessor = ClipPreprocessor() if checkpoint.image_encoder else None
    tools = Tools(SCHEDULER, T5Tokenizer(words), preprocessor)
    return WanPipeline(make_spec(name, (words,), checkpoint, {}), checkpoint, modules, tools)


def abstract(tree: Any, *leading: int) -> Any:
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct((*leading, *x.shape), x.dtype), tree)


def picture() -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (64, 48), "red").save(file, "PNG")
    return file.getvalue()


@pytest.mark.parametrize(("name", "from_image"), CASES)
def test_published_model_traces_every_program(words: Path, name: str, from_image: bool) -> None:
    pipeline = make(name, words)
    fields = pipeline.spec.defaults | {"prompt": "a red circle", "seed": 1}
    prepared = pipeline.prepare(fields, {"image": picture()} if from_image else {})
    row = jax.eval_shape(pipeline.encode, pipeline.weights, abstract(dict(prepared.inputs)))
    config, grid = pipeline.checkpoint.transformer, pipeline.grid
    shape = (21, 480 // grid.pixel, 832 // grid.pixel, config.velocity_channels)
    assert (row["latents"].shape, row["latents"].dtype) == (shape, jnp.float32)
    assert row["prompt_embeds"].shape == (2, 512, 4096)
    assert row["prompt_embeds"].dtype == jnp.bfloat16
    assert ("condition" in row) is (name == "2.1 i2v")
    assert ("first_frame" in row) is (name == "2.2 ti2v")
    step = jax.jit(pipeline.step, static_argnums=0)
    for chosen in {step.program: step for step in prepared.steps}.values():
        values = {k: jax.ShapeDtypeStruct((1,), jnp.float32) for k in chosen.values}
        after = jax.eval_shape(step, chosen.program, pipeline.weights, abstract(row, 1), values)
        assert after == abstract(row, 1), "a row keeps its shape and dtypes from step to step"
    pixels = jax.eval_shape(pipeline.decode, pipeline.weights, row)
    assert (pixels.shape, pixels.dtype) == ((81, 480, 832, 3), jnp.uint8)
    preview = jax.eval_shape(pipeline.preview, pipeline.weights, row)
    assert (preview.shape, preview.dtype) == ((*shape[:3], 3), jnp.uint8)


def test_experts_switch_at_the_boundary(words: Path) -> None:
    pipeline = make("2.2 t2v", words)
    fields = pipeline.spec.defaults | {"prompt": "a star", "seed": 1, "num_inference_steps": 40}
    steps = pipeline.prepare(fields, {}).steps
    experts = [step.program.network for step in steps]
    assert experts == ["transformer"] * 17 + ["transformer_2"] * 23
    twelve = {"scheduler": {"name": "unipc", "flow_shift": 12.0}, "guidance_scale_2": 3.0}
    shifted = pipeline.prepare(fields | twelve, {}).steps
    assert [step.program.network for step in shifted].count("transformer") == 26
    assert {float(step.values["guidance_scale"]) for step in shifted[26:]} == {3.0}
    assert {step.program for step in steps} == {step.program for step in shifted}, "compiled once"


def test_bucket_contains_program_shapes(words: Path) -> None:
    pipeline = make("2.2 ti2v", words)
    base = pipeline.spec.defaults | {"prompt": "a star", "seed": 1, "num_frames": 5}
    changes: list[dict[str, Any]] = [
        {},
        {"width": 64},
        {"num_frames": 9},
        {"max_sequence_length": 64},
        {"guidance_scale": 1.0},
        {"scheduler": {"name": "flow_match_euler"}},
        {"scheduler": {"name": "unipc", "solver_order": 3}},
    ]
    buckets = [pipeline.prepare(base | change, {}).bucket for change in changes]
    buckets.append(pipeline.prepare(base, {"image": picture()}).bucket)
    assert len(set(buckets)) == len(buckets)
    neighbour = base | {"seed": 2, "prompt": "a moon", "scheduler": {"flow_shift": 3.0}}
    assert pipeline.prepare(neighbour, {}).bucket == buckets[0]


def test_noise_is_independent_of_the_step_count(words: Path) -> None:
    pipeline = make("2.2 ti2v", words)
    base = pipeline.spec.defaults | {"prompt": "a star", "seed": 1, "num_frames": 5}
    few, many = (
        pipeline.prepare(base | {"num_inference_steps": n}, {}).inputs["noise"] for n in (2, 9)
    )
    np.testing.assert_array_equal(few, many)


def test_weights_are_in_the_models_dtype_but_for_the_vae() -> None:
    modules = abstract_modules(CHECKPOINTS["2.1 i2v"], jnp.bfloat16)
    gib = {name: parameter_bytes(module) / 2**30 for name, module in modules._asdict().items()}
    assert 30.5 < gib["transformer"] < 31.5, "16.4 billion parameters, a few of them float32"
    assert gib["transformer_2"] == 0
    assert 10.5 < gib["t5"] < 10.7, "5.68 billion parameters"
    assert 0.47 < gib["vae"] < 0.48, "127 million parameters in float32"


def test_fields_listed_as_ineffective_have_no_effect(words: Path) -> None:
    pipeline = make("2.2 t2v", words)
    small = {"width": 64, "height": 64, "num_frames": 5, "num_inference_steps": 4}
    negative = {"negative_prompt": "a star", "guidance_scale_2": 3.0}
    assert pipeline.spec.needs.keys() == negative.keys()
    assert without_effect(pipeline, small | negative) == set()
    unguided = without_effect(pipeline, small | negative | {"guidance_scale": 1.0})
    assert "negative_prompt" in unguided


def test_truncated_prompts_and_unused_options_are_warnings(words: Path) -> None:
    pipeline = make("2.2 ti2v", words)
    fields = pipeline.spec.defaults | {"prompt": "a star " * 20, "seed": 1, "num_frames": 5}
    short = pipeline.prepare(fields | {"max_sequence_length": 16, "width": 64, "height": 64}, {})
    (warning,) = short.warnings
    assert warning.field == "prompt"
    assert warning.message.startswith("UMT5 reads 16 tokens; not read: 'star a star")
    assert pipeline.prepare(fields | {"width": 64, "height": 64}, {}).warnings == ()
