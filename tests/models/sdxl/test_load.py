"""SDXL checkpoints: supported ones with their defaults, and refusals of all others."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from models import registry
from models.checkpoint.folder import CheckpointError, UnsupportedCheckpoint
from models.loading.abstract import abstract_module
from models.sdxl.compatibility import Parts, check_fit, check_index
from models.sdxl.config import UNetConfig
from models.sdxl.latents import LatentSpace
from models.sdxl.published import SDXL_BASE, SDXL_INPAINTING, SDXL_REFINER
from models.sdxl.source import COMPONENTS
from models.sdxl.spec import make_spec
from models.spec.model_spec import ModelSpec
from models.text.clip import ClipConfig, ClipTextModel
from models.vae.config import VaeConfig
from models.weights.loader import flat_parameters, load
from tests.models.sdxl.original_writer import write_original, write_refiner
from tests.parity.tiny_sdxl import make_refiner, make_sdxl

VAE = VaeConfig.from_dict(SDXL_BASE["vae"])
CLIP = ClipConfig.from_dict(SDXL_BASE["text_encoder"])
INDEX = {
    "text_encoder": ["transformers", "CLIPTextModel"],
    "text_encoder_2": ["transformers", "CLIPTextModelWithProjection"],
    "tokenizer": ["transformers", "CLIPTokenizer"],
    "tokenizer_2": ["transformers", "CLIPTokenizer"],
    "unet": ["diffusers", "UNet2DConditionModel"],
    "vae": ["diffusers", "AutoencoderKL"],
}
"""`model_index.json` of SDXL base 1.0."""


def spec(checkpoint: Any = SDXL_BASE, **chosen: Any) -> ModelSpec:
    parts = Parts(UNetConfig.from_dict(checkpoint["unet"]), CLIP, CLIP, VAE)
    return make_spec("sdxl", "print", parts, chosen, "EulerDiscreteScheduler")


def test_defaults_are_those_of_diffusers_pipelines() -> None:
    defaults = spec().defaults_for("text-to-image")
    assert (defaults["width"], defaults["height"]) == (1024, 1024)
    assert (defaults["num_inference_steps"], defaults["guidance_scale"]) == (50, 5.0)
    assert spec().defaults_for("image-to-image")["strength"] == 0.3
    inpainting = spec().defaults_for("inpainting")
    assert (inpainting["strength"], inpainting["guidance_scale"]) == (0.9999, 7.5)


def test_configured_defaults_override_task_defaults() -> None:
    chosen = spec(guidance_scale=0.0, num_inference_steps=4)
    assert chosen.defaults_for("inpainting")["guidance_scale"] == 0.0
    assert chosen.defaults["num_inference_steps"] == 4
    with pytest.raises(ValueError, match="true_cfg_scale"):
        spec(true_cfg_scale=2.0)


def test_the_unets_input_decides_the_tasks() -> None:
    assert spec().tasks == ("text-to-image", "image-to-image", "inpainting")
    assert spec(SDXL_INPAINTING).tasks == ("inpainting",)
    assert set(spec(SDXL_INPAINTING).task_defaults) == {"inpainting"}
    with pytest.raises(ValueError, match="in_channels 8"):
        spec({"unet": {**SDXL_BASE["unet"], "in_channels": 8}})


def test_spec_has_facts_about_steps_and_layers() -> None:
    base_spec = spec()
    assert (base_spec.strength_rounds, base_spec.sigmas_are) == ("down", "noise levels")
    assert base_spec.step_lists[base_spec.scheduler] == {"timesteps", "sigmas"}
    assert base_spec.step_lists["ddim"] == frozenset()
    assert base_spec.limits.max_clip_skip == CLIP.num_hidden_layers - 1


def test_schedulers_come_with_their_options() -> None:
    schedulers = spec().schedulers
    assert {"euler", "euler_ancestral", "ddim", "dpmpp_2m", "unipc", "lcm"} <= schedulers.keys()
    assert "flow_match_euler" not in schedulers
    assert "use_karras_sigmas" in schedulers["dpmpp_2m"]


@pytest.mark.parametrize(
    ("index", "named"),
    [
        ({"text_encoder": [None, None]}, "names no text_encoder"),
        ({"tokenizer_2": [None, None]}, "names no tokenizer_2"),
        ({"vae": ["diffusers", "AutoencoderTiny"]}, "vae AutoencoderTiny is not AutoencoderKL"),
        ({"text_encoder": INDEX["text_encoder_2"]}, "text_encoder CLIPTextModelWithProjection"),
    ],
)
def test_checkpoints_of_other_parts_are_refused_by_name(index: dict[str, Any], named: str) -> None:
    check_index(INDEX)
    with pytest.raises(UnsupportedCheckpoint, match=named):
        check_index(INDEX | index)


def test_refiner_has_one_encoder_and_a_score_input() -> None:
    check_index(INDEX | {"text_encoder": [None, None], "tokenizer": [None, None]})
    config = UNetConfig.from_dict(SDXL_REFINER["unet"])
    parts = Parts(config, None, ClipConfig.from_dict(SDXL_REFINER["text_encoder_2"]), VAE, True)
    check_fit(parts)
    with pytest.raises(ValueError, match="projection_class_embeddings_input_dim is 2560"):
        check_fit(parts._replace(scored=False))
    refiner_spec = make_spec("refiner", "print", parts, {}, "EulerDiscreteScheduler")
    assert refiner_spec.tasks == ("image-to-image", "inpainting")
    assert (
        refiner_spec.defaults["aesthetic_score"],
        refiner_spec.defaults["negative_aesthetic_score"],
    ) == (6, 2.5)
    additional = {"aesthetic_score", "negative_aesthetic_score"}
    unread = {"prompt_2", "negative_prompt_2", "target_size", "negative_target_size"}
    assert (refiner_spec.fields - spec().fields, spec().fields - refiner_spec.fields) == (
        additional,
        unread,
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_sdxl(tmp_path_factory.mktemp("sdxl"))


@pytest.mark.parametrize(
    ("component", "change", "named"),
    [
        ("unet/config.json", {"in_channels": 5}, "in_channels 5"),
        ("unet/config.json", {"cross_attention_dim": 57}, "cross_attention_dim is 57"),
        ("unet/config.json", {"addition_embed_type": None}, "addition_embed_type None"),
        ("text_encoder_2/config.json", {"projection_dim": 9}, "projection_class_embeddings"),
        ("vae/config.json", {"latent_channels": 8}, "vae latent_channels is 8"),
        ("vae/config.json", {"in_channels": 1}, "vae in_channels is 1"),
        (
            "scheduler/scheduler_config.json",
            {"_class_name": "SASolverScheduler"},
            "SASolverScheduler",
        ),
        (
            "model_index.json",
            {"scheduler": ["diffusers", "SASolverScheduler"]},
            "SASolverScheduler",
        ),
    ],
)
def test_invalid_or_unfitting_components_are_rejected_by_name(
    folder: Path, component: str, change: dict[str, Any], named: str
) -> None:
    file = folder / component
    right = file.read_text()
    file.write_text(json.dumps(json.loads(right) | change))
    try:
        with pytest.raises(CheckpointError, match=named):
            registry.load("tiny", str(folder), "float32", {})
    finally:
        file.write_text(right)


def test_unused_projection_is_ignored(folder: Path, tmp_path: Path) -> None:
    """transformers ignores the projection too; some programs save CLIP's complete text tower."""
    tensors = load_file(folder / "text_encoder/model.safetensors")
    save_file(tensors | {"text_projection.weight": np.ones((3, 3))}, tmp_path / "model.safetensors")
    config = ClipConfig.from_dict(json.loads((folder / "text_encoder/config.json").read_text()))
    abstract = abstract_module(ClipTextModel, config)
    _, names = COMPONENTS["clip"]
    assert flat_parameters(load(abstract, tmp_path, names, dtype=jnp.float32))


