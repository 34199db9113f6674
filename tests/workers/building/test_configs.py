"""Configs of checkpoints for a build: fetched only from folders."""

from __future__ import annotations

from pathlib import Path

import pytest

from service.settings.settings import Settings
from tests.models.object_store import put, store_server
from tests.service.jobs.object_stores import BUCKET
from workers.building.build import with_local_configs


def test_single_file_in_an_object_store_stays_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    file, folder = f"s3://{BUCKET}/files/sdxl.safetensors", f"s3://{BUCKET}/folders/sdxl"
    settings = Settings.model_validate(
        {
            "models": {"one": {"source": file}, "whole": {"source": folder}},
            "pools": {"one": {"model": "one", "also": ["whole"]}},
        }
    )
    with store_server(monkeypatch) as server:
        put(server, "files/sdxl.safetensors", b"weights")
        put(server, "folders/sdxl/model_index.json", b"{}")
        with_configs = with_local_configs(settings, "one")
        assert with_configs.models["one"].source == file
        assert (Path(with_configs.models["whole"].source) / "model_index.json").is_file()
