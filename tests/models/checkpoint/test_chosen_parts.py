"""Parts of a checkpoint that the operator chose, in place of its own."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file

from models import registry
from models.checkpoint.chosen_parts import with_parts
from models.checkpoint.fingerprint import fingerprint
from models.checkpoint.folder import CheckpointError
from models.checkpoint.notices import collected_notices
from models.sdxl.source import Source
from tests import coarse
from tests.models.sdxl.original_writer import vae as original_vae
from tests.models.sdxl.original_writer import write_original
from tests.models.single_files import write
from tests.parity.tiny import make_flux
from tests.parity.tiny_sdxl import make_sdxl

VAE = "vae/diffusion_pytorch_model.safetensors"


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two checkpoints that differ in all weights."""
    root = tmp_path_factory.mktemp("flux")
    return make_flux(root / "base"), make_flux(root / "other", seed=50)


def load(source: Path, **how: Any) -> Any:
    with coarse.compiled():
        return registry.load("tiny", str(source), "float32", {}, **how)


def has_vae_of(loaded: Any, folder: Path, factor: float = 1.0) -> bool:
    """Whether a network's autoencoder is the folder's, by the first array of its decoder."""
    stored = load_file(folder / VAE)["decoder.conv_in.weight"] * factor
    kernel = np.asarray(loaded.weights.vae["decoder"]["conv_in"]["kernel"][...])
    return np.array_equal(kernel, stored.permute(2, 3, 1, 0).numpy())


def test_a_part_may_be_a_checkpoint_a_folder_or_a_file(
    folders: tuple[Path, Path], tmp_path: Path
) -> None:
    """A file has the config of the checkpoint, and diffusers' or the original keys."""
    base, other = folders
    forms = (with_parts(base, {"vae": str(each)}) for each in (other, other / "vae", other / VAE))
    assert len({fingerprint(form) for form in forms}) == 1
    original = write(original_vae(other / "vae"), tmp_path / "ae.sft")
    for source in (other, original):
        loaded = load(base, parts={"vae": str(source)})
        assert has_vae_of(loaded, other)
        assert loaded.spec.fingerprint != fingerprint(base)


def test_parts_of_a_single_file_may_be_chosen(folders: tuple[Path, Path], tmp_path: Path) -> None:
    base, other = folders
    stored = load_file(base / "transformer/diffusion_pytorch_model.safetensors")
    file = write(stored, tmp_path / "flux.safetensors")
    encoder = other / "text_encoder_2" / "model.safetensors"
    parts = {"vae": str(other), "text_encoder_2": str(encoder)}
    loaded = load(file, base=str(base), parts=parts)
    assert has_vae_of(loaded, other)
    table = loaded.weights.t5["token_embedding"]["embedding"][...]
    assert np.array_equal(table, load_file(encoder)["shared.weight"].numpy())


def test_parts_that_cannot_be_are_refused(folders: tuple[Path, Path], tmp_path: Path) -> None:
    base, _ = folders
    with pytest.raises(
        CheckpointError, match=r"text_encoder_3 is set, but .* has no text_encoder_3"
    ):
        with_parts(base, {"text_encoder_3": str(base)})
    with pytest.raises(CheckpointError, match=r"neither config\.json nor vae/config\.json"):
        with_parts(base, {"vae": str(tmp_path)})
    pointer = tmp_path / "vae.safetensors"
    pointer.write_bytes(b"version https://git-lfs.github.com/spec/v1\n")
    with pytest.raises(CheckpointError, match="is a git-lfs pointer"):
        load(base, parts={"vae": str(pointer)})


def test_a_folder_with_parts_is_as_the_checkpoint(folders: tuple[Path, Path]) -> None:
    base, other = folders
    assert with_parts(base, {}) == base
    same, changed = (with_parts(base, {"vae": str(folder)}) for folder in (base, other))
    assert fingerprint(same) == fingerprint(base) != fingerprint(changed)
    assert changed.name == base.name, "messages name it"


@pytest.fixture(scope="module")
def sdxl(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_sdxl(tmp_path_factory.mktemp("sdxl") / "base")


class TestSdxl:
    def test_a_vae_with_the_original_keys(self, sdxl: Path, tmp_path: Path) -> None:
        changed = {key: tensor * 1.5 for key, tensor in original_vae(sdxl / "vae").items()}
        file = write(changed, tmp_path / "sdxl_vae.safetensors")
        assert has_vae_of(load(sdxl, parts={"vae": str(file)}), sdxl, 1.5)

    def test_a_file_without_an_autoencoder_takes_the_bases(
        self, sdxl: Path, tmp_path: Path
    ) -> None:
        base = make_sdxl(tmp_path / "base", seed=50)
        stored = load_file(write_original(sdxl, tmp_path / "whole.safetensors"))
        kept = {key: t for key, t in stored.items() if not key.startswith("first_stage_model.")}
        file = write(kept, tmp_path / "pruned.safetensors")
        assert has_vae_of(load(file, base=str(base)), base)
        prints = {Source(folder, file).fingerprint() for folder in (base, sdxl)}
        assert len(prints) == 2, "it covers the autoencoder"

    def test_a_scheduler_that_is_not_served_is_replaced_by_the_operators(
        self, sdxl: Path, tmp_path: Path
    ) -> None:
        folder = shutil.copytree(sdxl, tmp_path / "odd")
        for name in ("model_index.json", "scheduler/scheduler_config.json"):
            config = json.loads((folder / name).read_text())
            if "scheduler" in config:
                config["scheduler"] = ["diffusers", "NewestScheduler"]
            else:
                config["_class_name"] = "NewestScheduler"
            (folder / name).write_text(json.dumps(config))
        with pytest.raises(CheckpointError, match="NewestScheduler is not served"):
            load(folder)
        with collected_notices() as notices, coarse.compiled():
            pipeline = registry.load(
                "tiny", str(folder), "float32", {"scheduler": {"name": "dpmpp_2m"}}
            )
        assert notices == ["the scheduler NewestScheduler is not served; dpmpp_2m takes its place"]
        assert pipeline.spec.scheduler == "DPMSolverMultistepScheduler"