@pytest.mark.parametrize(
    ("dtype", "force_upcast", "encoding", "decoding"),
    [
        ("float16", True, "float32", "float32"),
        ("bfloat16", True, "float32", "bfloat16"),
        ("float16", False, "float16", "float16"),
        ("float32", False, "float32", "float32"),
    ],
)
def test_the_autoencoder_is_upcast_where_diffusers_does_it(
    dtype: str, force_upcast: bool, encoding: str, decoding: str
) -> None:
    config = VaeConfig.from_dict({**SDXL_BASE["vae"], "force_upcast": force_upcast})
    space = LatentSpace(config, jnp.dtype(dtype))
    assert (space.encoding_dtype, space.decoding_dtype) == (encoding, decoding)


@pytest.fixture(scope="module")
def file(folder: Path) -> Path:
    """Single file next to the folder, with the folder's name."""
    return write_original(folder, folder.with_name(f"{folder.name}.safetensors"))


def test_single_file_with_folder_configs_matches_the_folder(folder: Path, file: Path) -> None:
    from_file = registry.load("tiny", str(file), "float32", {})
    from_folder = registry.load("tiny", str(folder), "float32", {})
    assert jax.tree.structure(from_file.weights) == jax.tree.structure(from_folder.weights)
    pairs = zip(
        jax.tree.leaves(from_file.weights), jax.tree.leaves(from_folder.weights), strict=True
    )
    assert all(np.array_equal(a, b) for a, b in pairs)
    assert from_file.spec.tasks == from_folder.spec.tasks
    assert from_file.spec.fingerprint != from_folder.spec.fingerprint


