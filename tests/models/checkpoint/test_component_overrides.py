"""Parts of a checkpoint that the operator chose, in place of its own."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from models import registry
from models.checkpoint.component_overrides import with_parts
from models.checkpoint.fingerprint import fingerprint
from models.checkpoint.folder import CheckpointError, read_scheduler
from models.loading.sources import SHAPES
from models.sampling.flow_choice import FLOW_EVALUATIONS, ShiftedHeun
from models.sdxl.source import Source
from models.spec.notices import collected_notices
from models.spec.passes import evaluations_of
from tests import coarse
from tests.models.sdxl.original_writer import vae as original_vae
from tests.models.sdxl.original_writer import write_original
from tests.models.single_files import are_equal, write
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
    """A file has the config of the checkpoint, and diffusers' or the original keys.

    The latter also in a file with several networks.
    """
    base, other = folders
    forms = (with_parts(base, {"vae": str(each)}) for each in (other, other / "vae", other / VAE))
    assert len({fingerprint(form) for form in forms}) == 1
    named = {f"first_stage_model.{key}": t for key, t in original_vae(other / "vae").items()}
    transformer = {"model.diffusion_model.img_in.weight": torch.zeros(2)}
    original = write(named | transformer, tmp_path / "all.sft")
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


def named_scheduler(checkpoint: Path, folder: Path, name: str) -> Path:
    """Copy a checkpoint whose index and config name another scheduler."""
    shutil.copytree(checkpoint, folder)
    for file in ("model_index.json", "scheduler/scheduler_config.json"):
        config = json.loads((folder / file).read_text())
        changes: dict[str, Any] = {"_class_name": name, "new_option": 1}
        if "scheduler" in config:
            changes = {"scheduler": ["diffusers", name]}
        (folder / file).write_text(json.dumps(config | changes))
    return folder


class TestFlows:
    def test_heun_in_the_index(self, folders: tuple[Path, Path], tmp_path: Path) -> None:
        name = "FlowMatchHeunDiscreteScheduler"
        loaded: Any = load(named_scheduler(folders[0], tmp_path / "heun", name), reader=SHAPES)
        assert loaded.scheduler == ShiftedHeun.from_dict(read_scheduler(folders[0]))
        assert evaluations_of({}, loaded.spec) == FLOW_EVALUATIONS[name], "jobs are priced by it"

    def test_a_chosen_scheduler(self, folders: tuple[Path, Path], tmp_path: Path) -> None:
        """The index names the class of a chosen checkpoint, else the config does."""
        base = named_scheduler(folders[0], tmp_path / "base", "NewestScheduler")
        heun = named_scheduler(folders[0], tmp_path / "heun", "FlowMatchHeunDiscreteScheduler")
        config = heun / "scheduler" / "scheduler_config.json"
        for source in (heun, heun / "scheduler", config):
            loaded: Any = load(base, parts={"scheduler": str(source)}, reader=SHAPES)
            assert loaded.scheduler == ShiftedHeun.from_dict(read_scheduler(folders[0]))
            assert loaded.spec.fingerprint == fingerprint(heun)
        assert with_parts(base, {"scheduler": str(base)}) != base
        with pytest.raises(CheckpointError, match=r"neither scheduler_config\.json nor"):
            with_parts(base, {"scheduler": str(heun / "vae")})

    def test_a_scheduler_that_is_not_served(
        self, folders: tuple[Path, Path], tmp_path: Path
    ) -> None:
        folder = named_scheduler(folders[0], tmp_path / "odd", "NewestScheduler")
        with pytest.raises(CheckpointError, match=r"NewestScheduler is not served.*choose one"):
            load(folder, reader=SHAPES)
        with collected_notices() as notices:
            loaded: Any = registry.load(
                "tiny", str(folder), "float32", {"scheduler": {"name": "heun"}}, reader=SHAPES
            )
        assert notices == [
            "the scheduler's config has keys that no scheduler has: new_option",
            "the scheduler NewestScheduler is not served; heun takes its place",
        ]
        assert loaded.scheduler == ShiftedHeun.from_dict(read_scheduler(folders[0]))


@pytest.fixture(scope="module")
def sdxl(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_sdxl(tmp_path_factory.mktemp("sdxl") / "base")


class TestSdxl:
    def test_a_vae_with_the_original_keys(self, sdxl: Path, tmp_path: Path) -> None:
        changed = {key: tensor * 1.5 for key, tensor in original_vae(sdxl / "vae").items()}
        file = write(changed, tmp_path / "sdxl_vae.safetensors")
        assert has_vae_of(load(sdxl, parts={"vae": str(file)}), sdxl, 1.5)

    def test_a_file_without_an_autoencoder_or_encoders_takes_the_bases(
        self, sdxl: Path, tmp_path: Path
    ) -> None:
        base = make_sdxl(tmp_path / "base", seed=50)
        stored = load_file(write_original(sdxl, tmp_path / "whole.safetensors"))
        kept = {key: t for key, t in stored.items() if not key.startswith("first_stage_model.")}
        file = write(kept, tmp_path / "pruned.safetensors")
        prints = {Source(folder, file).fingerprint() for folder in (base, sdxl)}
        assert len(prints) == 2, "it covers the autoencoder"
        prefix = "model.diffusion_model."
        unet = {key: tensor for key, tensor in stored.items() if key.startswith(prefix)}
        file = write(unet, tmp_path / "unet.safetensors")
        loaded, expected, of_base = load(file, base=str(base)), load(sdxl), load(base)
        assert has_vae_of(loaded, base)
        assert are_equal(loaded.weights.unet, expected.weights.unet)
        for encoder in ("clip", "clip_2"):
            assert are_equal(getattr(loaded.weights, encoder), getattr(of_base.weights, encoder))
        mixed = shutil.copytree(base, tmp_path / "mixed")
        shutil.copytree(sdxl / "text_encoder", mixed / "text_encoder", dirs_exist_ok=True)
        prints = {Source(folder, file).fingerprint() for folder in (base, mixed)}
        assert len(prints) == 2, "it covers the encoders"

    def test_a_scheduler_that_is_not_served_is_replaced_by_the_operators(
        self, sdxl: Path, tmp_path: Path
    ) -> None:
        folder = named_scheduler(sdxl, tmp_path / "odd", "NewestScheduler")
        with pytest.raises(CheckpointError, match="NewestScheduler is not served"):
            load(folder)
        with collected_notices() as notices, coarse.compiled():
            pipeline = registry.load(
                "tiny", str(folder), "float32", {"scheduler": {"name": "dpmpp_2m"}}
            )
        assert notices == [
            "the scheduler's config has keys that no scheduler has: new_option",
            "the scheduler NewestScheduler is not served; dpmpp_2m takes its place",
        ]
        assert pipeline.spec.scheduler == "DPMSolverMultistepScheduler"
