"""Checkpoint folders: index files, choice of weight files, fingerprints and refusals."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from models.checkpoint.fingerprint import config_digest, fingerprint
from models.checkpoint.folder import (
    CheckpointError,
    checkpoint_errors,
    files_below,
    read_config,
    read_defaults,
    read_model_index,
    read_scheduler,
    weight_files,
)
from models.sampling.flow_schedule import FlowMatchSchedule


def touch(folder: Path, *names: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / name).write_bytes(b"")
    return folder


def write_index(folder: Path, name: str, *shards: str) -> None:
    weight_map = {f"layer.{number}": shard for number, shard in enumerate(shards)}
    (folder / name).write_text(json.dumps({"weight_map": weight_map}))


class TestJson:
    def test_model_index(self, tmp_path: Path) -> None:
        (tmp_path / "model_index.json").write_text('{"_class_name": "FluxPipeline", "vae": []}')
        assert read_model_index(tmp_path)["_class_name"] == "FluxPipeline"

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            (None, "no model_index.json"),
            (b'{"_class_name": ', "not valid JSON"),
            (b"\xff\xfe\x00", "not valid JSON"),
            (b"[1]", "JSON object"),
            (b"{}", "no _class_name"),
            (b'{"_class_name": 3}', "no _class_name"),
        ],
    )
    def test_invalid_model_index(self, tmp_path: Path, content: bytes | None, message: str) -> None:
        if content is not None:
            (tmp_path / "model_index.json").write_bytes(content)
        with pytest.raises(CheckpointError, match=message):
            read_model_index(tmp_path)

    @pytest.mark.parametrize(
        ("named", "expected"),
        [
            (["diffusers", "EulerDiscreteScheduler"], "EulerDiscreteScheduler"),
            ([None, None], "PNDMScheduler"),
            (None, "PNDMScheduler"),
        ],
    )
    def test_the_index_names_the_scheduler(
        self, tmp_path: Path, named: list[str | None] | None, expected: str
    ) -> None:
        """The index decides, not the class that wrote the scheduler's config, as in diffusers'
        pipelines.
        """
        index = {"_class_name": "StableDiffusionXLPipeline", "scheduler": named}
        (tmp_path / "model_index.json").write_text(json.dumps(index))
        (touch(tmp_path / "scheduler") / "scheduler_config.json").write_text(
            '{"_class_name": "PNDMScheduler", "beta_end": 0.012}'
        )
        assert read_scheduler(tmp_path) == {"_class_name": expected, "beta_end": 0.012}

    def test_no_folder(self, tmp_path: Path) -> None:
        with pytest.raises(CheckpointError, match="no such folder"):
            read_model_index(tmp_path / "absent")

    def test_config_names(self, tmp_path: Path) -> None:
        (touch(tmp_path / "vae") / "config.json").write_text('{"a": 1}')
        (touch(tmp_path / "scheduler") / "scheduler_config.json").write_text('{"b": 2}')
        assert read_config(tmp_path, "vae") == {"a": 1}
        assert read_config(tmp_path, "scheduler") == {"b": 2}

    def test_absent_component_or_config(self, tmp_path: Path) -> None:
        with pytest.raises(CheckpointError, match="no folder 'vae'"):
            read_config(tmp_path, "vae")
        touch(tmp_path / "vae")
        with pytest.raises(CheckpointError, match=r"neither config\.json nor vae_config\.json"):
            read_config(tmp_path, "vae")

    def test_defaults(self, tmp_path: Path) -> None:
        assert read_defaults(tmp_path) == {}
        (tmp_path / "atelier.json").write_text('{"defaults": {"width": 96}}')
        assert read_defaults(tmp_path) == {"width": 96}
        (tmp_path / "atelier.json").write_text('{"defaults": [1]}')
        with pytest.raises(CheckpointError, match=r"atelier\.json"):
            read_defaults(tmp_path)


class TestWeightFiles:
    @pytest.mark.parametrize(
        ("there", "variant", "chosen"),
        [
            (["model.safetensors"], None, "model.safetensors"),
            (["diffusion_pytorch_model.safetensors"], None, "diffusion_pytorch_model.safetensors"),
            (["model.safetensors", "model.fp16.safetensors"], None, "model.safetensors"),
            (["model.safetensors", "model.fp16.safetensors"], "fp16", "model.fp16.safetensors"),
            (["model.fp16.safetensors", "pytorch_model.bin"], None, "model.fp16.safetensors"),
        ],
        ids=str,
    )
    def test_single(
        self, tmp_path: Path, there: list[str], variant: str | None, chosen: str
    ) -> None:
        assert weight_files(touch(tmp_path, *there), variant) == (tmp_path / chosen,)

    @pytest.mark.parametrize(
        ("index", "shards"),
        [
            ("model.safetensors.index.json", "model-0000{}-of-00002.safetensors"),
            ("model.safetensors.index.fp16.json", "model.fp16-0000{}-of-00002.safetensors"),
            ("model.fp16.safetensors.index.json", "model-0000{}-of-00002.fp16.safetensors"),
        ],
    )
    def test_shards(self, tmp_path: Path, index: str, shards: str) -> None:
        names = [shards.format(1), shards.format(2)]
        touch(tmp_path, *names)
        write_index(tmp_path, index, names[1], names[0], names[1])
        assert weight_files(tmp_path) == tuple(tmp_path / name for name in names)

    def test_missing_shards_are_all_named(self, tmp_path: Path) -> None:
        touch(tmp_path, "a.safetensors")
        write_index(
            tmp_path,
            "model.safetensors.index.json",
            "a.safetensors",
            "b.safetensors",
            "c.safetensors",
        )
        with pytest.raises(
            CheckpointError, match=r"missing shards: b\.safetensors, c\.safetensors"
        ):
            weight_files(tmp_path)

    @pytest.mark.parametrize("name", ["../secret.safetensors", "/etc/passwd", "model.bin"])
    def test_an_index_names_only_safetensors_of_its_folder(self, tmp_path: Path, name: str) -> None:
        touch(tmp_path, "model.bin")
        write_index(tmp_path, "model.safetensors.index.json", name)
        with pytest.raises(CheckpointError, match="names no safetensors file of its folder"):
            weight_files(tmp_path)

    @pytest.mark.parametrize("content", ["{}", '{"weight_map": {}}', '{"weight_map": 3}', "{"])
    def test_damaged_index(self, tmp_path: Path, content: str) -> None:
        (tmp_path / "model.safetensors.index.json").write_text(content)
        with pytest.raises(CheckpointError, match=r"index\.json"):
            weight_files(tmp_path)

    @pytest.mark.parametrize(
        "name", ["pytorch_model.bin", "flux.pt", "sd.ckpt", "diffusion_pytorch_model.fp16.bin"]
    )
    def test_pickles_are_refused_by_name(self, tmp_path: Path, name: str) -> None:
        with pytest.raises(CheckpointError, match=rf"{name}.*convert them to safetensors"):
            weight_files(touch(tmp_path, name, "config.json"))

    def test_missing_weights(self, tmp_path: Path) -> None:
        with pytest.raises(CheckpointError, match="no safetensors weights"):
            weight_files(touch(tmp_path, "config.json"))
        with pytest.raises(CheckpointError, match="no such folder"):
            weight_files(tmp_path / "absent")

    def test_unknown_variant(self, tmp_path: Path) -> None:
        touch(tmp_path, "model.safetensors", "model.fp16.safetensors")
        with pytest.raises(CheckpointError, match="'bf16'; there are: the plain one, fp16"):
            weight_files(tmp_path, "bf16")


class TestFingerprint:
    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        folder = touch(tmp_path / "flux" / "vae").parent
        (folder / "model_index.json").write_text("{}")
        weights = {"a": np.zeros((300, 300), np.float32)}
        save_file(weights, folder / "vae" / "model.safetensors")
        return folder

    def test_copied_folder_has_the_same_fingerprint(self, folder: Path, tmp_path: Path) -> None:
        copy = shutil.copytree(folder, tmp_path / "elsewhere")
        assert fingerprint(copy) == fingerprint(folder)

    def test_other_files_do_not_count(self, folder: Path) -> None:
        before = fingerprint(folder)
        touch(folder, "README.md", "picture.png")
        assert fingerprint(folder) == before

    @pytest.mark.parametrize("change", ["config", "values", "shape", "new file"])
    def test_changes_alter_the_fingerprint(self, folder: Path, change: str) -> None:
        before = fingerprint(folder)
        file = folder / "vae" / "model.safetensors"
        match change:
            case "config":
                (folder / "model_index.json").write_text("{ }")
            case "values":
                save_file({"a": np.full((300, 300), 1e-3, np.float32)}, file)
            case "shape":
                save_file({"a": np.zeros((900, 100), np.float32)}, file)
            case "new file":
                save_file({}, folder / "vae" / "model.fp16.safetensors")
        assert fingerprint(folder) != before

    def test_fingerprint_does_not_read_the_weights(self, folder: Path) -> None:
        """A sparse file of 100 GB takes far less time than any disk would need to read it."""
        with (folder / "vae" / "model.safetensors").open("r+b") as file:
            file.truncate(100 * 1024**3)
        start = time.monotonic()
        fingerprint(folder)
        assert time.monotonic() - start < 10


@pytest.mark.parametrize("error", [TypeError("x"), KeyError("x"), ValueError("x")])
def test_checkpoint_errors_name_the_folder(error: Exception) -> None:
    with (
        pytest.raises(CheckpointError, match=r"^/models/broken: "),
        checkpoint_errors("/models/broken"),
    ):
        raise error


def test_internal_errors_are_not_checkpoint_errors() -> None:
    with pytest.raises(RuntimeError), checkpoint_errors("/models/sound"):
        raise RuntimeError("a device is gone")


@pytest.mark.parametrize(("key", "value"), [("shift", -1.0), ("num_train_timesteps", 1)])
def test_a_wrong_value_in_a_schedulers_config_is_named(key: str, value: float) -> None:
    with pytest.raises(ValueError, match=rf"scheduler_config\.json: {key}: must be "):
        FlowMatchSchedule.from_dict({key: value})


class TestLinkedFolders:
    """Checkpoint folders with links: a cache whose parts are links, or a checkpoint with a part of
    another."""

    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        (tmp_path / "whole" / "vae" / "deep").mkdir(parents=True)
        (tmp_path / "whole" / "model_index.json").write_text("{}")
        (tmp_path / "whole" / "vae" / "deep" / "config.json").write_text("{}")
        return tmp_path / "whole"

    def test_files_of_linked_folders_are_listed(self, folder: Path, tmp_path: Path) -> None:
        linked = tmp_path / "linked"
        linked.mkdir()
        (linked / "model_index.json").symlink_to(folder / "model_index.json")
        (linked / "vae").symlink_to(folder / "vae")
        copied = fingerprint(folder), config_digest(folder)
        assert (fingerprint(linked), config_digest(linked)) == copied
        (folder / "vae" / "deep" / "config.json").write_text('{"scaling_factor": 2}')
        assert fingerprint(linked) == fingerprint(folder) != copied[0]
        assert config_digest(linked) != copied[1]
        (linked / "vae_2").symlink_to(folder / "vae")
        names = [path.relative_to(linked).as_posix() for path in files_below(linked)]
        assert names == ["model_index.json", "vae/deep/config.json", "vae_2/deep/config.json"]

    def test_cyclic_and_broken_links_are_skipped(self, folder: Path) -> None:
        files = files_below(folder)
        (folder / "vae" / "deep" / "up").symlink_to(folder)
        (folder / "itself").symlink_to(folder)
        (folder / "gone").symlink_to(folder / "missing")
        assert files_below(folder) == files
