"""SDXL pipelines at full size with abstract shapes: every program is traced, nothing allocated."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

from models.interface.pipeline import PreparedRow, PyTree
from models.sdxl.compatibility import Parts
from models.sdxl.config import UNetConfig
from models.sdxl.latents import LatentSpace
from models.sdxl.load import abstract_modules
from models.sdxl.pipeline import SdxlPipeline
from models.sdxl.prepare import Preparation
from models.sdxl.published import SDXL_BASE, SDXL_INPAINTING
from models.sdxl.spec import fields_of, make_spec
from models.spec.request import RequestError
from models.text.clip import ClipConfig
from models.text.tokenizer import ClipTokenizer
from models.vae.config import VaeConfig
from tests.models.needs import without_effect
from tests.parity.tiny import clip_tokenizer

SCHEDULER = {
    "_class_name": "EulerDiscreteScheduler",
    "beta_start": 0.00085,
    "beta_end": 0.012,
    "beta_schedule": "scaled_linear",
    "steps_offset": 1,
    "timestep_spacing": "leading",
}
HALF = jnp.dtype(jnp.bfloat16)


def parts_of(checkpoint: Any) -> Parts:
    return Parts(
        UNetConfig.from_dict(checkpoint["unet"]),
        ClipConfig.from_dict(checkpoint["text_encoder"]),
        ClipConfig.from_dict(checkpoint["text_encoder_2"]),
        VaeConfig.from_dict(checkpoint["vae"]),
    )


def abstract_pipeline(checkpoint: Any, words: Path) -> SdxlPipeline:
    parts = parts_of(checkpoint)
    clip_tokenizer(77).save_pretrained(words)
    preparation = Preparation(
        spec=make_spec("sdxl", "print", parts, {}, SCHEDULER["_class_name"]),
        unet=parts.unet,
        latent_space=LatentSpace(parts.vae, HALF),
        towers=parts.towers,
        tokenizers=(ClipTokenizer(words), ClipTokenizer(words)),
        scheduler=SCHEDULER,
        force_zeros_for_empty_prompt=True,
    )
    return SdxlPipeline(preparation, abstract_modules(parts, HALF))


def png() -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (8, 8), "red").save(file, "PNG")
    return file.getvalue()


def shapes(tree: PyTree) -> Any:
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), tree)


def through_shapes(pipeline: SdxlPipeline, prepared: PreparedRow) -> PyTree:
    return jax.eval_shape(pipeline.encode, pipeline.weights, shapes(dict(prepared.inputs)))


def through_every_program(pipeline: SdxlPipeline, prepared: PreparedRow) -> PyTree:
    """Trace all programs and return the encoded row; a step of two rows keeps the row's shapes."""
    row = through_shapes(pipeline, prepared)
    rows = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((2, *leaf.shape), leaf.dtype), row)
    step = prepared.steps[0]
    values = {
        name: jax.ShapeDtypeStruct((2, *np.shape(value)), jnp.float32)
        for name, value in step.values.items()
    }
    program = jax.jit(pipeline.step, static_argnums=0)
    after = jax.eval_shape(program, step.program, pipeline.weights, rows, values)
    assert shapes(after) == shapes(rows)
    pixels = jax.eval_shape(pipeline.decode, pipeline.weights, row)
    assert (pixels.shape, pixels.dtype) == ((1024, 1024, 3), jnp.uint8)
    preview = jax.eval_shape(pipeline.preview, pipeline.weights, row)
    assert (preview.shape, preview.dtype) == ((128, 128, 3), jnp.uint8)
    return row


def test_text_to_image_of_1024_traces(tmp_path: Path) -> None:
    pipeline = abstract_pipeline(SDXL_BASE, tmp_path)
    fields = pipeline.spec.defaults_for("text-to-image") | {"prompt": "a", "seed": 1}
    prepared = pipeline.prepare(fields, {})
    assert len(prepared.steps) == 50
    row = through_every_program(pipeline, prepared)
    assert (row["latents"].shape, row["latents"].dtype) == ((128, 128, 4), jnp.float32)
    assert (row["prompt_embeds"].shape, row["prompt_embeds"].dtype) == ((2, 77, 2048), HALF)
    assert row["pooled_embeds"].shape == (2, 1280)
    assert row["time_ids"].shape == (2, 6)


@pytest.mark.parametrize("checkpoint", [SDXL_BASE, SDXL_INPAINTING], ids=["4", "9"])
def test_inpainting_of_1024_traces(checkpoint: Any, tmp_path: Path) -> None:
    pipeline = abstract_pipeline(checkpoint, tmp_path)
    fields = pipeline.spec.defaults_for("inpainting") | {"prompt": "a", "seed": 1}
    ancestral = {"scheduler": {"name": "euler_ancestral"}, "num_inference_steps": 3}
    files = {"image": png(), "mask_image": png()}
    prepared = pipeline.prepare(fields | ancestral, files)
    assert len(prepared.steps) == 2  # a strength of 0.9999, rounded down
    row = through_every_program(pipeline, prepared)
    assert row["mask"].shape == (128, 128, 1)
    assert ("masked" in row) == (checkpoint is SDXL_INPAINTING)


