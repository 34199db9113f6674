"""Redux with a Flux checkpoint: valid requests, and files that fit or are refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from PIL import Image
from safetensors.torch import load_file, save_file

from models import registry
from models.checkpoint.folder import CheckpointError, WeightsError
from models.flux.redux import OF_TEXT, PIXELS, SCALES, counted_text
from models.interface.pipeline import Pipeline, PreparedRow
from models.loading.sources import SHAPES, ImagePromptSource
from models.spec.request import RequestError
from tests.models.single_files import are_equal
from tests.parity.distances import png
from tests.parity.test_flux import BASE
from tests.parity.tiny import make_flux
from tests.parity.tiny_redux import make_redux

FILES = {
    f"image_prompts.{index}.image": png(Image.new("RGB", (30, 20), (40 * index, 9, 200)))
    for index in range(2)
}


@pytest.fixture(scope="module")
def flux(tmp_path_factory: pytest.TempPathFactory) -> Path:
    layers = {"num_layers": 1, "num_single_layers": 0}
    return make_flux(tmp_path_factory.mktemp("flux") / "flux", transformer=layers)


@pytest.fixture(scope="module")
def redux(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_redux(tmp_path_factory.mktemp("redux") / "redux")


def load(flux: Path, source: ImagePromptSource, **options: Any) -> Any:
    return registry.load(
        "tiny", str(flux), "float32", {}, image_prompts={"redux": source}, **options
    )


@pytest.fixture(scope="module")
def pipeline(flux: Path, redux: Path) -> Any:
    return load(flux, ImagePromptSource(str(redux)))


def prepared(pipeline: Pipeline, *scales: float, **changes: Any) -> PreparedRow:
    entries = [{"scale": scale} for scale in scales]
    return pipeline.prepare({**BASE, "image_prompts": entries, **changes}, FILES)


def test_any_number_of_images_shares_a_batch(pipeline: Pipeline) -> None:
    without, single, double = (prepared(pipeline, *scales) for scales in ((), (0.5,), (0.5, 0.4)))
    assert single.bucket == double.bucket != without.bucket
    assert (len(single.inputs[PIXELS]), len(double.inputs[PIXELS])) == (1, 2)
    assert PIXELS not in without.inputs
    specs = [pipeline.spec.bucket({**BASE, "image_prompts": [{}] * count}) for count in (0, 1, 2)]
    assert specs[1] == specs[2] == f"{specs[0]},redux_tokens=16"


@pytest.mark.parametrize(
    ("prompts", "scale"), [({}, 0.9), ({"prompt": ""}, 0), ({"prompt": "", "prompt_2": "a"}, 0.9)]
)
def test_empty_prompt_has_no_text_tokens(
    pipeline: Pipeline, prompts: dict[str, str], scale: float
) -> None:
    inputs = prepared(pipeline, 0.5, 0.4, **prompts).inputs
    np.testing.assert_allclose(inputs[OF_TEXT], scale)
    np.testing.assert_allclose(inputs[SCALES], [0.5, 0.4])


def test_a_negative_prompt_has_no_image(pipeline: Pipeline) -> None:
    negative = {"negative_prompt": "a star", "true_cfg_scale": 2.0}
    without, single = (
        jax.jit(pipeline.encode)(pipeline.weights, dict(prepared(pipeline, *scales, **more).inputs))
        for scales, more in (((), negative), ((0.5,), negative))
    )
    text = without["prompt_embeds"].shape[1]
    for name in ("prompt_embeds", "pooled_embeds"):  # two programs, which sum in another order
        expected = without[name][1]
        output = single[name][1][: len(expected)]
        np.testing.assert_allclose(output, expected, rtol=0, atol=1e-5 * abs(expected).max())
    batch = jax.tree.map(lambda leaf: leaf[None], single)
    assert counted_text(batch).sum(axis=1).tolist() == [text + 16, text]
    assert counted_text(batch | {"prompt_embeds": batch["prompt_embeds"][:, :1]}) is None


def test_invalid_image_is_named(pipeline: Pipeline) -> None:
    with pytest.raises(RequestError) as error:
        pipeline.prepare({**BASE, "image_prompts": [{}]}, {"image_prompts.0.image": b"no image"})
    assert error.value.field == "image_prompts.0.image"


def test_models_without_redux_have_no_image_prompts(flux: Path) -> None:
    spec = registry.load("tiny", str(flux), "float32", {}, reader=SHAPES).spec
    assert "image_prompts" not in spec.fields
    assert (spec.image_prompts, spec.limits.max_image_prompts) == ({}, 0)


def test_other_weights_are_another_model(flux: Path, redux: Path, tmp_path: Path) -> None:
    other = make_redux(tmp_path / "other", seed=70)
    plain = registry.load("tiny", str(flux), "float32", {}, reader=SHAPES)
    prints = {
        load(flux, ImagePromptSource(str(place)), reader=SHAPES).spec.fingerprint
        for place in (redux, other)
    }
    assert len(prints | {plain.spec.fingerprint}) == 3


def test_the_authors_file_and_an_image_encoder(
    flux: Path, redux: Path, pipeline: Any, tmp_path: Path
) -> None:
    """Load ComfyUI's files: one with both layers, and a separate SigLIP."""
    (stored,) = (redux / "image_embedder").glob("*.safetensors")
    file = tmp_path / "flux1-redux-dev.safetensors"
    save_file(load_file(stored), file)
    encoder = Path(shutil.copytree(redux / "image_encoder", tmp_path / "siglip"))
    shutil.copy(redux / "feature_extractor/preprocessor_config.json", encoder)
    for source in (
        ImagePromptSource(str(file), encoder=str(encoder)),
        ImagePromptSource(str(tmp_path), file=file.name, encoder=str(encoder)),
    ):
        loaded = load(flux, source)
        assert are_equal(loaded.weights, pipeline.weights)
        assert loaded.preprocessor == pipeline.preprocessor
    with pytest.raises(CheckpointError, match="a file has no image encoder"):
        load(flux, ImagePromptSource(str(file)))


