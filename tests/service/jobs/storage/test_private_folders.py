"""Folders of the service become private to its user, regardless of their previous mode."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from service.jobs.storage.object_store import Store
from service.jobs.storage.private_folders import be_private, private_folder
from service.settings.section import ConfigError


@pytest.fixture(autouse=True)
def _usual_umask() -> Iterator[None]:
    usual = os.umask(0o002)
    yield
    os.umask(usual)


def modes(folder: Path) -> set[int]:
    return {path.lstat().st_mode & 0o777 for path in [folder, *folder.rglob("*")]}


def test_exposed_folder_is_made_private_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "outputs"
    (folder / "job").mkdir(parents=True)
    (folder / "job" / "0-0.png").write_bytes(b"image")
    (folder / "link").symlink_to("/etc/hostname")
    with caplog.at_level(logging.WARNING):
        assert private_folder(folder, "store.url")
        assert not private_folder(folder, "store.url")
    assert {path.stat().st_mode & 0o777 for path in (folder, folder / "job")} == {0o700}
    assert (folder / "job" / "0-0.png").stat().st_mode & 0o777 == 0o600
    (message,) = [record.getMessage() for record in caplog.records]
    assert message.startswith(f"store.url: other users could read {folder} (775)")


async def test_a_store_of_files_is_private(tmp_path: Path) -> None:
    be_private()
    store = Store(str(tmp_path / "outputs"))
    await store.put("outputs/job/0-0.png", b"image", "image/png")
    assert modes(tmp_path / "outputs") == {0o700, 0o600}


def test_a_folder_of_another_user_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if os.geteuid() == 0:
        os.chown(tmp_path, 12345, -1)
    else:  # only root can change a folder's owner
        monkeypatch.setattr(os, "geteuid", lambda: 12345)
    with pytest.raises(ConfigError, match=r"state_dir: .* belongs to another user"):
        private_folder(tmp_path, "state_dir")