def test_single_refiner_file_matches_its_folder(folder: Path, tmp_path: Path) -> None:
    refiner_folder = make_refiner(tmp_path / "refiner")
    file = write_refiner(refiner_folder, tmp_path / "refiner.safetensors")
    from_file, from_folder = (
        registry.load("tiny", str(place), "float32", {}) for place in (file, refiner_folder)
    )
    pairs = zip(
        jax.tree.leaves(from_file.weights), jax.tree.leaves(from_folder.weights), strict=True
    )
    assert all(np.array_equal(a, b) for a, b in pairs)
    assert from_file.spec.tasks == from_folder.spec.tasks == ("image-to-image", "inpainting")
    (tmp_path / "lone").mkdir()
    separate = file.rename(tmp_path / "lone" / "any.safetensors")
    assert registry.base_of(separate) == "stabilityai/stable-diffusion-xl-refiner-1.0"
    with pytest.raises(CheckpointError, match=r"it is a refiner.* of a model with two .* as base"):
        registry.load("tiny", str(separate), "float32", {}, base=str(folder))


def test_configs_of_a_single_file(folder: Path, file: Path, tmp_path: Path) -> None:
    separate = Path(shutil.copy(file, tmp_path / "lone.safetensors"))
    assert registry.base_of(file) == str(folder)
    assert registry.base_of(folder / "any.safetensors") == str(folder)
    assert registry.base_of(separate) == "stabilityai/stable-diffusion-xl-base-1.0"


def test_a_file_that_no_family_takes_is_refused(folder: Path, file: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no such file; only a single file"):
        registry.load("tiny", str(folder), "float32", {}, base=str(folder))
    pickle = tmp_path / "model.ckpt"
    pickle.write_bytes(b"\x80\x04N.")
    with pytest.raises(CheckpointError, match=r"model\.ckpt is a pickled checkpoint"):
        registry.load("tiny", str(pickle), "float32", {})
    (tmp_path / "model_index.json").write_text('{"_class_name": "LTXPipeline"}')
    with pytest.raises(UnsupportedCheckpoint, match="single files of LTXPipeline"):
        registry.load("tiny", str(file), "float32", {}, base=str(tmp_path))