def test_rows_that_share_a_program_share_a_bucket_and_a_phase(tmp_path: Path) -> None:
    pipeline = abstract_pipeline(SDXL_BASE, tmp_path)
    fields = pipeline.spec.defaults | {"prompt": "a", "seed": 1, "num_inference_steps": 2}

    def program(**changes: Any) -> tuple[str, str]:
        prepared = pipeline.prepare(fields | changes, {})
        return prepared.bucket, prepared.steps[0].program

    plain = program()
    assert plain == program(guidance_scale=9.0, guidance_rescale=0.5, clip_skip=2, seed=5)
    assert plain == program(scheduler={"use_karras_sigmas": True})
    assert plain == program(negative_prompt="rain")
    different = [
        program(guidance_scale=1.0),
        program(width=512),
        program(scheduler={"name": "ddim"}),
        program(scheduler={"name": "ddim"}, eta=0.5),
        program(scheduler={"name": "dpmpp_2m"}),
        program(scheduler={"name": "euler_ancestral"}),
    ]
    assert len({plain, *different}) == 1 + len(different)


def test_each_prompt_has_its_own_hidden_layer(tmp_path: Path) -> None:
    pipeline = abstract_pipeline(SDXL_BASE, tmp_path)
    fields = pipeline.spec.defaults | {"prompt": "a", "seed": 1, "num_inference_steps": 1}

    def inputs(**changes: Any) -> tuple[list[int], list[bool]]:
        inputs_of_request = pipeline.prepare(fields | changes, {}).inputs
        return inputs_of_request["layers"].tolist(), inputs_of_request["active_prompts"].tolist()

    assert inputs() == ([1, 1], [True, False])
    assert inputs(clip_skip=2, negative_prompt="") == ([3, 1], [True, True])
    assert inputs(clip_skip=11, guidance_scale=1.0) == ([12], [True])
    with pytest.raises(RequestError, match=r"clip_skip: must be less than .* 12 layers"):
        inputs(clip_skip=12)


def test_a_row_without_guidance_has_one_prompt(tmp_path: Path) -> None:
    pipeline = abstract_pipeline(SDXL_BASE, tmp_path)
    fields = pipeline.spec.defaults | {"prompt": "a", "seed": 1, "guidance_scale": 0.0}
    inputs = shapes(dict(pipeline.prepare(fields, {}).inputs))
    row = jax.eval_shape(pipeline.encode, pipeline.weights, inputs)
    assert row["prompt_embeds"].shape == (1, 77, 2048)
    assert (row["pooled_embeds"].shape, row["time_ids"].shape) == ((1, 1280), (1, 6))


NEGATIVE = {
    "negative_prompt": "a star",
    "negative_prompt_2": "a blue star",
    "guidance_rescale": 0.5,
    "negative_original_size": [48, 40],
    "negative_target_size": [32, 32],
    "negative_crops_coords_top_left": [8, 8],
}
SMALL = {"width": 64, "height": 64, "num_inference_steps": 2}


def test_fields_listed_as_ineffective_have_no_effect(tmp_path: Path) -> None:
    pipeline = abstract_pipeline(SDXL_BASE, tmp_path)
    needs = pipeline.spec.needs
    assert needs.keys() == NEGATIVE.keys() | {"eta"}
    unguided = {**SMALL, **NEGATIVE, "guidance_scale": 1.0}
    idle = without_effect(pipeline, unguided)
    # without separate conditioning for the second prompt, only the scale's number differs
    assert idle - {"guidance_rescale"} == NEGATIVE.keys() - {"guidance_rescale"}
    assert not without_effect(pipeline, {**SMALL, **NEGATIVE})
    # if `heard` is false, the device replaces the second encoder's text by zeros
    unread = {name: NEGATIVE[name] for name in ("negative_prompt_2", "negative_original_size")}
    assert without_effect(pipeline, SMALL | unread) == {"negative_original_size"}
    image = {"image": png()}
    by_image = without_effect(pipeline, {**SMALL, **NEGATIVE, "strength": 0.6}, image)
    assert by_image == {"negative_crops_coords_top_left"}
    for scheduler, is_idle in (("ddim", False), ("euler", True)):
        fields = {**SMALL, "scheduler": {"name": scheduler}, "eta": 0.5}
        assert ("eta" in without_effect(pipeline, fields)) is is_idle


