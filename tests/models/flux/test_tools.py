"""Flux tools: their specs for the front end, and refused mixtures of tools' parts."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest

from models import published, registry
from models.checkpoint.folder import CheckpointError, read_reference_px
from models.flux.config import FluxConfig
from models.flux.kinds import KINDS, kind_of
from models.loading.sources import SHAPES
from models.spec.model_spec import ModelSpec
from models.vae.config import VaeConfig
from models.vae.published import FLUX_1
from service.errors.problems import Invalid
from service.schemas.request import GenerateRequest
from service.settings.limits import LimitSettings
from service.validation.resolved_fields import ResolvedFields, resolve

IMAGE = "data:image/png;base64,AAAA"
CHANNELS = {
    "FluxPipeline": 64,
    "FluxImg2ImgPipeline": 64,
    "FluxFillPipeline": 384,
    "FluxControlPipeline": 128,
    "FluxKontextPipeline": 64,
}
"""Channels of a token in published checkpoints."""

VAE = VaeConfig.from_dict(FLUX_1)

Specs = Callable[[str], ModelSpec]


@pytest.fixture(scope="module")
def specs(tmp_path_factory: pytest.TempPathFactory) -> Specs:
    """Specs of published checkpoints, by name."""

    @cache
    def spec(name: str) -> ModelSpec:
        folder = tmp_path_factory.mktemp(name)
        published.write(name, folder)
        return registry.load(name, str(folder), "bfloat16", {}, reader=SHAPES).spec

    return spec


def resolved(spec: ModelSpec, **fields: Any) -> ResolvedFields:
    request = GenerateRequest.model_validate({"prompt": "a cat", **fields})
    return resolve(request, spec, LimitSettings())


def wrong_fields(spec: ModelSpec, **fields: Any) -> dict[str, str]:
    with pytest.raises(Invalid) as refused:
        resolved(spec, **fields)
    return {error.field: error.message for error in refused.value.errors}


@pytest.mark.parametrize("kind", KINDS)
def test_a_checkpoint_of_another_kind_is_refused_by_its_channels(kind: str) -> None:
    config = FluxConfig(in_channels=CHANNELS[kind], out_channels=64)
    assert kind_of(kind, config, VAE) is KINDS[kind]
    other = FluxConfig(in_channels=CHANNELS[kind] + 4, out_channels=64)
    with pytest.raises(ValueError, match=f"in_channels is {CHANNELS[kind] + 4}, but a {kind} .*"):
        kind_of(kind, other, VAE)


def test_settings_say_which_pipeline_a_checkpoint_is_used_by(tmp_path: Path) -> None:
    """The folder represents Kontext's weights in one file, with another Flux as its base."""
    published.write("flux-dev", tmp_path)
    load = partial(registry.load, "edit", str(tmp_path), "bfloat16", {}, reader=SHAPES)
    spec = load(pipeline="FluxKontextPipeline").spec
    assert spec.tasks == ("image-to-image", "text-to-image")
    assert spec.read_pixels == {"image": 1024**2}
    (tmp_path / "atelier.json").write_text('{"reference_px": 512}')
    assert load(pipeline="FluxKontextPipeline").spec.read_pixels == {"image": 512**2}
    assert load().spec.read_pixels == {}
    as_kontext, as_flux = load(pipeline="FluxKontextPipeline"), load(pipeline="FluxPipeline")
    assert as_kontext.spec.fingerprint != load().spec.fingerprint == as_flux.spec.fingerprint
    with pytest.raises(CheckpointError, match="in_channels is 64, but a FluxFillPipeline"):
        load(pipeline="FluxFillPipeline")
    with pytest.raises(CheckpointError, match="pipeline is WanPipeline, but it can only be Flux"):
        load(pipeline="WanPipeline")


def test_other_families_are_used_as_their_index_says(tmp_path: Path) -> None:
    published.write("sdxl", tmp_path)
    with pytest.raises(CheckpointError, match="can only be StableDiffusionXLPipeline"):
        registry.load("a", str(tmp_path), "bfloat16", {}, pipeline="FluxPipeline", reader=SHAPES)


@pytest.mark.parametrize("side", [0, -96, "96", True])
def test_a_reference_of_no_size_is_refused(tmp_path: Path, side: Any) -> None:
    (tmp_path / "atelier.json").write_text(json.dumps({"reference_px": side}))
    with pytest.raises(CheckpointError, match="reference_px should be a positive number"):
        read_reference_px(tmp_path)


def test_fill_has_the_defaults_of_its_pipeline(specs: Specs) -> None:
    fields = resolved(specs("flux-fill"), image=IMAGE, mask_image=IMAGE).fields
    assert fields["strength"] == 1.0 and fields["guidance_scale"] == 30.0
    assert (fields["num_inference_steps"], fields["width"], fields["height"]) == (50, 1024, 1024)


def test_fill_names_the_missing_image(specs: Specs) -> None:
    spec = specs("flux-fill")
    assert wrong_fields(spec).keys() == {"image", "mask_image"}
    (message,) = wrong_fields(spec, image=IMAGE).values()
    assert message.startswith("the model 'flux-fill' supports inpainting: send an image that is")
    refused = wrong_fields(spec, mask_image=IMAGE)
    assert refused == {"mask_image": "also send the image that it masks, as image"}


def test_fill_refuses_a_negative_prompt_by_name(specs: Specs) -> None:
    fields = {"negative_prompt": "a star", "true_cfg_scale": 2.0}
    refused = wrong_fields(specs("flux-fill"), image=IMAGE, mask_image=IMAGE, **fields)
    assert refused == dict.fromkeys(fields, "the model 'flux-fill' does not support this field")


def test_a_control_model_has_the_defaults_of_its_pipeline(specs: Specs) -> None:
    request = resolved(specs("flux-canny"), control_image=IMAGE)
    assert request.task == "text-to-image"
    assert (request.fields["num_inference_steps"], request.fields["guidance_scale"]) == (28, 3.5)


def test_control_model_names_required_and_unsupported_fields(specs: Specs) -> None:
    spec = specs("flux-canny")
    assert wrong_fields(spec)["control_image"].endswith("follow, as control_image")
    refused = wrong_fields(spec, control_image=IMAGE, image=IMAGE, strength=0.5)
    assert refused.keys() == {"image", "strength"}


def test_other_models_take_no_control_image(specs: Specs) -> None:
    assert wrong_fields(specs("flux-kontext"), control_image=IMAGE).keys() == {"control_image"}


def test_kontext_edits_or_generates_from_text(specs: Specs) -> None:
    spec = specs("flux-kontext")
    edit = resolved(spec, image=IMAGE, negative_prompt="a star", true_cfg_scale=2.0)
    assert (edit.task, edit.steps, edit.fields["guidance_scale"]) == ("image-to-image", 28, 3.5)
    assert resolved(spec).task == "text-to-image"
    assert wrong_fields(spec, image=IMAGE, strength=0.5).keys() == {"strength"}