@pytest.mark.parametrize(
    ("file", "change", "said"),
    [
        ("image_embedder/config.json", {"redux_dim": 25}, "redux_dim is 25, but SigLIP's"),
        ("image_embedder/config.json", {"txt_in_features": 41}, "txt_in_features is 41"),
        ("image_encoder/config.json", {"image_size": 24}, "size is \\(23, 23\\), but SigLIP's"),
    ],
)
def test_parts_that_do_not_fit_are_named(
    flux: Path, redux: Path, tmp_path: Path, file: str, change: dict[str, Any], said: str
) -> None:
    spoiled = Path(shutil.copytree(redux, tmp_path / "spoiled"))
    config = json.loads((spoiled / file).read_text())
    (spoiled / file).write_text(json.dumps(config | change))
    with pytest.raises(CheckpointError, match=said):
        load(flux, ImagePromptSource(str(spoiled)), reader=SHAPES)


def test_a_missing_array_is_named(flux: Path, redux: Path, tmp_path: Path) -> None:
    spoiled = Path(shutil.copytree(redux, tmp_path / "spoiled"))
    (file,) = (spoiled / "image_embedder").glob("*.safetensors")
    arrays = load_file(file)
    arrays.pop("redux_down.bias")
    save_file(arrays, file)
    with pytest.raises(WeightsError, match=r"missing: redux_down\.bias"):
        load(flux, ImagePromptSource(str(spoiled)))


def test_flux_has_at_most_one_image_prompt_network(flux: Path, redux: Path) -> None:
    both = {name: ImagePromptSource(str(redux)) for name in ("a", "b")}
    with pytest.raises(CheckpointError, match="a Flux has one, not a, b"):
        registry.load("tiny", str(flux), "float32", {}, image_prompts=both)
