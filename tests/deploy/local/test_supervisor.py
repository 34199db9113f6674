"""Pools that `atelier up` plans from settings and flags."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from deploy.local import supervisor
from service.settings.section import ConfigError
from service.settings.server import ServerSettings
from service.settings.settings import Settings
from workers.loading.derived import whole_settings


def test_a_model_without_a_pool_gets_one() -> None:
    settings = Settings(
        models={"a": {"source": "/a"}, "b": {"source": "/b"}},
        pools={"fast": {"model": "a", "slots": 8}},
    )
    planned = supervisor.plan(settings)
    assert {name: pool.model for name, pool in planned.pools.items()} == {"fast": "a", "b": "b"}
    assert planned.pools["fast"].slots == 8


def test_flags_override_settings() -> None:
    settings = Settings(models={"a": {"source": "/a"}}, pools={"p": {"model": "a", "count": 3}})
    planned = supervisor.plan(settings, pools=2, dtype="float16")
    assert planned.pools["p"].count == 2
    assert planned.models["a"].dtype == "float16"


def test_demo_is_the_default_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("wan", "flux", "runs"):
        (tmp_path / name).mkdir()
    for name in ("wan", "flux"):
        (tmp_path / name / "model_index.json").touch()
    monkeypatch.setattr(supervisor, "DEMO_FOLDER", tmp_path)
    planned = supervisor.plan(Settings())
    assert list(planned.models) == ["flux-demo", "wan-demo"]
    assert planned.models["wan-demo"].source == str(tmp_path / "wan")
    assert [pool.model for pool in planned.pools.values()] == ["flux-demo", "wan-demo"]
    assert {pool.slots for pool in planned.pools.values()} == {supervisor.DEMO_SLOTS}


def test_a_demo_model_has_the_controls_of_its_folder(tmp_path: Path) -> None:
    for name in ("sdxl", "flux"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model_index.json").touch()
    outline = tmp_path / "controls" / "sdxl" / "outline"
    outline.mkdir(parents=True)
    (outline / "config.json").touch()
    models = supervisor.demo_models(tmp_path)
    assert {name: control.source for name, control in models["sdxl-demo"].controls.items()} == {
        "outline": str(outline)
    }
    assert models["flux-demo"].controls == {}


def test_a_demo_model_that_edits_is_another_one_with_its_adapter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("flux", "wan", "edits"):
        (tmp_path / name).mkdir()
    for name in ("flux", "wan"):
        (tmp_path / name / "model_index.json").touch()
    for name in ("flux", "sdxl"):
        (tmp_path / "edits" / f"{name}.safetensors").touch()
    monkeypatch.setattr(supervisor, "DEMO_FOLDER", tmp_path)
    planned = supervisor.plan(Settings())
    assert [pool.model for pool in planned.pools.values()][-1] == "flux-edit-demo", "the last"
    resolved = whole_settings(planned, "flux-edit-demo")
    assert (resolved.source, resolved.dtype) == (str(tmp_path / "flux"), "float32")
    assert resolved.pipeline == "FluxKontextPipeline"
    assert "sdxl-edit-demo" not in planned.models, "there is no sdxl-demo"


def test_missing_demo_weights_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "DEMO_FOLDER", tmp_path)
    with pytest.raises(ConfigError, match="make train"):
        supervisor.plan(Settings())


def test_missing_required_keys_prevent_listening(tmp_path: Path) -> None:
    """The port is in use, so an attempt to listen there would raise another error."""
    with socket.create_server(("0.0.0.0", 0)) as holder:
        server = ServerSettings(host="0.0.0.0", port=holder.getsockname()[1])
        with pytest.raises(ConfigError, match=r"server\.keys"):
            supervisor.up(Settings(state_dir=tmp_path, server=server))
        with pytest.raises(ConfigError, match="can't listen"):
            open_ = server.model_copy(update={"keys": False})
            supervisor.up(Settings(state_dir=tmp_path, server=open_))