def test_truncated_prompts_and_unused_options_are_warnings(tmp_path: Path) -> None:
    pipeline = abstract_pipeline(SDXL_BASE, tmp_path)
    fields = pipeline.spec.defaults | SMALL | {"prompt": "a red circle " * 30, "seed": 1}

    def warnings(**changes: Any) -> list[tuple[str, str]]:
        return [(w.field, w.message) for w in pipeline.prepare(fields | changes, {}).warnings]

    ending = f"reads 77 tokens; not read: {('a red circle ' * 5).strip()!r}"
    assert warnings() == [("prompt", f"CLIP-L {ending}"), ("prompt", f"CLIP-G {ending}")]
    assert warnings(prompt="a") == []
    second = warnings(prompt="a", prompt_2="a star " * 80, negative_prompt="a star " * 80)
    assert [field for field, _ in second] == ["negative_prompt", "prompt_2", "negative_prompt"]
    assert warnings(prompt="a", negative_prompt="a star " * 80, guidance_scale=1.0) == []
    karras = {"name": "euler", "use_karras_sigmas": True}
    assert warnings(prompt="a", scheduler=karras) == []
    thresholding = {"name": "ddim", "dynamic_thresholding_ratio": 0.9}
    ((field, message),) = warnings(prompt="a", scheduler=thresholding)
    assert field == "scheduler.dynamic_thresholding_ratio"
    assert "no effect" in message


@pytest.mark.parametrize("prompt", ["a red circle", "a (red:1.0) circle", "a [(red)] circle", ""])
def test_a_weight_of_one_changes_nothing(tmp_path: Path, prompt: str) -> None:
    """Inputs, bucket and steps are equal, so the same programs compute the same bits."""
    pipeline = abstract_pipeline(SDXL_BASE, tmp_path)
    fields = pipeline.spec.defaults | SMALL | {"seed": 1, "negative_prompt": "a star"}
    bare = "".join(letter for letter in prompt if letter not in "()[]:.10")
    plain = pipeline.prepare(fields | {"prompt": bare}, {})
    weighted = pipeline.prepare(fields | {"prompt": prompt, "prompt_syntax": "weighted"}, {})
    assert weighted.inputs.keys() == plain.inputs.keys()
    for name, value in plain.inputs.items():
        np.testing.assert_array_equal(weighted.inputs[name], value)
        assert weighted.inputs[name].dtype == value.dtype
    assert weighted.bucket == plain.bucket
    assert weighted.warnings == plain.warnings == ()


def test_weighted_prompts_share_the_steps_of_plain_ones(tmp_path: Path) -> None:
    """Weights affect only the encoder's program; each number of chunks has its own step program."""
    pipeline = abstract_pipeline(SDXL_BASE, tmp_path)
    fields = pipeline.spec.defaults | SMALL | {"seed": 1, "prompt_syntax": "weighted"}

    def prepared(**changes: Any) -> PreparedRow:
        return pipeline.prepare(fields | changes, {})

    weighted = prepared(prompt="a (red:1.2)")
    plain = prepared(prompt="a (red)", prompt_syntax="plain")
    assert weighted.bucket == plain.bucket
    assert weighted.inputs.keys() - plain.inputs.keys() == {"token_weights", "token_weights_2"}
    long = prepared(prompt="a red circle " * 30)
    assert "text=154," in long.bucket
    assert long.inputs["ids"].shape == (2, 2, 77)
    assert "token_weights" not in long.inputs
    assert through_shapes(pipeline, plain) == through_shapes(pipeline, weighted)
    assert through_shapes(pipeline, long)["prompt_embeds"].shape == (2, 154, 2048)


def test_truncated_weighted_prompt_is_a_warning(tmp_path: Path) -> None:
    pipeline = abstract_pipeline(SDXL_BASE, tmp_path)
    fields = pipeline.spec.defaults | SMALL | {"seed": 1, "prompt_syntax": "weighted"}
    prompt = "a (red:1.2) circle " * 101
    warnings = pipeline.prepare(fields | {"prompt": prompt}, {}).warnings
    ending = "reads 4 chunks of 75 tokens; not read: 'a red circle'"
    assert [(warning.field, warning.message) for warning in warnings] == [
        ("prompt", f"CLIP-L {ending}"),
        ("prompt", f"CLIP-G {ending}"),
    ]


@pytest.mark.parametrize("field", ["prompt", "prompt_2", "negative_prompt", "negative_prompt_2"])
def test_weights_out_of_range_name_their_field(tmp_path: Path, field: str) -> None:
    pipeline = abstract_pipeline(SDXL_BASE, tmp_path)
    fields = pipeline.spec.defaults | SMALL | {"prompt": "a", "seed": 1}
    wrong = {"prompt_syntax": "weighted", field: "(a:1000)"}
    with pytest.raises(RequestError, match=f"{field}: a weight is 1000"):
        pipeline.prepare(fields | wrong, {})


def test_a_network_with_distilled_guidance_takes_nothing_negative() -> None:
    parts = parts_of(SDXL_BASE)
    plain, distilled = (
        fields_of(parts._replace(unet=UNetConfig.from_dict(SDXL_BASE["unet"] | change)))
        for change in ({}, {"time_cond_proj_dim": 256})
    )
    assert plain - distilled == NEGATIVE.keys()
